"""Broker registration at name servers: headers of 103, 104, 322, 904 and the body of 103.

The body is JSON, or a zlib stream of (all integers int32, big-endian):

    size, DataVersion as JSON | topic count, per topic: size, "name readQ writeQ perm filter[ at]"
    | size, filter server list as JSON | 5.x only: count, per queue mapping: size, JSON

Our additions are in ext, which Apache's side ignores:
- `raftTerm`
- `raftRole` is leader, follower, or "none" without a known leader.
- `raftOwnId` is a leader's broker id as a follower.
- `raftGroupId` is in hex, or "none" while unknown; absent outside Raft groups.
- `topicDelta`="true" with `topicDeltaBase` means that the body has only topics changed since that
  DataVersion. A topic without read and write queues was deleted.
- `httpAddr` is the address of the broker's HTTP node API.

Pure, without I/O.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import orjson

from .errors import BodyError, HeaderError, RemotingError
from .fair_scheduling import Steps, finish
from .fast_json import loads_object
from .fields import Absent, Ext, parse_fields, text_or, write_fields
from .large_bodies import VALUE_BYTES_MAX, JsonWalk, inflating
from .names import address_problem, name_problem
from .topic_attributes import MESSAGE_TYPE

BODY_BYTES_MAX = 18 * 1024 * 1024  # the default, as JSON or decompressed, for 110,000 topics
TOPICS_MAX = 100_000  # the default, per registration
TOPICS_PER_STEP, STEP_BYTES = 32, 16 * 1024  # per step, some .3 ms
LINES_MAX, LINE_BYTES_MAX = 100_000, 256  # remembered between bodies
FILTER_SERVERS_MAX = 100
QUEUE_COUNT_MAX = 65_536  # as in our brokers
TERM_MAX = 1 << 48  # a Raft term beyond any real group's
BROKER_ID_MAX = (1 << 31) - 1
VERSION_BYTES_MAX = 1_024  # of a DataVersion, as JSON
HEAD_BYTES = 4_096  # of a body, enough for its version
REMOVED_MAX = 100  # ids in a registration
NO_GROUP_ID = "none"  # raftGroupId of a replica without a known group
NO_LEADER = "none"  # raftRole of a replica without a known leader
_INT32 = struct.Struct(">i")
GROUP_ID = re.compile("[0-9a-f]{32}")
_MESSAGE_TYPE = re.compile("[A-Z_]{1,32}")  # newer brokers may have further types
# The version in a JSON body. A topic named "dataVersion" does not match.
_VERSION_IN_JSON = re.compile(rb'"dataVersion":(\{[^{}]*"timestamp":\d+[^{}]*\})')


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topic table; unchanged if equal in all fields."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def as_fields(self) -> dict[str, int]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    def encode(self) -> bytes:
        return orjson.dumps(self.as_fields())

    @classmethod
    def from_fields(cls, fields: Any) -> DataVersion:
        """Parse a version; None (an old broker) is the empty version. Raises BodyError."""
        if fields is None:
            return cls()
        if not isinstance(fields, dict):
            raise BodyError("a data version is not an object")
        values = [fields.get(name) or 0 for name in ("counter", "stateVersion", "timestamp")]
        if any(type(value) is not int for value in values):
            raise BodyError(f"not a data version: {fields!r}")
        return cls(*values)

    @classmethod
    def decode(cls, data: bytes) -> DataVersion:
        """Decode a version; no bytes are the empty version. Raises BodyError."""
        if len(data) > VERSION_BYTES_MAX:
            raise BodyError(f"a data version of more than {VERSION_BYTES_MAX} bytes")
        return cls.from_fields(loads_object(data)) if data else cls()


class TopicConfig(NamedTuple):
    """A topic's configuration at its broker. perm bits: 4 read, 2 write, 1 inherit. `message_type`
    is the only attribute that name servers use; "" if absent."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    sys_flag: int = 0
    filter_type: str = "SINGLE_TAG"
    order: bool = False
    message_type: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        return {MESSAGE_TYPE: self.message_type} if self.message_type else {}

    def as_fields(self) -> dict[str, Any]:
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicFilterType": self.filter_type,
            "topicName": self.topic,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_count,
        }

    @classmethod
    def from_fields(cls, topic: str, fields: Any) -> TopicConfig:
        """Parse a topic's configuration. Raises BodyError."""
        if not isinstance(fields, dict):
            raise BodyError(f"topic config of {topic!r} is not an object")
        read, write = fields.get("readQueueNums", 16), fields.get("writeQueueNums", 16)
        perm, sys_flag = fields.get("perm", 6), fields.get("topicSysFlag") or 0
        if type(read) is not int or type(write) is not int:
            raise BodyError(f"topic config of {topic!r} has no queue counts")
        if type(perm) is not int or type(sys_flag) is not int:
            raise BodyError(f"topic config of {topic!r} has a perm or flag that is no number")
        kind = str(fields.get("topicFilterType") or "SINGLE_TAG")
        order, message_type = fields.get("order") is True, _message_type(fields.get("attributes"))
        return cls(topic, read, write, perm, sys_flag, kind, order, message_type)


def _message_type(attributes: Any) -> str:
    """Return the message type in attributes, or "" without a valid type."""
    kind = attributes.get(MESSAGE_TYPE) if isinstance(attributes, dict) else None
    return kind if isinstance(kind, str) and _MESSAGE_TYPE.fullmatch(kind) else ""


class RegisterBrokerHeader(NamedTuple):
    """103 REGISTER_BROKER."""

    broker_name: Annotated[str, "brokerName"]
    broker_address: Annotated[str, "brokerAddr"]
    cluster: Annotated[str, "clusterName"]
    ha_address: Annotated[str, "haServerAddr", Absent("")]
    broker_id: Annotated[int, "brokerId"]
    compressed: Annotated[bool, "compressed"] = False
    # CRC-32(body as sent) & 0x7fffffff; 0 is unchecked
    body_crc: Annotated[int, "bodyCrc32"] = 0
    heartbeat_timeout_ms: Annotated[int | None, "heartbeatTimeoutMillis"] = None
    raft_term: Annotated[int | None, "raftTerm"] = None
    raft_role: Annotated[str | None, "raftRole"] = None
    raft_group_id: Annotated[str | None, "raftGroupId"] = None
    raft_own_id: Annotated[int | None, "raftOwnId"] = None
    # Ids of Raft groups that were removed from the cluster, separated by commas
    removed_groups: Annotated[str | None, "removedGroups"] = None
    # None is unspecified (Apache's brokers)
    topic_delta: Annotated[bool | None, "topicDelta", Absent(None)] = False
    # `parse` and `to_ext` translate these two from their wire form.
    delta_base: DataVersion | None = None
    http_address: str = ""  # host:port of the node API, or ""

    @classmethod
    def parse(cls, ext: Ext) -> RegisterBrokerHeader:
        """Parse the header. Raises HeaderError, also for impossible values (`header_problem`)."""
        base = text_or(ext, "topicDeltaBase")
        version = DataVersion.decode(base.encode()) if base else None
        header = cls._make((*parse_fields(cls, ext), version, text_or(ext, "httpAddr")))
        if problem := header_problem(header):
            raise HeaderError(problem)
        return header

    @property
    def removed_ids(self) -> tuple[str, ...]:
        return tuple(self.removed_groups.split(",")) if self.removed_groups else ()

    def to_ext(self) -> dict[str, str]:
        ext = write_fields(self)
        if self.delta_base is not None:
            ext["topicDeltaBase"] = self.delta_base.encode().decode()
        if self.http_address:
            ext["httpAddr"] = self.http_address
        return ext


class BrokerHeader(NamedTuple):
    """A broker's identity, for 104 (unregister), 322 (data version), 904 (heartbeat)."""

    broker_name: Annotated[str, "brokerName"]
    broker_address: Annotated[str, "brokerAddr"]
    cluster: Annotated[str, "clusterName"]
    broker_id: Annotated[int, "brokerId", Absent(0)]
    # 904 only, with the wire's spelling ...TimeoutMills
    heartbeat_timeout_ms: Annotated[int | None, "heartbeatTimeoutMills"] = None

    @classmethod
    def parse(cls, ext: Ext) -> BrokerHeader:
        """Parse the header. Raises HeaderError."""
        header = cls._make(parse_fields(cls, ext))
        problem = (
            name_problem("brokerName", header.broker_name)
            or name_problem("clusterName", header.cluster)
            or address_problem("brokerAddr", header.broker_address)
        )
        if problem:
            raise HeaderError(problem)
        return header

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


def header_problem(header: RegisterBrokerHeader) -> str:
    """Return why this registration is impossible, or ''."""
    term, http_address = header.raft_term, header.http_address.removeprefix("https://")
    if term is not None and not 0 <= term <= TERM_MAX:
        return f"raftTerm {term} is not in 0..{TERM_MAX}"
    group_id = header.raft_group_id
    if group_id not in (None, NO_GROUP_ID) and not GROUP_ID.fullmatch(group_id):
        return "raftGroupId is no id of a group"
    if not 0 <= header.broker_id <= BROKER_ID_MAX:
        return f"brokerId {header.broker_id} is not in 0..{BROKER_ID_MAX}"
    if not 0 <= (header.raft_own_id or 0) <= BROKER_ID_MAX:
        return f"raftOwnId {header.raft_own_id} is not in 0..{BROKER_ID_MAX}"
    removed = header.removed_ids
    if len(removed) > REMOVED_MAX or not all(map(GROUP_ID.fullmatch, removed)):
        return f"removedGroups is no list of up to {REMOVED_MAX} ids of groups"
    return (
        name_problem("brokerName", header.broker_name)
        or name_problem("clusterName", header.cluster)
        or address_problem("brokerAddr", header.broker_address)
        or (header.ha_address and address_problem("haServerAddr", header.ha_address))
        or (http_address and address_problem("httpAddr", http_address))
        or (header.raft_role and name_problem("raftRole", header.raft_role))
        or ""
    )


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a registration's body. `bytes_max` is for JSON or decompressed bytes."""

    bytes_max: int = BODY_BYTES_MAX
    topics_max: int = TOPICS_MAX

    def checked(self, body: bytes) -> bytes:
        """Return the body. Raises BodyError if it is too large as it is."""
        if len(body) > self.bytes_max:
            raise self.passed(f"one has {len(body)}")
        return body

    def passed(self, how: str) -> BodyError:
        return BodyError(
            f"[TOO_LARGE] a registration has at most {self.bytes_max} bytes"
            f" (registrationBytesMax), {how}"
        )


class KnownLines:
    """Parsed and valid lines of bodies, as long as any user needs them. Above LINES_MAX and
    LINE_BYTES_MAX lines are parsed again."""

    def __init__(self) -> None:
        self.known: dict[bytes, TopicConfig] = {}
        self._users = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.known.clear()

    def add(self, line: bytes, topic: TopicConfig) -> None:
        if self._users and len(line) <= LINE_BYTES_MAX and len(self.known) < LINES_MAX:
            self.known[line] = topic


def topic_problem(topic: TopicConfig) -> str:
    problem = name_problem("topic name", topic.topic)
    if problem:
        return problem
    for count in (topic.read_queue_count, topic.write_queue_count):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            return f"topic {topic.topic}: queue count {count} is not in 0..{QUEUE_COUNT_MAX}"
    if not 0 <= topic.perm <= 15 or not -(1 << 31) <= topic.sys_flag < 1 << 31:
        return f"topic {topic.topic}: perm {topic.perm} or flags {topic.sys_flag} out of range"
    return ""


def body_crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_register_body(
    version: DataVersion, topics: Iterable[TopicConfig], compressed: bool = True
) -> bytes:
    """Encode the body of 103. 100,000 topics are about a compressed megabyte."""
    if not compressed:
        table = {topic.topic: topic.as_fields() for topic in topics}
        wrapper = {"dataVersion": version.as_fields(), "topicConfigTable": table}
        return orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    lines = [
        f"{t.topic} {t.read_queue_count} {t.write_queue_count} {t.perm} {t.filter_type}".encode()
        + (b" " + orjson.dumps(t.attributes) if t.message_type else b"")
        for t in topics
    ]
    parts = [_sized(version.encode()), _INT32.pack(len(lines))]
    parts += [_sized(line) for line in lines]
    parts += [_sized(b"[]"), _INT32.pack(0)]
    return zlib.compress(b"".join(parts), 6)  # Apache's 9 is far slower and saves nothing


def decode_register_body(
    body: bytes, compressed: bool, limits: BodyLimits | None = None
) -> tuple[DataVersion, list[TopicConfig]]:
    """Decode a 103 body of either form into (version, topics). Raises BodyError."""
    return finish(reading_register_body(body, compressed, limits or BodyLimits()))


def reading_register_body(
    body: bytes, compressed: bool, limits: BodyLimits, lines: KnownLines | None = None
) -> Steps[tuple[DataVersion, list[TopicConfig]]]:
    """Decode a 103 body of either form in steps into (version, topics), and check every topic.
    `lines` has the lines of earlier bodies. Raises BodyError."""
    if not body:
        return DataVersion(), []
    if not compressed:
        return (yield from _reading_json(limits.checked(body), limits.topics_max))
    data = yield from inflating(limits.checked(body), limits.bytes_max, "registration")
    if data is None:
        raise limits.passed(f"one of {len(body)} bytes unpacks to more")
    return (yield from _reading_compressed(data, limits.topics_max, lines or KnownLines()))


def _reading_json(body: bytes, topics_max: int) -> Steps[tuple[DataVersion, list[TopicConfig]]]:
    walk = JsonWalk(body, "registration")
    version: DataVersion | None = None
    topics: dict[str, TopicConfig] | None = None
    for name in walk.names():
        if name == "topicConfigSerializeWrapper":
            topics = {}
            for part in walk.names():
                if part == "dataVersion":
                    version = DataVersion.from_fields(walk.value())
                elif part == "topicConfigTable":
                    yield from _reading_topics(walk, topics, topics_max)
                else:
                    yield from walk.skipping()
        elif name == "filterServerList":
            _check_filter_servers(walk.value())
        else:
            yield from walk.skipping()
    walk.end()
    if topics is None:
        raise BodyError("no topicConfigSerializeWrapper in the registration")
    return version or DataVersion(), list(topics.values())


def _reading_topics(walk: JsonWalk, topics: dict[str, TopicConfig], topics_max: int) -> Steps[None]:
    stepped = walk.position
    for name in walk.names():
        topic = TopicConfig.from_fields(name, walk.value())
        if problem := topic_problem(topic):
            raise BodyError(problem)
        topics[name] = topic
        if len(topics) % TOPICS_PER_STEP == 0 or walk.position - stepped > STEP_BYTES:
            _check_topic_count(len(topics), topics_max)
            stepped = walk.position
            yield
    _check_topic_count(len(topics), topics_max)


def _check_topic_count(count: int, topics_max: int) -> None:
    if not 0 <= count <= topics_max:
        raise BodyError(f"[TOO_LARGE] {count} topics in one registration: {topics_max} at most")


def _check_filter_servers(servers: Any) -> None:
    """Reject an invalid list of filter servers, which is otherwise unused."""
    if servers is None:
        return
    if not isinstance(servers, list) or len(servers) > FILTER_SERVERS_MAX:
        raise BodyError(f"filterServerList is no list of at most {FILTER_SERVERS_MAX}")
    for server in servers:
        if not isinstance(server, str) or address_problem("filter server", server):
            raise BodyError("filterServerList has something else than addresses in it")


def decode_queue_datas(body: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Return the queues of a TopicRouteData (217) by broker name, as read count, write count, perm,
    flag. Raises BodyError."""
    queue_datas: dict[str, tuple[int, int, int, int]] = {}
    datas = loads_object(body).get("queueDatas") or []
    if not isinstance(datas, list):
        raise BodyError("queueDatas is no list")
    for data in datas:
        if not isinstance(data, dict) or not isinstance(data.get("brokerName"), str):
            raise BodyError(f"not a queueData: {data!r}")
        sys_flag = data.get("topicSysFlag", data.get("topicSynFlag", 0))
        numbers: list[int] = []
        for number in (data.get("readQueueNums"), data.get("writeQueueNums"), data.get("perm")):
            if not isinstance(number, int) or number < 0:
                raise BodyError(f"a queueData without numbers: {data!r}")
            numbers.append(number)
        if not isinstance(sys_flag, int):
            raise BodyError(f"a queueData whose flags are no number: {data!r}")
        queue_datas[data["brokerName"]] = (numbers[0], numbers[1], numbers[2], sys_flag)
    return queue_datas


def peek_data_version(body: bytes, compressed: bool) -> DataVersion | None:
    """Return a 103 body's version without its topics, or None. Makes repeated registrations of a
    large unchanged table cheap."""
    try:
        if compressed:
            head = zlib.decompressobj().decompress(body[:HEAD_BYTES], VERSION_BYTES_MAX)
            (size,) = _INT32.unpack_from(head)
            if not 0 < size <= VERSION_BYTES_MAX - _INT32.size:
                return None
            return DataVersion.decode(head[4 : 4 + size])
        versions = _VERSION_IN_JSON.findall(body, 0, HEAD_BYTES)
        return DataVersion.decode(versions[0]) if len(versions) == 1 else None
    except (zlib.error, struct.error, RemotingError):
        return None  # decoding the whole body reports the error


def _sized(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _reading_compressed(
    data: bytearray, topics_max: int, lines: KnownLines
) -> Steps[tuple[DataVersion, list[TopicConfig]]]:
    try:
        text_of_version, position = _next(data, 0)
        version = DataVersion.decode(bytes(text_of_version))
        (count,) = _INT32.unpack_from(data, position)
        _check_topic_count(count, topics_max)
        position += _INT32.size
        topics: dict[str, TopicConfig] = {}
        stepped = position
        for number in range(count):
            text_of_topic, position = _next(data, position)
            line = bytes(text_of_topic)
            topic = lines.known.get(line)
            if topic is None:
                topic = _topic_of_text(line.decode())
                if problem := topic_problem(topic):
                    raise BodyError(problem)
                lines.add(line, topic)
            if topic.topic in topics:
                raise BodyError(f"topic {topic.topic[:100]!r} is in the registration twice")
            topics[topic.topic] = topic
            if number % TOPICS_PER_STEP == 0 or position - stepped > STEP_BYTES:
                stepped = position
                yield
        if position < len(data):
            text_of_list, position = _next(data, position)
            _check_filter_servers(orjson.loads(text_of_list) if text_of_list else None)
    except (struct.error, UnicodeDecodeError, orjson.JSONDecodeError) as error:
        raise BodyError(f"registration is damaged: {error}") from error
    return version, list(topics.values())  # queue mappings are unused here


def _next(data: bytearray, position: int) -> tuple[bytearray, int]:
    """Return the sized item at `position`, and the next position."""
    (size,) = _INT32.unpack_from(data, position)
    start = position + _INT32.size
    if size < 0 or start + size > len(data):
        raise BodyError("a size in the registration points outside of it")
    if size > VALUE_BYTES_MAX:
        raise BodyError(f"a value in the registration has more than {VALUE_BYTES_MAX} bytes")
    return data[start : start + size], start + size


def _topic_of_text(line: str) -> TopicConfig:
    parts = line.split(" ", 5)  # a sixth field is the attributes, JSON with blanks
    if len(parts) < 4:
        raise BodyError(f"not a topic config: {line[:100]!r}")
    try:
        read, write, perm = int(parts[1]), int(parts[2]), int(parts[3])
    except ValueError as error:
        raise BodyError(f"not a topic config: {line[:100]!r}") from error
    kind = parts[4] if len(parts) > 4 else "SINGLE_TAG"
    message_type = ""
    if len(parts) > 5 and MESSAGE_TYPE in parts[5]:
        message_type = _message_type(loads_object(parts[5].encode()))
    return TopicConfig(parts[0], read, write, perm, 0, kind, message_type=message_type)
