"""Compares acknowledgements with the messages at their places in running brokers.

An acknowledgement has broker, queue and queue offset, so no join is needed: a task reads those
ranges of the queues and compares id and body. A task gets the messages of a range of the audit
topic, a table in Parquet, or acknowledgements that could not be judged before.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.client.errors import ClientError
from raftmq.remoting.errors import RemotingError
from raftmq.spark.cluster import Cluster
from raftmq.spark.errors import DataLost
from raftmq.spark.offset_ranges import Queue, QueueRange
from raftmq.spark.options import Connection, options_of, read_options
from raftmq.spark.source import BatchReader, Partition

from ..read.history import CRC_BITS
from .consumed import Unconsumed

GAP_MAX = 256  # unacknowledged messages that are read over, rather than in a request of their own
TABLE_ROWS = 100_000  # of a table, judged at a time
MISSING, ALTERED, LATE, UNREAD, UNCONSUMED = KINDS = (
    *("missing", "altered", "late", "unread", "unconsumed"),
)
ABSENT = "its queue ends before it, or lacks it"


class Acknowledged(NamedTuple):
    """A message whose send was acknowledged. `first_seen_ms` is 0 before it is judged."""

    msg_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    body_crc: int | None = None
    time_ms: int | None = None
    first_seen_ms: int = 0
    late: bool = False  # and reported as late

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.broker, self.queue_id)


class Finding(NamedTuple):
    """A message that is not as acknowledged, a queue that is not consumed, or with UNREAD
    acknowledgements that are lost."""

    kind: str
    what: str  # a reason in words
    about: Acknowledged | Unconsumed | None = None


@dataclass(slots=True)
class Judgement:
    """What a task found. `waiting` are messages that cannot be judged yet, with the reason."""

    judged: int = 0
    removed: int = 0  # before the first offset of their queues
    unplaced: int = 0  # rows of a table without broker, queue or offset
    findings: list[Finding] = field(default_factory=list)
    waiting: list[tuple[Acknowledged, str]] = field(default_factory=list)

    def add(self, other: Judgement) -> None:
        self.judged += other.judged
        self.removed += other.removed
        self.unplaced += other.unplaced
        self.findings += other.findings
        self.waiting += other.waiting


_Index = Annotated[int, msgspec.Meta(ge=0)]


class _Columns(msgspec.Struct):
    """A message of the audit topic (client.producer.audit_topic)."""

    msg_id: list[str]
    topic: list[str]
    broker: list[str]
    queue_id: list[_Index]
    queue_offset: list[_Index]
    body_crc: list[int | None] | None = None
    time_ms: list[int | None] | None = None


_COLUMNS = msgspec.json.Decoder(_Columns)
_NEEDED = 5  # the first columns


def acknowledged_in(body: bytes) -> list[Acknowledged]:
    """Decode a message of the audit topic. Raises ValueError."""
    columns = msgspec.structs.astuple(_COLUMNS.decode(body))
    nothing = [None] * len(columns[0])
    return [
        Acknowledged(*row)
        for row in zip(*(nothing if each is None else each for each in columns), strict=True)
    ]


class Reader:
    """Reads ranges of queues, also damaged ones. Raises DataLost only if `strict`."""

    def __init__(self, connection: Connection, columns: Sequence[str], *, strict: bool) -> None:
        given = {"topic": "any", "columns": ",".join(columns), "onDamage": "null"}
        given |= {"failOnDataLoss": str(strict).lower()}
        self._reader = BatchReader(read_options(options_of(connection) | given, streaming=False))

    def rows(self, ranges: Iterable[QueueRange]) -> Iterator[tuple[Any, ...]]:
        """Yield columns in the order of the format's. Raises ClientError, DataLost."""
        for batch in self._reader.read(Partition(tuple(ranges))):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


Part = Partition | str | list[Acknowledged]


@dataclass(frozen=True)
class Judge:
    """Runs in a task, with ranges of the audit topic, the path of a table, or acknowledgements."""

    connection: Connection

    def __call__(self, part: Part) -> Judgement:
        result = Judgement()
        if isinstance(part, list):
            self._judge(part, result)
        elif isinstance(part, str):
            try:
                for some in _in_table(part, result):
                    self._judge(some, result)
            except (OSError, pa.ArrowException) as error:
                result.findings.append(Finding(UNREAD, f"{part}: {error}"))
        else:
            self._judge(self._in_topic(part, result), result)
        return result

    def _in_topic(self, part: Partition, result: Judgement) -> list[Acknowledged]:
        columns = ("topic", "broker", "queue_id", "queue_offset", "body", "damage")
        strict = Reader(self.connection, columns, strict=True)
        try:
            messages = list(strict.rows(part.ranges))
        except DataLost as error:
            result.findings.append(Finding(UNREAD, str(error)))
            messages = list(Reader(self.connection, columns, strict=False).rows(part.ranges))
        acknowledged: list[Acknowledged] = []
        for topic, broker, queue_id, offset, body, damage in messages:
            try:
                if damage is not None:
                    raise ValueError(damage)
                acknowledged += acknowledged_in(body)
            except ValueError as error:
                what = f"{topic} {broker} queue {queue_id} offset {offset}: {error}"
                result.findings.append(Finding(UNREAD, what))
        return acknowledged

    def _judge(self, acknowledged: Sequence[Acknowledged], result: Judgement) -> None:
        groups: dict[str, list[Acknowledged]] = defaultdict(list)
        for each in acknowledged:
            groups[each.broker].append(each)
        for messages in groups.values():
            part = Judgement()
            try:
                self._judge_group(messages, part)
            except (ClientError, RemotingError) as error:  # nothing of this group is known
                part = Judgement(waiting=[(each, str(error)) for each in messages])
            result.add(part)

    def _judge_group(self, messages: Sequence[Acknowledged], result: Judgement) -> None:
        """Judge the messages of a broker group. Raises ClientError, RemotingError."""
        queues = {each.queue for each in messages}
        with Cluster(self.connection) as cluster:
            there = queues & set(cluster.queues({q.topic for q in queues}, all_exist=False))
            low, high = cluster.earliest(sorted(there)), cluster.latest(sorted(there))
        readable: list[Acknowledged] = []
        for each in messages:
            queue = each.queue
            if queue not in there:
                result.waiting.append((each, "no name server has a route to its queue"))
            elif each.queue_offset >= high[queue]:
                result.waiting.append((each, ABSENT))
            elif each.queue_offset < low[queue]:
                result.removed += 1
            else:
                readable.append(each)
        columns = ("topic", "broker", "queue_id", "queue_offset", "msg_id", "body", "damage")
        reader = Reader(self.connection, columns, strict=False)
        stored = {
            row[:4]: (row[4], None if row[5] is None else zlib.crc32(row[5]), row[6])
            for row in reader.rows(ranges_of(readable))
        }
        for each in readable:
            message = stored.get((*each.queue, each.queue_offset))
            if message is None:
                result.waiting.append((each, ABSENT))
                continue
            result.judged += 1
            if finding := compared(each, *message):
                result.findings.append(finding)


def _in_table(path: str, result: Judgement) -> Iterator[list[Acknowledged]]:
    """Yield the rows of a table. Raises OSError, ArrowException."""
    names = Acknowledged._fields[: _NEEDED + 2]
    with pq.ParquetFile(path) as table:
        known = set(table.schema_arrow.names)
        if missing := set(names[:_NEEDED]) - known:
            result.findings.append(Finding(UNREAD, f"{path} has no column {min(missing)}"))
            return
        for batch in table.iter_batches(TABLE_ROWS, columns=[n for n in names if n in known]):
            rows = batch.to_pylist()
            placed = [row for row in rows if None not in [row[n] for n in names[:_NEEDED]]]
            result.unplaced += len(rows) - len(placed)
            yield [Acknowledged(**row) for row in placed]


def compared(
    message: Acknowledged, msg_id: str | None, crc: int | None, damage: str | None
) -> Finding | None:
    """Return what is wrong with the message stored at an acknowledged place, or None."""
    if damage is not None:
        return Finding(ALTERED, damage, message)
    if msg_id != message.msg_id:
        return Finding(MISSING, f"message {msg_id} is stored at its place", message)
    if message.body_crc is None or crc is None or not (crc ^ message.body_crc) & CRC_BITS:
        return None
    return Finding(ALTERED, f"the stored body has the CRC {crc}", message)


def ranges_of(messages: Iterable[Acknowledged]) -> list[QueueRange]:
    """Return the ranges of the queues that have these messages, without large gaps."""
    offsets: dict[Queue, set[int]] = defaultdict(set)
    for each in messages:
        offsets[each.queue].add(each.queue_offset)
    ranges: list[QueueRange] = []
    for queue, some in sorted(offsets.items()):
        ordered = sorted(some)
        start = last = ordered[0]
        for offset in ordered[1:]:
            if offset - last > GAP_MAX:
                ranges.append(QueueRange(queue, start, last + 1))
                start = offset
            last = offset
        ranges.append(QueueRange(queue, start, last + 1))
    return ranges
