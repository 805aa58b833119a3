"""The replicated table of recent idempotent sends and their results (docs/idempotent-sends.md).

A send with the property IDEMPOTENT=true is identified by its topic and its UNIQ_KEY. Its result is
in the same frame as its message (command `sent_once`), so a replica has both or neither. Any later
leader answers a repeated attempt with the first result and does not store it.

`SentOnce` is limited in number and age. The limits are the leader's and part of the command, so all
tables are equal. broker.send.idempotency is the leader's part.

    {"op":"sent_once","window_ms":w,"max":n,"host":hex,
     "sends":[[topic,key,queue id as answered,queue offset,position behind the first record],…]}

Pure.
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
COMMAND_BYTES = 160  # of a send, besides its topic and key
MESSAGE_ILLEGAL = 13

Key = tuple[str, str]  # topic, UNIQ_KEY


class Sent(NamedTuple):
    """The answer to the first attempt."""

    stamp_ms: int  # of its frame
    position: int
    queue_id: int
    queue_offset: int
    host: str  # STOREHOST in hex, which with the position is the offsetMsgId

    @property
    def message_id(self) -> str:
        return f"{self.host}{self.position:016X}"


class Once(NamedTuple):
    """An idempotent send in a group commit, with its message's index there and its key."""

    at: int
    key: Key
    queue_id: int  # as answered


def once_key(topic: str, properties: Mapping[str, str], has_key: bool) -> Key | None:
    """Return the key of an idempotent send, else None. A message that a consumer sends back has the
    original's UNIQ_KEY and is no repetition. `has_key` means that the client set UNIQ_KEY. Raises
    Refused."""
    if properties.get(IDEMPOTENT) != "true":
        return None
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return None
    key = properties[UNIQ_KEY]
    if not has_key or len(key) > KEY_LENGTH_MAX:
        raise Refused(
            MESSAGE_ILLEGAL,
            f"an {IDEMPOTENT} message needs a {UNIQ_KEY} of at most {KEY_LENGTH_MAX} characters; "
            "it was not stored",
        )
    return topic, key


def command_size(key: Key) -> int:
    """Return an upper bound of a send's bytes in the command, with JSON escapes."""
    return COMMAND_BYTES + 6 * (len(key[0]) + len(key[1].encode()))


class SentOnce:
    """Idempotent sends: Key → Sent, oldest first."""

    def __init__(self) -> None:
        self.sent: dict[Key, Sent] = {}
        # Their ages, oldest first; the older entry of a repeated key is ignored. Finding the first
        # entry of a dict is slow after many removals at its front.
        self._ages: deque[tuple[int, Key]] = deque()
        self.applied_index = 0

    def get(self, key: Key, since_ms: int) -> Sent | None:
        """Return the send if it was stored at `since_ms` or later."""
        sent = self.sent.get(key)
        return None if sent is None or sent.stamp_ms < since_ms else sent

    def take(self, command: Mapping[str, Any], stamp_ms: int, records_at: int) -> None:
        """Apply a command. `records_at` is the position of the frame's first record."""
        window_ms, count_max = int(command["window_ms"]), int(command["max"])
        host = str(command["host"])
        sent = self.sent
        for topic, key, queue_id, offset, behind in command["sends"]:
            name = (str(topic), str(key))
            sent.pop(name, None)  # older than the window
            sent[name] = Sent(stamp_ms, records_at + int(behind), int(queue_id), int(offset), host)
            self._ages.append((stamp_ms, name))
        ages = self._ages
        while ages and (len(sent) > count_max or ages[0][0] < stamp_ms - window_ms):
            age_ms, name = ages.popleft()
            if name in sent and sent[name].stamp_ms == age_ms:
                del sent[name]

    def own(self) -> None:
        """Copy the mutable parts shared with the original table."""
        self.sent = self.sent.copy()
        self._ages = self._ages.copy()

    def to_json(self) -> dict[str, Any]:
        return {"sends": [[*key, *sent] for key, sent in self.sent.items()]}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        loaded: dict[Key, Sent] = {}
        for topic, key, stamp, position, queue_id, offset, host in value["sends"]:
            loaded[str(topic), str(key)] = Sent(
                int(stamp), int(position), int(queue_id), int(offset), str(host)
            )
        self.sent = loaded
        self._ages = deque((sent.stamp_ms, key) for key, sent in loaded.items())
        self.applied_index = applied_index
