"""Idempotent sends: those stored lately, and their results (docs/idempotent-sends.md).

A send with the property IDEMPOTENT=true is known by its topic and its UNIQ_KEY. Its result goes
into one frame with its message (command `sent_once`), so every replica knows it as soon as the
message is there, and for as long: a repeated try, whoever leads then, is answered with the first
one's result and not stored.

`SentOnce` is the table that every replica keeps, bounded in number and age; both limits are the
leader's and stand in the command, so all tables are equal. `Repeats` is the leader's: tries whose
first one is in flight wait for the same answer. Pure.

    {"op":"sent_once","window_ms":w,"max":n,"host":hex,
     "sends":[[topic,key,queue id as answered,queue offset,position behind the first record],…]}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from raftmq.broker.errors import Refused
from raftmq.broker.tables.topics import DLQ_PREFIX, RETRY_PREFIX
from raftmq.store.properties import UNIQ_KEY

if TYPE_CHECKING:
    from raftmq.broker.config import BrokerConfig
    from raftmq.broker.sending.waiting import Group, Sender

IDEMPOTENT = "IDEMPOTENT"
KEY_LENGTH_MAX = 255
WAITING_MAX = 10_000  # tries that wait for their first one
COMMAND_BYTES = 160  # of one send, besides its topic and key
MESSAGE_ILLEGAL, SYSTEM_BUSY = 13, 2

Key = tuple[str, str]  # topic, UNIQ_KEY


class Sent(NamedTuple):
    """The answer to the first try."""

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
    """Return the key of an idempotent send, else None. A consumer's retry has its first try's
    UNIQ_KEY and is no repetition. `told_key`: the client gave its UNIQ_KEY. Raises Refused."""
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
    """Return an upper bound of a send's bytes in the command, however it is escaped."""
    return COMMAND_BYTES + 6 * (len(key[0]) + len(key[1].encode()))


def sent_once(group: Group, host: bytes, limits: BrokerConfig) -> bytes:
    """Return the command for a group that is about to become a frame, before its queues move on.
    `host`: the STOREHOST that its records get."""
    assert group.once is not None
    wanted = {once.at: once for once in group.once}
    following: dict[object, int] = {}  # by queue, its next offset
    sends: list[tuple[str, str, int, int, int]] = []
    position = 0
    for at, record in enumerate(group.records):
        queue = record[0]
        offset = following.get(queue, queue.next_offset)
        following[queue] = offset + 1
        once = wanted.get(at)
        if once is not None:
            sends.append((*once.key, once.queue_id, offset, position))
        position += record[1]
    return orjson.dumps(
        {
            "op": "sent_once",
            "window_ms": limits.idempotent_window_ms,
            "max": limits.idempotent_window_max,
            "host": host.hex().upper(),
            "sends": sends,
        }
    )


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


class Repeats:
    """Sends in flight, and the tries that were repeated in the meantime."""

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Sender, int]]] = {}
        self._count = 0

    def join(self, key: Key, sender: Sender, now_ms: int) -> bool:
        """Have a try wait for the first one, if that is in flight. Raises Refused."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        if self._count >= WAITING_MAX:
            raise Refused(
                SYSTEM_BUSY,
                f"{self._count} repeated sends wait already",
                retriable=True,
                tag="BUSY",
            )
        waiting.append((sender, now_ms))
        self._count += 1
        return True

    def begin(self, key: Key) -> None:
        self._waiting[key] = []

    def end(self, sends: Iterable[Once]) -> list[tuple[Once, Sender]]:
        """Return those that wait for these sends, whose fate is known now."""
        found: list[tuple[Once, Sender]] = []
        for once in sends:
            found += [(once, sender) for sender, _ in self._waiting.pop(once.key, ())]
        self._count -= len(found)
        return found

    def overdue(self, before_ms: int) -> Sequence[Sender]:
        """Return the senders that have waited since then or longer; they are told "unknown"."""
        if not self._count:
            return ()
        found: list[Sender] = []
        for waiting in self._waiting.values():
            late = [sender for sender, since_ms in waiting if since_ms <= before_ms]
            if late:
                waiting[:] = [entry for entry in waiting if entry[1] > before_ms]
                found += late
        self._count -= len(found)
        return found
