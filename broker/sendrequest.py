"""From a send request's fields to the records it becomes: pure, the first half of the hot path.

`parse_send` takes the header fields of SEND_MESSAGE (10, long names), SEND_MESSAGE_V2 (310) or
SEND_BATCH_MESSAGE (320) and returns one `Record` tuple per message, lacking only what the log
decides: queue offset, physical offset and store timestamp. It raises `Refused` with the response
code of remoting-protocol 4.1, in that section's order of checks.

A Record is a plain tuple, because building and unpacking one costs a fraction of what an object
does, and a leader makes a hundred thousand a second:

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
import zlib
from collections.abc import Callable, Mapping

from broker.errors import Refused
from broker.topics import NO_SEND_TOPICS, TopicConfig
from store.properties import TAGS, decode_properties, java_string_hash, tags_code

Record = tuple[
    "SendQueue",
    int,
    Callable[..., bytes],
    int,
    int,
    int,
    int,
    bytes,
    int,
    bytes,
    bytes,
    int,
]

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)  # two-byte topic length
PROPERTIES_SIZE_MAX = 32_767  # int16
FIXED_SIZE = 91  # a V1 record with IPv4 hosts, without body, topic and properties
BORN_V6 = 0x10
STORE_V6 = 0x20
TRANSACTION_BITS = 0x0C
INT32_MAX = 0x7FFFFFFF

SYSTEM_ERROR = 1
MESSAGE_ILLEGAL = 13
NO_PERMISSION = 16
TAGS_CACHE_MAX = 10_000

# (born address bytes, store address bytes) → packer of the record's fixed head.
HEADS: dict[tuple[int, int], Callable[..., bytes]] = {
    (born, store): struct.Struct(f">iiIiiqqiq{born}sq{store}siqi").pack
    for born in (8, 20)
    for store in (8, 20)
}
_BATCH_ITEM = struct.Struct(">iiiii")  # totalSize, magic, bodyCRC, flag, bodyLen
_INT16 = struct.Struct(">h")

# The one-letter names of SEND_MESSAGE_V2 by the long names of SEND_MESSAGE.
V2_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}
_REFUSED_PROPERTY = re.compile(r"\x02(DELAY|TRAN_MSG|TIMER_[A-Z_]+)\x01([^\x02]*)")


class SendQueue:
    """One (topic, queue) as the leader's append side sees it, for one leadership.

    `next_offset` is the queue offset the next record gets. `units` collects the consume-queue
    units of the frame being cut; `units_first` is the queue offset of the first of them.
    """

    __slots__ = ("next_offset", "queue_id", "topic", "units", "units_first")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.units: list[bytes] = []
        self.units_first = 0


class SendTopic:
    """What the hot path needs of a topic, prepared once per leadership and topic change."""

    __slots__ = ("magic", "name", "name_part", "queue_count", "queues", "writable", "write_count")

    def __init__(self, config: TopicConfig) -> None:
        name = config.name.encode()
        self.name = config.name
        self.magic = MAGIC_V1 if len(name) <= 127 else MAGIC_V2
        self.name_part = (
            bytes((len(name),)) + name
            if self.magic == MAGIC_V1
            else len(name).to_bytes(2, "big") + name
        )
        self.queue_count = config.queue_count
        self.write_count = config.write_queue_count
        self.writable = config.writable
        self.queues: list[SendQueue | None] = [None] * config.queue_count


class SendRules:
    """The broker's part of every stored record and its limits; built once."""

    __slots__ = (
        "cluster",
        "message_size_max",
        "record_bytes_max",
        "region",
        "standard",
        "store_host",
        "tags",
        "trace",
    )

    def __init__(
        self,
        *,
        cluster: str,
        region: str,
        trace_on: bool,
        store_host: bytes,
        message_size_max: int,
        record_bytes_max: int,
    ) -> None:
        trace = "true" if trace_on else "false"
        self.region = f"MSG_REGION\x01{region}\x02".encode()
        self.trace = f"TRACE_ON\x01{trace}\x02".encode()
        self.cluster = f"CLUSTER\x01{cluster}\x02".encode()
        self.standard = self.region + self.trace + self.cluster
        self.store_host = store_host
        self.message_size_max = message_size_max
        self.record_bytes_max = record_bytes_max
        self.tags: dict[str, int] = {}  # tag string → hash; bounded by TAGS_CACHE_MAX


class ParsedSend:
    """One accepted send. `unique_key` is the client's message id, "" when a batch has none."""

    __slots__ = ("records", "size_bytes", "unique_key")

    def __init__(self, records: list[Record], size_bytes: int, unique_key: str) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self.unique_key = unique_key


def check_topic(topic: str) -> None:
    """Refuse topics clients may not send to."""
    if topic in NO_SEND_TOPICS:
        raise Refused(NO_PERMISSION, f"sending to topic [{topic}] is forbidden")


def v2_fields(ext: Mapping[str, str]) -> dict[str, str]:
    """SEND_MESSAGE's long names as V2's letters."""
    return {V2_NAMES[name]: value for name, value in ext.items() if name in V2_NAMES}


def stored_properties(text: str, rules: SendRules) -> tuple[bytes, str, int]:
    """The properties as stored, the message's UNIQ_KEY and its tags code.

    `text` is what the client sent. Raises Refused for what this broker would store wrongly.
    """
    if text and text[-1] != "\x02":
        text += "\x02"
    marked = "\x02" + text
    if "\x02DELAY\x01" in marked or "\x02T" in marked:
        tags = _tags_and_refusals(marked, rules)
    else:
        tags = 0
    at = marked.find("\x02UNIQ_KEY\x01")
    if at >= 0:
        unique_key = marked[at + 10 : marked.index("\x02", at + 10)]
        stored = text.encode()
    else:
        unique_key = uuid.uuid4().hex.upper()
        stored = f"{text}UNIQ_KEY\x01{unique_key}\x02".encode()
    region = "\x02MSG_REGION\x01" in marked
    trace = "\x02TRACE_ON\x01" in marked
    if not region and not trace and "\x02CLUSTER\x01" not in marked:
        return stored + rules.standard, unique_key, tags
    if not region:
        stored += rules.region
    if not trace:
        stored += rules.trace
    if "\x02CLUSTER\x01" not in marked:
        stored += rules.cluster
    return stored, unique_key, tags


def _tags_and_refusals(marked: str, rules: SendRules) -> int:
    """The tags code of properties in which some name may be TAGS, DELAY, TRAN_MSG or TIMER_*."""
    refused = _REFUSED_PROPERTY.search(marked)
    while refused is not None:
        name, value = refused[1], refused[2]
        if value not in ("", "0", "false"):
            raise Refused(
                MESSAGE_ILLEGAL,
                f"property {name}={value}: this broker does not offer "
                f"{'transactions' if name == 'TRAN_MSG' else 'delayed messages'} yet; "
                "the message was not stored",
            )
        refused = _REFUSED_PROPERTY.search(marked, refused.end())
    at = marked.rfind("TAGS\x01")
    if at < 0:
        return 0
    tags = marked[at + 5 : marked.index("\x02", at + 5)]
    code = rules.tags.get(tags)
    if code is None or marked[at - 1] != "\x02":
        if not tags or marked[at - 1] != "\x02":  # unusual: decide as store.dispatch does
            return tags_code(decode_properties(marked[1:]).get(TAGS))
        code = java_string_hash(tags)
        if len(rules.tags) >= TAGS_CACHE_MAX:
            rules.tags.clear()
        rules.tags[tags] = code
    return code


def parse_send(
    ext: Mapping[str, str],
    body: bytes,
    queue: SendQueue,
    topic: SendTopic,
    born_host: bytes,
    rules: SendRules,
    batch: bool,
) -> ParsedSend:
    """Build the records of one send to `queue`. Raises Refused.

    The caller has chosen the queue and checked the topic's permission.
    """
    try:
        sys_flag = int(ext["f"])
        born_ms = int(ext["g"])
        flag = int(ext["h"])
        reconsume = int(ext.get("j") or 0)
    except (KeyError, ValueError) as error:
        raise Refused(SYSTEM_ERROR, f"send header is malformed: {error!r}") from error
    if sys_flag & TRANSACTION_BITS:
        raise Refused(MESSAGE_ILLEGAL, "this broker does not offer transactions yet; not stored")
    if not (
        0 <= sys_flag <= INT32_MAX
        and -INT32_MAX - 1 <= flag <= INT32_MAX
        and 0 <= reconsume <= INT32_MAX
        and 0 <= born_ms <= 0x7FFFFFFFFFFFFFFF
    ):
        raise Refused(MESSAGE_ILLEGAL, "a number in the send header is out of range")
    length = len(body)
    if length > rules.message_size_max or not length:
        raise Refused(
            MESSAGE_ILLEGAL,
            f"the body is {length} bytes long, allowed are 1 to {rules.message_size_max}",
        )
    sys_flag &= ~(BORN_V6 | STORE_V6)
    if len(born_host) == 20:
        sys_flag |= BORN_V6
    if len(rules.store_host) == 20:
        sys_flag |= STORE_V6
    properties = ext.get("i") or ""
    fixed = (sys_flag, born_ms, born_host, reconsume)
    if batch:
        return _parse_batch(properties, body, queue, topic, fixed, rules)
    stored, unique_key, tags = stored_properties(properties, rules)
    record = _record(queue, topic, body, flag, fixed, stored, tags, rules)
    return ParsedSend([record], record[1], unique_key)


def _record(
    queue: SendQueue,
    topic: SendTopic,
    body: bytes,
    flag: int,
    fixed: tuple[int, int, bytes, int],
    stored: bytes,
    tags: int,
    rules: SendRules,
) -> Record:
    sys_flag, born_ms, born_host, reconsume = fixed
    properties_size = len(stored)
    if properties_size > PROPERTIES_SIZE_MAX:
        raise Refused(
            MESSAGE_ILLEGAL,
            f"the properties are {properties_size} bytes long as stored, "
            f"allowed are {PROPERTIES_SIZE_MAX}",
        )
    tail = topic.name_part + _INT16.pack(properties_size) + stored
    hosts = (len(born_host), len(rules.store_host))
    size = 72 + hosts[0] + hosts[1] + len(body) + len(tail)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    return (
        queue,
        size,
        HEADS[hosts],
        crc,
        flag,
        sys_flag,
        born_ms,
        born_host,
        reconsume,
        body,
        tail,
        tags,
    )


def _parse_batch(
    properties: str,
    body: bytes,
    queue: SendQueue,
    topic: SendTopic,
    fixed: tuple[int, int, bytes, int],
    rules: SendRules,
) -> ParsedSend:
    """The items of a SEND_BATCH_MESSAGE body (remoting-protocol 4.1), one record each."""
    records: list[Record] = []
    size_bytes = 0
    position = 0
    while position < len(body):
        try:
            total, _, _, flag, body_size = _BATCH_ITEM.unpack_from(body, position)
            body_end = position + _BATCH_ITEM.size + body_size
            (properties_size,) = _INT16.unpack_from(body, body_end)
        except struct.error:
            raise Refused(MESSAGE_ILLEGAL, f"batch item at {position} is cut short") from None
        end = body_end + 2 + properties_size
        if body_size <= 0 or properties_size < 0 or total != end - position or end > len(body):
            raise Refused(MESSAGE_ILLEGAL, f"batch item at {position} has wrong lengths")
        try:
            item_properties = body[body_end + 2 : end].decode()
        except UnicodeDecodeError:
            raise Refused(MESSAGE_ILLEGAL, f"batch item at {position}: not UTF-8") from None
        stored, _, tags = stored_properties(item_properties, rules)
        item_body = body[position + _BATCH_ITEM.size : body_end]
        record = _record(queue, topic, item_body, flag, fixed, stored, tags, rules)
        records.append(record)
        size_bytes += record[1]
        if size_bytes > rules.record_bytes_max:
            raise Refused(
                MESSAGE_ILLEGAL,
                f"the batch takes more than {rules.record_bytes_max} bytes as stored",
            )
        position = end
    at = ("\x02" + properties).find("\x02UNIQ_KEY\x01")
    unique_key = properties[at + 9 :].partition("\x02")[0] if at >= 0 else ""
    return ParsedSend(records, size_bytes, unique_key)
