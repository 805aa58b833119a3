"""`mqadmin compare`, which finds messages that exist on a single side.

Both sides are read by pulls, up to the ends of their queues at the start of each topic. A message
becomes a row of its identity, a checksum of its content, and its position. Rows are partitioned by
identity and spilled to a temporary directory. Memory holds at most HELD_BYTES_MAX per side, or a
partition per side, which is 1/256 of a topic.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.admin.bodies import TopicOffset
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.message import MessageExt, MessageQueue
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.definitions import is_own

from .command import Arguments, CommandError, Section, Table
from .targets import no_leader

OFFSET, KEY, BODY = "offset", "key", "body"
MISSING, DOUBLED, CHANGED, MORE = "missing", "doubled", "changed", "more"
PARTITIONS = 256
HELD_BYTES_MAX = 16 << 20
PULL_COUNT = 256
QUEUES_AT_ONCE = 16  # per side
TRIES_MAX = 5  # successive requests without progress in a queue
PAUSE_S = 0.5
SHOWN_MAX = 20  # differences per topic
_ROW = Struct("<QIIQ")
_ROWS = np.dtype([("identity", "<u8"), ("content", "<u4"), ("queue", "<u4"), ("offset", "<u8")])
Row = tuple[int, int, int, int]
Queues = dict[tuple[str, MessageQueue], TopicOffset]  # by address and queue

assert _ROW.size == _ROWS.itemsize == 24


@dataclass(frozen=True, slots=True)
class Side:
    """A side of the comparison and its brokers' addresses."""

    name: str
    addresses: Sequence[str]


@dataclass(slots=True)
class Rows:
    """The rows of a topic at a side, with the queues that they refer to by number."""

    directory: Path
    queues: list[tuple[str, MessageQueue]] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)  # by queue
    _partitions: list[bytearray] = field(
        default_factory=lambda: [bytearray() for _ in range(PARTITIONS)]
    )
    _held_bytes: int = 0

    def add(self, identity: int, content: int, queue: int, offset: int) -> None:
        """Add a message. Raises OSError."""
        self._partitions[identity % PARTITIONS] += _ROW.pack(identity, content, queue, offset)
        self.counts[queue] += 1
        self._held_bytes += _ROW.size
        if self._held_bytes >= HELD_BYTES_MAX:
            self._held_bytes = 0
            for number, partition in enumerate(self._partitions):
                with (self.directory / str(number)).open("ab") as file:
                    file.write(partition)
                partition.clear()

    def partition(self, number: int) -> np.ndarray:
        """Return the sorted rows of a partition. Raises OSError."""
        path = self.directory / str(number)
        stored = path.read_bytes() if path.exists() else b""
        rows = np.frombuffer(stored + self._partitions[number], _ROWS)
        return np.sort(rows, order=("identity", "content", "queue", "offset"))


async def compare(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    """Compare the messages of two clusters, groups or brokers, topic by topic."""
    info = await admin.cluster.info()
    sides = [_side(info, arguments.text(name)) for name in ("from", "to")]
    if sides[0].addresses == sides[1].addresses:
        raise CommandError("from and to are the same brokers", usage=True)
    topics = arguments.texts("topic") or await _topics(
        admin, sides[0], {*info.brokers, *info.clusters}
    )
    rows: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for topic in topics:
        with tempfile.TemporaryDirectory(prefix="mqadmin-compare-") as directory:
            by, read = await _read_both(admin, topic, sides, arguments.text("by"), Path(directory))
            result = Counter[str]()
            for number in range(PARTITIONS):
                for subject, side, row in differences(
                    read[0].partition(number), read[1].partition(number)
                ):
                    result[subject] += 1
                    if result.total() <= SHOWN_MAX:
                        address, queue = read[side].queues[row[2]]
                        shown.append(await _shown(admin, subject, address, queue, row[3]))
        totals = {
            name: item.counts.total() for name, item in zip(("from", "to"), read, strict=True)
        }
        kinds = {subject: result[subject] for subject in (MISSING, CHANGED, DOUBLED, MORE)}
        rows.append({"topic": topic, "by": by, **totals, **kinds})
        queues += _queue_rows(read)
    bad = sum(row[subject] for row in rows for subject in (MISSING, CHANGED, DOUBLED))
    columns = ("topic", "by", "from", "to", MISSING, CHANGED, DOUBLED, MORE)
    tables = [
        Table(queues, "queues", ("topic", "broker", "queue", "from", "to")),
        Table(rows, "topics", columns, complete=not bad),
    ]
    return [*tables, Table(shown, "differences")] if shown else tables


def differences(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[str, int, Row]]:
    """Yield the differences of two sorted sides as kind, side (0 or 1) and row."""
    if len(first) == len(second) and all(
        np.array_equal(first[name], second[name]) for name in ("identity", "content")
    ):
        return
    by_identity: dict[int, tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((first, second)):
        for row in rows.tolist():
            by_identity.setdefault(row[0], ([], []))[side].append(row)
    for old, new in by_identity.values():
        more = len(new) - len(old)
        if more < 0:
            yield from ((MISSING, 0, row) for row in old[more:])
        elif more > 0:
            yield from ((DOUBLED if old else MORE, 1, row) for row in new[-more:])
        elif [row[1] for row in old] != [row[1] for row in new]:
            yield CHANGED, 1, new[0]


def _side(info: ClusterInfo, name: str) -> Side:
    """Find brokers by cluster, broker group or address. Raises CommandError."""
    leaders = info.leaders
    groups = info.clusters.get(name) or ((name,) if name in info.brokers else ())
    if without := sorted(group for group in groups if group not in leaders):
        raise CommandError(no_leader(without))
    if not groups and ":" not in name:
        known = ", ".join(sorted({*info.clusters, *info.brokers})) or "none"
        raise CommandError(f"{name!r} is no broker's address, group or cluster; known: {known}")
    return Side(name, [leaders[group] for group in groups] or [name])


async def _topics(admin: Admin, side: Side, own: set[str]) -> list[str]:
    result: set[str] = set()
    for address in side.addresses:
        result |= (await admin.topic.configs(address)).keys()
    return sorted(topic for topic in result if not is_own(topic, own, derived=False))


async def _read_both(
    admin: Admin, topic: str, sides: Sequence[Side], by: str, directory: Path
) -> tuple[str, list[Rows]]:
    """Read a topic at both sides; also return the name of the common identity."""
    known = [await _queues(admin, topic, side) for side in sides]
    ends = [{queue: offset.max_offset for (_, queue), offset in item.items()} for item in known]
    by = by or (OFFSET if ends[0] == ends[1] else KEY)
    read = []
    for number, queues in enumerate(known):
        position = directory / str(number)
        position.mkdir()
        read.append(Rows(position, sorted(queues)))
    turns = [asyncio.Semaphore(QUEUES_AT_ONCE) for _ in sides]
    async with asyncio.TaskGroup() as group:
        for rows, queues, turn in zip(read, known, turns, strict=True):
            for number, item in enumerate(rows.queues):
                group.create_task(_read(admin, by, rows, number, queues[item], turn))
    return by, read


async def _queues(admin: Admin, topic: str, side: Side) -> Queues:
    result: Queues = {}
    for address in side.addresses:
        try:
            queues = await admin.topic.offsets_at(address, topic)
        except BrokerRefused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            continue
        result |= {(address, queue): offset for queue, offset in queues.items()}
    return result


async def _read(
    admin: Admin, by: str, rows: Rows, number: int, span: TopicOffset, turn: asyncio.Semaphore
) -> None:
    """Read a queue from start to end. Raises ClientError, CommandError."""
    address, queue = rows.queues[number]
    offset, tries, why = span.min_offset, 0, "nothing"
    async with turn:
        while offset < span.max_offset:
            result: list[MessageExt] = []
            following = offset
            try:
                result, following = await admin.message.pull_at(address, queue, offset, PULL_COUNT)
            except ClientError as error:
                why = error.message
            for message in result:
                if offset <= message.queue_offset < span.max_offset:
                    rows.add(*_identified(by, message), number, message.queue_offset)
            tries = 0 if following > offset else tries + 1
            offset = max(offset, following)
            if tries == TRIES_MAX:
                raise CommandError(f"{address}, queue {queue}, offset {offset}: {why}")
            if tries:
                await asyncio.sleep(PAUSE_S)


def _identified(by: str, message: MessageExt) -> tuple[int, int]:
    """Return a message's identity and the checksum of its content."""
    key = message.properties.get("UNIQ_KEY", "").encode()
    if by == OFFSET:
        position = f"{message.broker_name} {message.queue_id} {message.queue_offset}"
        return _digest(position.encode()), crc32(message.body, crc32(key))
    if by == KEY and key:
        return _digest(key), crc32(message.body)
    return _digest(message.body), 0


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())


async def _shown(
    admin: Admin, subject: str, address: str, queue: MessageQueue, offset: int
) -> dict[str, Any]:
    """Return a difference as a row, with the message's id if the message still exists."""
    result, _ = await admin.message.pull_at(address, queue, offset, 1)
    message_id = result[0].msg_id if result and result[0].queue_offset == offset else ""
    where = {"topic": queue.topic, "what": subject, "at": address, "queue": queue.queue_id}
    return {**where, "offset": offset, "msgId": message_id}


def _queue_rows(read: Sequence[Rows]) -> Iterator[dict[str, Any]]:
    counts: dict[MessageQueue, dict[str, int]] = {}
    for name, rows in zip(("from", "to"), read, strict=True):
        for number, (_, queue) in enumerate(rows.queues):
            of_queue = counts.setdefault(queue, {})
            of_queue[name] = of_queue.get(name, 0) + rows.counts[number]
    for queue, result in sorted(counts.items()):
        position = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        yield position | {name: result.get(name) for name in ("from", "to")}
