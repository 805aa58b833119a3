"""Messages as the user sees them, the queue they live in, and the id a producer gives them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from typing import NamedTuple

from raftmq.store.properties import decode_properties
from raftmq.store.record import Host, unpack_host

BODY_SIZE_BYTES_MAX = 4 * 1024 * 1024  # the broker's maxMessageSize default
PROPERTIES_SIZE_BYTES_MAX = 32767  # a signed int16 on disk
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RETRY_PREFIX = "%RETRY%"  # of a group's topic of messages that come again
DELAY_TIME = "TIMER_DELAY_MS"
DELIVER_TIME = "TIMER_DELIVER_MS"
RESERVED_PROPERTIES = frozenset(
    {"UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "TRAN_MSG", "PGROUP", DELAY_TIME, DELIVER_TIME}
)


@dataclass(slots=True)
class Message:
    """What a producer sends. `tags` is one tag in practice, `keys` are searchable names.

    `properties` are the user's own; KEYS, TAGS, WAIT, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS and
    UNIQ_KEY have fields of their own and are refused there, as are TRAN_MSG and PGROUP, which a
    TransactionProducer sets. Of `delay_level`, `delay_time` (from when the broker has it) and
    `deliver_time` (with a time zone) one may be given; a time that is over means at once.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | list[str] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    unique_key: str | None = None  # made by the producer when absent; the same on every retry
    delay_time: timedelta | None = None
    deliver_time: datetime | None = None

    @property
    def is_later(self) -> bool:
        """Whether it is to be delivered later than it is sent."""
        return (
            bool(self.delay_level) or self.delay_time is not None or self.deliver_time is not None
        )


class MessageQueue(NamedTuple):
    """One queue of a topic in one broker group. Sorts as RocketMQ's clients sort it."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(IntEnum):
    """How far a stored message had got when the broker answered; values are response codes."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12

    def __str__(self) -> str:
        return self.name  # what a program prints: an IntEnum would say 0


class SendResult(NamedTuple):
    """An acknowledged send. `msg_id` is the UNIQ_KEY (comma list for a batch), `offset_msg_id`
    where the record is; `attempts` counts the times it was written to a broker. `recall_handle`,
    of a message that waits for its time: what Producer.recall takes."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    attempts: int
    recall_handle: str = ""


class ConsumeResult(IntEnum):
    """A listener's answer for the whole list it was given. None counts as SUCCESS."""

    SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(Enum):
    """Who of a group gets a message: one member, or each."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class MessageExt:
    """A message as it was read from a broker. Properties are decoded when first asked for."""

    __slots__ = (
        "_properties",
        "body",
        "born_host_raw",
        "born_timestamp_ms",
        "broker_name",
        "commit_log_offset",
        "flag",
        "prepared_transaction_offset",
        "properties_raw",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host_raw",
        "store_size_bytes",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties_raw: bytes,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        sys_flag: int,
        flag: int,
        born_timestamp_ms: int,
        born_host_raw: bytes,
        store_timestamp_ms: int,
        store_host_raw: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        store_size_bytes: int,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties_raw = properties_raw
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.sys_flag = sys_flag
        self.flag = flag
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host_raw = born_host_raw
        self.store_timestamp_ms = store_timestamp_ms
        self.store_host_raw = store_host_raw
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.store_size_bytes = store_size_bytes
        self._properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """All properties, decoded once."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from; for a retried message that is a queue of the retry topic."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> str | None:
        """The KEYS property: names separated by spaces."""
        return self.properties.get("KEYS")

    @property
    def msg_id(self) -> str:
        """The producer's UNIQ_KEY; where the producer gave none, the offset message id."""
        return self.properties.get("UNIQ_KEY") or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Store host, port and CommitLog offset in upper-case hex (section 6.4)."""
        return (self.store_host_raw + self.commit_log_offset.to_bytes(8, "big")).hex().upper()

    @property
    def born_host(self) -> Host:
        """The producer's (address, port) as the broker saw it."""
        return unpack_host(self.born_host_raw)

    @property
    def store_host(self) -> Host:
        """(address, port) of the broker that stored it."""
        return unpack_host(self.store_host_raw)

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.broker_name}/{self.queue_id}@{self.queue_offset}"
        return f"<MessageExt {where} {len(self.body)} B>"


def properties_of(message: Message, unique_key: str) -> dict[str, str]:
    """The properties a message travels with. Raises ValueError for a reserved or broken name."""
    properties = {"UNIQ_KEY": unique_key, "WAIT": "true" if message.wait_store else "false"}
    if message.tags:
        properties["TAGS"] = message.tags
    if message.keys:
        keys = message.keys
        properties["KEYS"] = keys if isinstance(keys, str) else " ".join(keys)
    if message.delay_level > 0:
        properties["DELAY"] = str(message.delay_level)
    properties |= _time_properties(message)
    if message.properties:
        _merge_user_properties(properties, message.properties)
    return properties


def _time_properties(message: Message) -> dict[str, str]:
    """Raises ValueError for times that contradict each other, or mean nothing."""
    delay, at = message.delay_time, message.deliver_time
    if (message.delay_level > 0) + (delay is not None) + (at is not None) > 1:
        raise ValueError("of delay_level, delay_time and deliver_time only one may be given")
    if delay is not None:
        if delay < timedelta(0):
            raise ValueError("delay_time is negative")
        return {DELAY_TIME: str(-(-delay // timedelta(milliseconds=1)))}
    if at is not None:
        if at.tzinfo is None:
            raise ValueError("deliver_time has no time zone")
        return {DELIVER_TIME: str(-((_EPOCH - at) // timedelta(milliseconds=1)))}
    return {}


def properties_text(properties: Mapping[str, str]) -> str:
    """`name 0x01 value 0x02` repeated, as it travels in a send header (section 6.3)."""
    for name, value in properties.items():
        if not name or not value or "\x01" in name + value or "\x02" in name + value:
            raise ValueError(f"property {name!r} is empty or holds a separator byte")
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def _merge_user_properties(target: dict[str, str], user: Mapping[str, str]) -> None:
    for name, value in user.items():
        if name in RESERVED_PROPERTIES:
            raise ValueError(f"property name {name!r} is reserved")
        target[name] = value


_HEX = [f"{number:02X}" for number in range(256)]


class UniqueKeys:
    """Makes UNIQ_KEYs: ip(4) pid(2) instance hash(4) milliseconds in the month(4) counter(2), hex.

    All but the last two digits are made anew every 256 keys. The time part is read then, and once
    per 65,536 keys it is moved forward by at least 1 ms when the counter wraps, so a pair of time
    and counter never comes twice in one process.
    `instance_hash` must differ between generators of one process.
    """

    def __init__(
        self,
        address: bytes,
        pid: int,
        instance_hash: int,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        assert len(address) == 4, address
        head = address + (pid & 0xFFFF).to_bytes(2, "big")
        self._head = (head + (instance_hash & 0xFFFFFFFF).to_bytes(4, "big")).hex().upper()
        self._now_ms = now_ms or month_ms
        self._counter = -1
        self._time_ms = 0
        self._prefix = ""

    def next(self) -> str:
        """A fresh key of 32 upper-case hex digits."""
        counter = self._counter = self._counter + 1
        low = counter & 0xFF
        if not low:
            self._refresh()
        return self._prefix + _HEX[low]

    def _refresh(self) -> None:
        floor = self._time_ms
        if self._counter == 0x10000:
            self._counter = 0
            floor += 1
        self._time_ms = max(self._now_ms(), floor)
        time_part = self._time_ms & 0xFFFFFFFF
        self._prefix = f"{self._head}{time_part:08X}{self._counter >> 8:02X}"


def month_ms() -> int:
    """Milliseconds since the current month began, local time, as the format has it (trap 12)."""
    now = time.time()
    local = time.localtime(now)
    start = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int((now - start) * 1000)


def process_unique_keys(address: bytes) -> UniqueKeys:
    """A generator for this process; the hash part is random, so two of them never agree."""
    return UniqueKeys(address, os.getpid(), int.from_bytes(os.urandom(4), "big"))
