"""Headers of pop consumption (200050 to 200055, 200151) and its receipt handles.

A handle identifies a popped message by eight blank-separated numbers and names, as in Apache's
`ExtraInfoUtil` (the property POP_CK):

    start offset, pop time, invisible time, revive queue, kind of topic, broker, queue, offset

Times are in ms. The start offset is that of the pop's first read in the queue, the offset that of
the message. The kind is 0 for the topic itself and 1 for its retry topic; the revive queue is 999
for an orderly pop. A ninth field of Apache's proxies is ignored.

The answer to a pop has these values per queue for all its messages: the start offset (`0 queue
offset;…`), the message offsets (`0 queue offset,offset;…`), and for an orderly pop the earlier pops
(`0 qo<queue>%<offset> times;…`). Pure, without I/O.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from .errors import BodyError, HeaderError
from .fields import Ext, parse_fields, parse_integer, parse_integers, write_fields
from .names import RETRY_PREFIX, pop_retry_topic

COUNT_MAX = 32  # messages of a pop, as in Apache's brokers
ORDER_REVIVE_QUEUE = 999
INIT_MIN, INIT_MAX = 0, 1  # where a new group starts
HANDLE_SIZE_MAX = 512  # characters
ACKS_MAX = 1_000  # per batch acknowledgement
BITS_MAX = 1 << 16  # of a BatchAck, as offsets from its start offset
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"  # a retry's property with the group it is for


class Handle(NamedTuple):
    """A handle, without its ninth field."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: bool
    broker_name: str
    queue_id: int
    offset: int

    @property
    def order(self) -> bool:
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        head = f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_queue}"
        kind = "1" if self.retry else "0"
        return f"{head} {kind} {self.broker_name} {self.queue_id} {self.offset}"

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Parse a handle. A missing last offset is -1. Raises HeaderError."""
        parts = text.split(" ")
        if len(text) > HANDLE_SIZE_MAX or not 7 <= len(parts) <= 9 or not parts[5]:
            raise HeaderError(f"not a handle of a popped message: {text[:100]!r}")
        start, pop_ms, invisible_ms, revive = (parse_integer(p, "handle") for p in parts[:4])
        offset = parse_integer(parts[7], "handle") if len(parts) > 7 else -1
        retry = parts[4] in ("1", "2")
        queue_id = parse_integer(parts[6], "handle")
        return cls(start, pop_ms, invisible_ms, revive, retry, parts[5], queue_id, offset)


class PopHeader(NamedTuple):
    """200050 POP_MESSAGE. `queue_id` < 0 means any queue of the topic."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    count_max: Annotated[int, "maxMsgNums"]
    invisible_ms: Annotated[int, "invisibleTime"]
    poll_ms: Annotated[int, "pollTime"]
    born_ms: Annotated[int, "bornTime"] = 0
    init_mode: Annotated[int, "initMode"] = INIT_MIN
    expression_type: Annotated[str, "expType"] = "TAG"
    expression: Annotated[str, "exp"] = ""
    order: Annotated[bool, "order"] = False
    attempt_id: Annotated[str, "attemptId"] = ""
    # Ours, the client with heartbeats that renew popped messages until their acknowledgement.
    renewed_by: Annotated[str, "raftmqRenewedBy"] = ""

    @classmethod
    def parse(cls, ext: Ext) -> PopHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class PopResponseHeader(NamedTuple):
    """The answer to 200050. `rest_count` is the approximate number of remaining messages."""

    pop_ms: Annotated[int, "popTime"]
    invisible_ms: Annotated[int, "invisibleTime"]
    revive_queue: Annotated[int, "reviveQid"]
    rest_count: Annotated[int, "restNum"]
    starts: Annotated[str, "startOffsetInfo"] = ""
    offsets: Annotated[str, "msgOffsetInfo"] = ""
    order_counts: Annotated[str, "orderCountInfo"] = ""

    @classmethod
    def parse(cls, ext: Ext) -> PopResponseHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


def popped_handle(
    properties: Mapping[str, str], head: PopResponseHeader, queue_id: int, offset: int
) -> Handle | None:
    """Return the handle that the broker added to a message of a retry topic, or None. A different
    handle in that property belongs to a popped message that was sent again with all of its
    properties."""
    try:
        handle = Handle.decode(properties.get(POP_CK, ""))
    except HeaderError:
        return None
    same = (handle.pop_ms, handle.queue_id, handle.offset) == (head.pop_ms, queue_id, offset)
    return handle if same else None


class AckHeader(NamedTuple):
    """200051 ACK_MESSAGE. `topic` is the stored topic, perhaps a retry topic."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    handle: Annotated[str, "extraInfo"]
    offset: Annotated[int, "offset"]

    @classmethod
    def parse(cls, ext: Ext) -> AckHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class ChangeHeader(NamedTuple):
    """200053 CHANGE_MESSAGE_INVISIBLETIME; the time starts now."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    handle: Annotated[str, "extraInfo"]
    offset: Annotated[int, "offset"]
    invisible_ms: Annotated[int, "invisibleTime"]

    @classmethod
    def parse(cls, ext: Ext) -> ChangeHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class ChangeResponseHeader(NamedTuple):
    """The answer to 200053, the fields of the message's new handle."""

    pop_ms: Annotated[int, "popTime"]
    invisible_ms: Annotated[int, "invisibleTime"]
    revive_queue: Annotated[int, "reviveQid"]

    @classmethod
    def parse(cls, ext: Ext) -> ChangeResponseHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class QueuePollHeader(NamedTuple):
    """200052 PEEK_MESSAGE, 200054 NOTIFICATION, 200055 POLLING_INFO."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    count_max: Annotated[int, "maxMsgNums"] = 1
    poll_ms: Annotated[int, "pollTime"] = 0
    order: Annotated[bool, "order"] = False
    attempt_id: Annotated[str, "attemptId"] = ""

    @classmethod
    def parse(cls, ext: Ext) -> QueuePollHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class BatchAck(NamedTuple):
    """Acknowledgements of messages of the same pop (200151). `topic` is the stored topic; bit n of
    `bits` is offset start + n."""

    consumer_group: str
    topic: str
    queue_id: int
    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    bits: int

    def to_json(self, topic: str) -> dict[str, Any]:
        """Return Apache's bean; `topic` is the popped topic."""
        size = (self.bits.bit_length() + 63) // 64 * 8
        return {
            "c": self.consumer_group,
            "t": topic,
            "r": "1" if self.topic.startswith(RETRY_PREFIX) else "0",
            "so": self.start,
            "q": self.queue_id,
            "rq": self.revive_queue,
            "pt": self.pop_ms,
            "it": self.invisible_ms,
            "b": b64encode(self.bits.to_bytes(size, "little")).decode(),
        }


def batch_acks(body: Mapping[str, Any]) -> list[BatchAck]:
    """Read the body of a 200151. Raises BodyError."""
    acks = body.get("acks")
    if not isinstance(acks, list) or len(acks) > ACKS_MAX:
        raise BodyError(f"acks is no list of at most {ACKS_MAX}")
    return [_batch_ack(one) for one in acks]


def _batch_ack(value: Any) -> BatchAck:
    try:
        group, topic = value["c"], value["t"]
        numbers = [value[name] for name in ("q", "so", "pt", "it", "rq")]
        bits = value["b"]
        if isinstance(bits, list):  # older fastjson writes the words of a BitSet
            bits = b"".join(word.to_bytes(8, "little", signed=True) for word in bits)
        else:
            bits = b64decode(bits, validate=True)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BodyError(f"not a batch acknowledgement: {error!r}") from error
    if not (isinstance(group, str) and isinstance(topic, str) and group and topic):
        raise BodyError("an acknowledgement without group or topic")
    if not all(type(number) is int and -1 << 63 <= number < 1 << 63 for number in numbers):
        raise BodyError("an acknowledgement whose numbers are none")
    if len(bits) * 8 > BITS_MAX:
        raise BodyError(f"an acknowledgement of more than {BITS_MAX} offsets")
    if value.get("r") in ("1", "2"):
        topic = pop_retry_topic(topic, group)
    queue_id, start, pop_ms, invisible_ms, revive = numbers
    mask = int.from_bytes(bits, "little")
    return BatchAck(group, topic, queue_id, start, pop_ms, invisible_ms, revive, mask)


def kind_of(topic: str) -> str:
    return "1" if topic.startswith(RETRY_PREFIX) else "0"


def start_info(topic: str, queue_id: int, start: int) -> str:
    return f"{kind_of(topic)} {queue_id} {start}"


def offset_info(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    return f"{kind_of(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_info(topic: str, queue_id: int, times: Mapping[int, int]) -> str:
    """Return the earlier pops of a queue's messages by offset, and the lowest count for the queue,
    which older clients read."""
    kind = kind_of(topic)
    offsets = [f"{kind} qo{queue_id}%{offset} {n}" for offset, n in times.items() if n]
    return ";".join([*offsets, f"{kind} {queue_id} {min(times.values(), default=0)}"])


def by_queue(info: str) -> dict[tuple[str, int], list[int]]:
    """Parse offset infos into (kind, queue id) → offsets. Raises HeaderError."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for part in info.split(";") if info else ():
        fields = part.split(" ")
        if len(fields) != 3:
            raise HeaderError(f"not an offset info: {part[:100]!r}")
        key = fields[0], parse_integer(fields[1], "queue")
        offsets[key] = parse_integers(fields[2], "offset")
    return offsets
