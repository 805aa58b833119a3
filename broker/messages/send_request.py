"""Parses send requests into records, the first half of the hot path.

`parse_single` and `parse_batch` accept the header fields of SEND_MESSAGE_V2 (310) or
SEND_BATCH_MESSAGE (320); `v2_fields` converts those of SEND_MESSAGE (10). They return a `Record`
tuple per message, without queue offset, physical offset and store timestamp, which the log decides.
They raise `Refused` with Apache's response codes.

A Record is a tuple, because a leader builds a hundred thousand per second and an object would cost
several times more.

    (queue, size, head, crc, flag, sys_flag, born_ms, born_host, reconsume, body, tail, tags_code)

queue      SendQueue       the queue it goes to
size       int             TOTALSIZE of the stored record, bytes
head       struct.pack     packs the record's fixed head for the two hosts' address families
born_host  bytes           BORNHOST as stored: address and int32 port
tail       bytes           topic length, topic, properties length, properties
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from raftmq.remoting.fields import parse_integer
from raftmq.remoting.headers import REGION
from raftmq.remoting.pop_headers import POP_CK
from raftmq.remoting.topic_attributes import MIXED, type_of, type_problem
from raftmq.store.properties import TAGS, decode_properties, java_string_hash, joined, tags_code
from raftmq.store.record import MessageRecord, pack_host

from ..errors import Refused, forbidden, illegal
from ..tables.topics import DLQ_PREFIX, NO_SEND_TOPICS, RETRY_PREFIX, TopicConfig

Head = Callable[..., bytes]
Record = tuple["SendQueue", int, Head, int, int, int, int, bytes, int, bytes, bytes, int]

# A message's stored properties, UNIQ_KEY, tags code, and reply flag.
Properties = tuple[bytes, str, int, bool]
# A send's records, their total bytes, the client's message id, and reply flag.
Parsed = tuple[list[Record], int, str, bool]
Numbers = tuple[int, int, int]  # sysFlag, flag, reconsumeTimes
Item = tuple[int, int, int, int]  # see `_batch_items`

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)  # two-byte topic length
PROPERTIES_SIZE_MAX = 32_767  # int16
BORN_V6 = 0x10
STORE_V6 = 0x20
TRANSACTION_BITS = 0x0C
INT32_MAX = 0x7FFFFFFF

BATCH_COUNT_MAX = 8_192  # 5 us each to parse, and 1 us to encode
BATCH_STEP = 256  # parsed at a time, about 1 ms
TAGS_CACHE_MAX = 10_000
BORN_TIMES_CACHE_MAX = 1_000  # recent milliseconds, at most 20 characters each
NUMBERS_CACHE_MAX = 1_000  # by (sysFlag, flag, reconsumeTimes) as written, usually zeros
NAME_PREFIXES_MAX = 1_000  # per topic, by size of the properties
ENDINGS_CACHE_MAX = 4_000  # properties without UNIQ_KEY, as written
ENDING_SIZE_MAX = 512  # characters; longer ones are not cached

# (bytes of born address, of store address) → packer of the record's fixed head.
HEADS: dict[tuple[int, int], Head] = {
    (born, store): struct.Struct(f">iiIiiqqiq{born}sq{store}siqi").pack
    for born in (8, 20)
    for store in (8, 20)
}
_BATCH_ITEM = struct.Struct(">iiiii")  # totalSize, magic, bodyCRC, flag, bodyLen
_ITEM_HEAD_SIZE = _BATCH_ITEM.size
_INT16_FORMAT = struct.Struct(">h")
_INT16 = _INT16_FORMAT.pack

# SEND_MESSAGE's field names → SEND_MESSAGE_V2's letters.
V2_NAMES = dict(
    zip(
        "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag "
        "properties reconsumeTimes unitMode maxReconsumeTimes batch bname".split(),
        "abcdefghijklmn",
        strict=True,
    )
)
HANDLE = f"{POP_CK}\x01"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"  # set if the message expects a reply
_SPECIAL_PROPERTY = re.compile(r"\x02(DELAY|TRAN_MSG|TIMER_[A-Z_]+)\x01([^\x02]*)")


class Special(Exception):
    """A send that may be redirected; use `parse_special`."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of the broker's own. `queue_id` -1 is any; `properties` are as stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_ms: int
    born_host: bytes  # BORNHOST as stored
    flag: int = 0
    sys_flag: int = 0  # the bits of the address families are set when it is stored
    reconsume: int = 0
    prepared_offset: int = 0  # PREPAREDTRANSACTIONOFFSET
    force: bool = False  # store it in a topic or queue that does not exist


def as_stored(record: MessageRecord) -> Outgoing:
    return Outgoing(
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.born_timestamp_ms,
        pack_host(record.born_host),
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def fitting(properties: Mapping[str, str], stored: bytes) -> bytes:
    """Return the stored form of properties derived from `stored`, or `stored` if that is too long,
    so that a stored message can always be stored again."""
    made = joined(properties)
    return made if len(made) <= PROPERTIES_SIZE_MAX else stored


def packed_address(address: str) -> bytes:
    """Return a peer's address, `host:port` or `[ipv6]:port`, as BORNHOST."""
    host, _, port = address.rpartition(":")
    return pack_host((host.strip("[]").partition("%")[0], int(port)))


@dataclass(slots=True, eq=False)
class SendQueue:
    """A queue on the leader's append side, for one leadership.

    `next_offset` is the queue offset of the next record. `delay_ms` plus the store time replaces
    the tags code of entries; -1 disables this.
    """

    topic: str
    queue_id: int
    next_offset: int
    delay_ms: int = -1


class SendTopic:
    """The hot path's part of a topic, prepared per leadership and topic change.

    `plain` topics store messages directly unless their properties redirect them. `message_type` is
    the accepted type, or "" for all.
    """

    __slots__ = (
        "chosen", "magic", "message_type", "name", "name_prefix", "name_prefixes", "plain",
        "queue_count", "writable", "write_count",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, *, types_checked: bool = False) -> None:
        name = config.name.encode()
        self.name = config.name
        derived = self.name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        free = derived or not types_checked or config.message_type == MIXED
        self.message_type = "" if free else config.message_type
        self.magic = MAGIC_V1 if len(name) <= 127 else MAGIC_V2
        self.name_prefix = (
            bytes((len(name),)) + name
            if self.magic == MAGIC_V1
            else len(name).to_bytes(2, "big") + name
        )
        self.name_prefixes: dict[int, bytes] = {}  # `name_prefix` and a properties length
        self.queue_count = config.queue_count
        self.write_count = config.write_queue_count
        self.writable = config.writable
        self.plain = self.writable and not (
            self.message_type or self.name in NO_SEND_TOPICS or self.name.startswith(RETRY_PREFIX)
        )
        self.chosen: dict[str, SendQueue] = {}  # by queue id as usually written


class SendRules:
    """The broker's part of every record, and its limits. Built once."""

    __slots__ = (
        "born_times", "cluster", "endings", "head_size_v4", "head_v4", "head_v6",
        "message_size_max", "numbers", "record_bytes_max", "region", "standard", "store_host",
        "tags", "trace",
    )  # fmt: skip

    def __init__(
        self,
        *,
        cluster: str,
        trace_on: bool,
        store_host: bytes,
        message_size_max: int,
        record_bytes_max: int,
    ) -> None:
        trace = "true" if trace_on else "false"
        self.region = f"MSG_REGION\x01{REGION}\x02".encode()
        self.trace = f"TRACE_ON\x01{trace}\x02".encode()
        self.cluster = f"CLUSTER\x01{cluster}\x02".encode()
        self.standard = self.region + self.trace + self.cluster
        self.store_host = store_host
        self.message_size_max = message_size_max
        self.record_bytes_max = record_bytes_max
        self.head_v4 = HEADS[8, len(store_host)]
        self.head_v6 = HEADS[20, len(store_host)]
        self.head_size_v4 = 72 + 8 + len(store_host)  # of a record with an IPv4 BORNHOST
        self.born_times: dict[str, int] = {}  # text → ms
        self.tags: dict[str, int] = {}  # tag string → hash
        # Properties without the UNIQ_KEY's value → the rest of the stored form, and the tags code.
        self.endings: dict[str, tuple[bytes, int]] = {}
        self.numbers: dict[tuple[str, str, str | None], Numbers] = {}


def check_types(topic: SendTopic, properties: Iterable[bytes]) -> None:
    """Reject messages, by stored properties, of a type the topic does not accept."""
    for stored in properties:
        problem = type_problem(topic.message_type, type_of(decode_properties(stored)))
        if problem:
            raise illegal(f"{problem}; topic [{topic.name}]")


def properties_of(record: Record, topic: SendTopic) -> bytes:
    return record[10][len(topic.name_prefix) + _INT16_FORMAT.size :]


def check_topic(topic: str) -> None:
    """Reject topics that clients may not send to."""
    if topic in NO_SEND_TOPICS:
        raise forbidden(f"sending to topic [{topic}] is forbidden")


def v2_fields(ext: Mapping[str, str]) -> dict[str, str]:
    return {V2_NAMES[name]: value for name, value in ext.items() if name in V2_NAMES}


def stored_properties(text: str, rules: SendRules) -> Properties:
    """Return the stored form of a client's properties.

    Raises Special if they may redirect the message, and Refused if they cannot be stored.

    A producer's messages usually differ only in UNIQ_KEY, so the meaning of the remaining
    properties is cached.
    """
    at = text.find("UNIQ_KEY\x01")
    end = text.find("\x02", at + 9) if at == 0 or (at > 0 and text[at - 1] == "\x02") else -1
    if end < 0:
        return _read_properties(without_handle(text), rules, False)
    rest = text[:at] + text[end:] if at else text[end:]
    known = rules.endings.get(rest)
    if known is None:
        if HANDLE in rest:
            return _read_properties(without_handle(text), rules, False)
        parsed = _read_properties(text, rules, False)
        stored, _, tags, wants_reply = parsed
        if len(rest) <= ENDING_SIZE_MAX and not wants_reply:  # replies differ in more
            if len(rules.endings) >= ENDINGS_CACHE_MAX:
                rules.endings.clear()
            rules.endings[rest] = (stored[len(text.encode()) :], tags)
        return parsed
    return text.encode() + known[0], text[at + 9 : end], known[1], False


def without_handle(text: str) -> str:
    """Return a client's properties without the handle of a popped message.

    A popped message that is forwarded unchanged has its old handle. Consumers would acknowledge
    that handle and get the message again."""
    if HANDLE not in text:
        return text
    return "\x02".join(item for item in text.split("\x02") if not item.startswith(HANDLE))


def _read_properties(text: str, rules: SendRules, special: bool) -> Properties:
    """Parse properties that are not cached. `special` accepts special properties."""
    if text and text[-1] != "\x02":
        text += "\x02"
    marked = "\x02" + text
    tags = 0
    trace = False
    if "\x02T" in marked:
        tags = _tags_unless_special(marked, rules, special)
        trace = "\x02TRACE_ON\x01" in marked
    elif "\x02DELAY\x01" in marked:
        tags = _tags_unless_special(marked, rules, special)
    if "\x02IDEMPOTENT\x01true" in marked and not special:
        raise Special
    at = marked.find("\x02UNIQ_KEY\x01")
    if at >= 0:
        unique_key = marked[at + 10 : marked.index("\x02", at + 10)]
    else:
        unique_key = uuid.uuid4().hex.upper()
        text = f"{text}UNIQ_KEY\x01{unique_key}\x02"
    wants_reply = REPLY_TO_CLIENT in marked
    region = "\x02MSG_REGION\x01" in marked
    cluster = "\x02CLUSTER\x01" in marked
    if not (region or trace or cluster):
        return text.encode() + rules.standard, unique_key, tags, wants_reply
    stored = text.encode()
    if not region:
        stored += rules.region
    if not trace:
        stored += rules.trace
    if not cluster:
        stored += rules.cluster
    return stored, unique_key, tags, wants_reply


def _tags_unless_special(marked: str, rules: SendRules, special: bool) -> int:
    """Return the tags code of properties that may contain TAGS, DELAY, TRAN_MSG or TIMER_*."""
    match = _SPECIAL_PROPERTY.search(marked)
    while match is not None:
        if match[2] not in ("", "0", "false") and not special:
            raise Special
        match = _SPECIAL_PROPERTY.search(marked, match.end())
    at = marked.rfind("TAGS\x01")
    if at < 0:
        return 0
    tags = marked[at + 5 : marked.index("\x02", at + 5)]
    code = rules.tags.get(tags)
    if code is None or marked[at - 1] != "\x02":
        if not tags or marked[at - 1] != "\x02":  # rare; decide like store.dispatch
            return tags_code(decode_properties(marked[1:]).get(TAGS))
        code = java_string_hash(tags)
        if len(rules.tags) >= TAGS_CACHE_MAX:
            rules.tags.clear()
        rules.tags[tags] = code
    return code


def parse_single(
    ext: Mapping[str, str],
    body: bytes,
    queue: SendQueue,
    topic: SendTopic,
    born_host: bytes,
    rules: SendRules,
) -> Parsed:
    """Return the record of a send to `queue`. Raises Special, Refused, or KeyError and HeaderError
    for a malformed header.

    The caller chose the queue and checked the topic's permission.
    """
    numbers = rules.numbers.get((ext["f"], ext["h"], ext.get("j")))
    if numbers is None:
        numbers = _numbers(ext, rules)
    if not 0 < len(body) <= rules.message_size_max:
        raise _body_refused(body, rules)
    stored, unique_key, tags, wants_reply = stored_properties(ext.get("i") or "", rules)
    born_ms = born_ms_of(ext["g"], rules)
    record = _record(queue, topic, body, numbers, born_ms, born_host, stored, tags, rules)
    return [record], record[1], unique_key, wants_reply


def parse_special(
    ext: Mapping[str, str], body: bytes, queue: SendQueue, born_host: bytes, rules: SendRules
) -> tuple[Outgoing, str, bool]:
    """Return a special send's message to `queue`, with standard properties, unredirected."""
    if not 0 < len(body) <= rules.message_size_max:
        raise _body_refused(body, rules)
    sys_flag, flag, reconsume = _checked_numbers(ext["f"], ext["h"], ext.get("j"))
    text = without_handle(ext.get("i") or "")
    stored, unique_key, _, wants_reply = _read_properties(text, rules, True)
    message = Outgoing(
        queue.topic,
        queue.queue_id,
        body,
        stored,
        born_ms_of(ext["g"], rules),
        born_host,
        flag,
        sys_flag,
        reconsume,
    )
    return message, unique_key, wants_reply


def parse_batch(
    ext: Mapping[str, str],
    body: bytes,
    queue: SendQueue,
    topic: SendTopic,
    born_host: bytes,
    rules: SendRules,
) -> Generator[None, None, Parsed]:
    """Parse SEND_BATCH_MESSAGE in steps of BATCH_STEP messages. Its messages must not be special,
    and must have the topic's type."""
    try:
        numbers = _numbers(ext, rules)
        if not 0 < len(body) <= rules.message_size_max:
            raise _body_refused(body, rules)
        items = _batch_items(body)
        born = born_ms_of(ext["g"], rules), born_host
        properties = ext.get("i") or ""
        wants_reply = stored_properties(properties, rules)[3]
        records: list[Record] = []
        size_bytes = 0
        for first in range(0, len(items), BATCH_STEP):
            if first:
                yield
            some = items[first : first + BATCH_STEP]
            step_records = _batch_records(some, body, queue, topic, numbers, born, rules)
            if topic.message_type:
                check_types(topic, (properties_of(record, topic) for record in step_records))
            records += step_records
            size_bytes += sum(record[1] for record in step_records)
            if size_bytes > rules.record_bytes_max:
                raise illegal(f"the batch takes more than {rules.record_bytes_max} bytes as stored")
    except Special:
        raise illegal(
            "a batch holds no delayed, transactional or idempotent messages; none was stored"
        ) from None
    at = ("\x02" + properties).find("\x02UNIQ_KEY\x01")
    unique_key = properties[at + 9 :].partition("\x02")[0] if at >= 0 else ""
    return records, size_bytes, unique_key, wants_reply


def _numbers(ext: Mapping[str, str], rules: SendRules) -> Numbers:
    """Return the checked (sysFlag, flag, reconsumeTimes), with the host bits of this broker. Raises
    Special for transactions."""
    texts = (ext["f"], ext["h"], ext.get("j"))
    sys_flag, flag, reconsume = _checked_numbers(*texts)
    if sys_flag & TRANSACTION_BITS:
        raise Special
    sys_flag &= ~(BORN_V6 | STORE_V6)
    if len(rules.store_host) == 20:
        sys_flag |= STORE_V6
    numbers = (sys_flag, flag, reconsume)
    if len(rules.numbers) >= NUMBERS_CACHE_MAX:
        rules.numbers.clear()
    if max(len(text or "") for text in texts) <= 11:  # not if padded with many zeros
        rules.numbers[texts] = numbers
    return numbers


def _checked_numbers(sys_flag_text: str, flag_text: str, reconsume_text: str | None) -> Numbers:
    sys_flag = parse_integer(sys_flag_text, "sysFlag")
    flag = parse_integer(flag_text, "flag")
    reconsume = parse_integer(reconsume_text or "0", "reconsumeTimes")
    if not (
        0 <= sys_flag <= INT32_MAX
        and -INT32_MAX - 1 <= flag <= INT32_MAX
        and 0 <= reconsume <= INT32_MAX
    ):
        raise illegal("a number in the send header is out of range")
    return sys_flag, flag, reconsume


def born_ms_of(text: str, rules: SendRules) -> int:
    """Return the bornTimestamp, cached for sends of a millisecond. Raises Refused, HeaderError."""
    born_ms = rules.born_times.get(text)
    if born_ms is None:
        born_ms = parse_integer(text, "bornTimestamp")
        if born_ms < 0:
            raise illegal("bornTimestamp is out of range")
        if len(rules.born_times) >= BORN_TIMES_CACHE_MAX:
            rules.born_times.clear()
        rules.born_times[text] = born_ms
    return born_ms


def _body_refused(body: bytes, rules: SendRules) -> Refused:
    return illegal(f"the body is {len(body)} bytes long, allowed are 1 to {rules.message_size_max}")


def _record(
    queue: SendQueue,
    topic: SendTopic,
    body: bytes,
    numbers: Numbers,
    born_ms: int,
    born_host: bytes,
    stored: bytes,
    tags: int,
    rules: SendRules,
) -> Record:
    sys_flag, flag, reconsume = numbers
    name_prefix = topic.name_prefixes.get(len(stored))
    if name_prefix is None:
        name_prefix = _name_prefix(topic, len(stored))
    tail = name_prefix + stored
    head, size, host_bits = _head_of(born_host, rules)
    return (
        queue,
        size + len(body) + len(tail),
        head,
        crc32(body) & 0x7FFFFFFF,
        flag,
        sys_flag | host_bits,
        born_ms,
        born_host,
        reconsume,
        body,
        tail,
        tags,
    )


def _head_of(born_host: bytes, rules: SendRules) -> tuple[Head, int, int]:
    """Return the packer of a record's fixed head, its size, and the host's bit of sysFlag."""
    if len(born_host) == 8:
        return rules.head_v4, rules.head_size_v4, 0
    return rules.head_v6, rules.head_size_v4 + 12, BORN_V6


def check_properties_size(size_bytes: int) -> None:
    """Reject properties that are too long for a record."""
    if size_bytes > PROPERTIES_SIZE_MAX:
        raise illegal(
            f"the properties are {size_bytes} bytes long as stored, "
            f"allowed are {PROPERTIES_SIZE_MAX}"
        )


def _name_prefix(topic: SendTopic, properties_size: int) -> bytes:
    """Return a record's bytes before its properties, cached by their size. Raises Refused."""
    check_properties_size(properties_size)
    if len(topic.name_prefixes) >= NAME_PREFIXES_MAX:
        topic.name_prefixes.clear()
    made = topic.name_prefixes[properties_size] = topic.name_prefix + _INT16(properties_size)
    return made


def record_of(
    message: Outgoing, queue: SendQueue, topic: SendTopic, tags: int, rules: SendRules
) -> Record:
    """Return the record of a message that the broker stores itself. Raises Refused."""
    if not message.body:
        raise _body_refused(message.body, rules)
    if message.reconsume > INT32_MAX:
        raise illegal(f"reconsumeTimes {message.reconsume} is out of range")
    sys_flag = message.sys_flag & ~(BORN_V6 | STORE_V6)
    if len(rules.store_host) == 20:
        sys_flag |= STORE_V6
    numbers = (sys_flag, message.flag, message.reconsume)
    born = message.born_ms, message.born_host
    record = _record(queue, topic, message.body, numbers, *born, message.properties, tags, rules)
    if not message.prepared_offset:
        return record
    return (*record[:2], _prepared_head(record[2], message.prepared_offset), *record[3:])


def _prepared_head(head: Head, prepared_offset: int) -> Head:
    """Return a packer of heads (see HEADS) for the record of a committed half message."""
    return lambda *fields: head(*fields[:-2], prepared_offset, fields[-1])


def _batch_items(body: bytes) -> list[Item]:
    """Return start, end of the body, end and flag of each item of a batch, as a first check. Raises
    Refused for too many or malformed items."""
    items: list[Item] = []
    head, properties_length, size = _BATCH_ITEM.unpack_from, _INT16_FORMAT.unpack_from, len(body)
    position = 0
    while position < size:
        try:
            total, _, _, flag, body_size = head(body, position)
            body_end = position + _ITEM_HEAD_SIZE + body_size
            (properties_size,) = properties_length(body, body_end)
        except struct.error:
            raise illegal(f"batch item at {position} is cut short") from None
        end = body_end + 2 + properties_size
        if body_size <= 0 or properties_size < 0 or total != end - position or end > size:
            raise illegal(f"batch item at {position} has wrong lengths")
        items.append((position, body_end, end, flag))
        if len(items) > BATCH_COUNT_MAX:
            raise illegal(f"a batch holds at most {BATCH_COUNT_MAX} messages; none was stored")
        position = end
    return items


def _batch_records(
    items: Sequence[Item],
    body: bytes,
    queue: SendQueue,
    topic: SendTopic,
    numbers: Numbers,
    born: tuple[int, bytes],
    rules: SendRules,
) -> list[Record]:
    """Return a record per item of a SEND_BATCH_MESSAGE body. Raises Special, Refused."""
    sys_flag, _, reconsume = numbers
    born_ms, born_host = born
    head, head_size, host_bits = _head_of(born_host, rules)
    sys_flag |= host_bits
    known_prefix = topic.name_prefixes.get
    records: list[Record] = []
    for position, body_end, end, flag in items:
        try:
            item_properties = body[body_end + 2 : end].decode()
        except UnicodeDecodeError:
            raise illegal(f"batch item at {position}: not UTF-8") from None
        stored, _, tags, _ = stored_properties(item_properties, rules)
        item_body = body[position + _ITEM_HEAD_SIZE : body_end]
        tail = (known_prefix(len(stored)) or _name_prefix(topic, len(stored))) + stored
        size = head_size + len(item_body) + len(tail)
        crc = crc32(item_body) & 0x7FFFFFFF
        records.append(
            (queue, size, head, crc, flag, sys_flag, born_ms, born_host, reconsume, item_body, tail,
             tags)
        )  # fmt: skip
    return records
