"""Idempotent sends: those stored lately, and their results (docs/idempotent-sends.md).

A send with the property IDEMPOTENT=true is identified by its topic and its UNIQ_KEY. Its result
goes into one frame with its message (command `sent_once`), so a replica knows the result if and
only if it has the message. Whoever leads then, a repeated attempt is answered with the first one's
result and not stored.

`SentOnce` is the table that every replica keeps, bounded in number and age; both limits are the
leader's and stand in the command, so all tables are equal. The leader's part is
`broker/send/idempotency.py`. Pure.

    {"op":"sent_once","window_ms":w,"max":n,"host":hex,
     "sends":[[topic,key,queue id as answered,queue offset,position behind the first record],…]}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from raftmq.store.properties import UNIQ_KEY

from ..errors import Refused
from .topics import DLQ_PREFIX, RETRY_PREFIX

IDEMPOTENT = "IDEMPOTENT"
KEY_LENGTH_MAX = 255
COMMAND_BYTES = 160  # of one send, besides its topic and key
MESSAGE_ILLEGAL = 13

Key = tuple[str, str]  # topic, UNIQ_KEY


class Sent(NamedTuple):
    """The answer to the first attempt."""

    stamp_ms: int  # of its frame
    position: int
    queue_id: int
    queue_offset: int
    host: str  # STOREHOST in hex: with the position it is the offsetMsgId

    @property
    def message_id(self) -> str:
        return f"{self.host}{self.position:016X}"


class Once(NamedTuple):
    """An idempotent send that waits in a group: its message's place there, and its key."""

    at: int
    key: Key
    queue_id: int  # as answered


def once_key(topic: str, properties: Mapping[str, str], told_key: bool) -> Key | None:
    """Return the key of an idempotent send, else None. A message that a consumer gives back has the
    UNIQ_KEY of the original and is not a repetition. `told_key`: the client gave its UNIQ_KEY.
    Raises Refused."""
    if properties.get(IDEMPOTENT) != "true":
        return None
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return None
    key = properties[UNIQ_KEY]
    if not told_key or len(key) > KEY_LENGTH_MAX:
        raise Refused(
            MESSAGE_ILLEGAL,
            f"an {IDEMPOTENT} message needs a {UNIQ_KEY} of at most {KEY_LENGTH_MAX} characters; "
            "it was not stored",
        )
    return topic, key


def command_size(key: Key) -> int:
    """Return an upper bound of the bytes that a send takes in the command, JSON escapes
    included."""
    return COMMAND_BYTES + 6 * (len(key[0]) + len(key[1].encode()))


class SentOnce:
    """The idempotent sends: Key → Sent, oldest first. `applied_index` is the Raft index of the last
    frame reflected."""

    def __init__(self) -> None:
        self.sent: dict[Key, Sent] = {}
        # Their ages, oldest first; the older entry of a repeated key is ignored. A dict that loses
        # its first entry again and again is slow to find the next one.
        self._ages: deque[tuple[int, Key]] = deque()
        self.applied_index = 0

    def get(self, key: Key, since_ms: int) -> Sent | None:
        """Return the send if it was stored at `since_ms` or later."""
        found = self.sent.get(key)
        return None if found is None or found.stamp_ms < since_ms else found

    def take(self, command: Mapping[str, Any], stamp_ms: int, records_at: int) -> None:
        """Apply a command whose frame's first record is at `records_at`."""
        window_ms, count_max = int(command["window_ms"]), int(command["max"])
        host = str(command["host"])
        sent = self.sent
        for topic, key, queue_id, offset, behind in command["sends"]:
            name = (str(topic), str(key))
            sent.pop(name, None)  # from before the window
            sent[name] = Sent(stamp_ms, records_at + int(behind), int(queue_id), int(offset), host)
            self._ages.append((stamp_ms, name))
        ages = self._ages
        while ages and (len(sent) > count_max or ages[0][0] < stamp_ms - window_ms):
            age_ms, name = ages.popleft()
            if name in sent and sent[name].stamp_ms == age_ms:
                del sent[name]

    def own(self) -> None:
        """Stop sharing anything with the table this one was copied from."""
        self.sent = self.sent.copy()
        self._ages = self._ages.copy()

    def to_json(self) -> dict[str, Any]:
        return {"sends": [[*key, *sent] for key, sent in self.sent.items()]}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        """Load a snapshot; unchanged when that raises."""
        loaded: dict[Key, Sent] = {}
        for topic, key, stamp, position, queue_id, offset, host in value["sends"]:
            loaded[str(topic), str(key)] = Sent(
                int(stamp), int(position), int(queue_id), int(offset), str(host)
            )
        self.sent = loaded
        self._ages = deque((sent.stamp_ms, key) for key, sent in loaded.items())
        self.applied_index = applied_index
