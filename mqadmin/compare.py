"""`mqadmin compare`, which finds messages that exist on a single side.

Both sides are read by pulls, up to the ends of their queues at the start of each topic. A message
becomes a row of its identity, a checksum of its content, and its position, in a temporary SQLite
database on disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any
from zlib import crc32

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
PULL_COUNT = 256
QUEUES_AT_ONCE = 16  # per side
TRIES_MAX = 5  # successive requests without progress in a queue
PAUSE_S = 0.5
SHOWN_MAX = 20  # differences per topic
Row = tuple[int, int, int]  # content, queue, offset
Queues = dict[tuple[str, MessageQueue], TopicOffset]  # by address and queue


@dataclass(frozen=True, slots=True)
class Side:
    """A side of the comparison and its brokers' addresses."""

    name: str
    addresses: Sequence[str]


class Rows:
    """The messages of a topic at both sides (0 and 1), as rows of a temporary database. Each side
    has the queues that its rows refer to by number."""

    def __init__(self, queues: Sequence[Sequence[tuple[str, MessageQueue]]]) -> None:
        self.queues = queues
        self.counts = [Counter[int](), Counter[int]()]  # by side and queue
        self._rows = sqlite3.connect("")  # a file of its own, and 2 MB of memory
        self._rows.execute("CREATE TABLE rows (identity, side, content, queue, offset)")

    def close(self) -> None:
        self._rows.close()

    def add(self, side: int, queue: int, by: str, messages: Sequence[MessageExt]) -> None:
        """Add messages. Raises CommandError for a full disk."""
        self.counts[side][queue] += len(messages)
        rows = [(*_identified(by, m), side, queue, m.queue_offset) for m in messages]
        columns = "rows (identity, content, side, queue, offset)"
        try:
            self._rows.executemany(f"INSERT INTO {columns} VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise CommandError(f"messages cannot be kept for the comparison: {error}") from error

    def differences(self) -> Iterator[tuple[str, int, Row]]:
        """Yield the differences as kind, side and (content, queue, offset)."""
        unequal = self._rows.execute(
            "SELECT identity, side, content, queue, offset FROM rows WHERE identity IN ("
            "  SELECT identity FROM rows GROUP BY identity"
            "  HAVING sum(side) * 2 != count(*) OR sum(iif(side, content, -content)) != 0)"
            " ORDER BY identity, side, content, queue, offset"
        )
        for _, group in groupby(unequal, itemgetter(0)):
            both: tuple[list[Row], list[Row]] = ([], [])
            for _, side, *row in group:
                both[side].append((row[0], row[1], row[2]))
            old, new = both
            more = len(new) - len(old)
            if more < 0:
                yield from ((MISSING, 0, row) for row in old[more:])
            elif more > 0:
                yield from ((DOUBLED if old else MORE, 1, row) for row in new[-more:])
            else:
                yield CHANGED, 1, new[0]


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
        known = [await queues_at(admin, topic, side) for side in sides]
        with closing(Rows([sorted(queues) for queues in known])) as read:
            by = await read_both(admin, known, arguments.text("by"), read)
            result = Counter[str]()
            for subject, side, (_, number, offset) in read.differences():
                result[subject] += 1
                if result.total() <= SHOWN_MAX:
                    address, queue = read.queues[side][number]
                    shown.append(await _shown(admin, subject, address, queue, offset))
        totals = {name: read.counts[side].total() for side, name in enumerate(("from", "to"))}
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


async def read_both(admin: Admin, known: Sequence[Queues], by: str, rows: Rows) -> str:
    """Read a topic at both sides; return the name of the common identity."""
    ends = [{queue: offset.max_offset for (_, queue), offset in item.items()} for item in known]
    by = by or (OFFSET if ends[0] == ends[1] else KEY)
    async with asyncio.TaskGroup() as group:
        for side, queues in enumerate(known):
            turn = asyncio.Semaphore(QUEUES_AT_ONCE)
            for number, item in enumerate(rows.queues[side]):
                group.create_task(_read(admin, by, rows, (side, number), queues[item], turn))
    return by


async def queues_at(admin: Admin, topic: str, side: Side) -> Queues:
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
    admin: Admin,
    by: str,
    rows: Rows,
    numbers: tuple[int, int],
    span: TopicOffset,
    turn: asyncio.Semaphore,
) -> None:
    """Read a queue (side and number) from start to end. Raises ClientError, CommandError."""
    side, number = numbers
    address, queue = rows.queues[side][number]
    offset, tries, why = span.min_offset, 0, "nothing"
    async with turn:
        while offset < span.max_offset:
            result: list[MessageExt] = []
            following = offset
            try:
                result, following = await admin.message.pull_at(address, queue, offset, PULL_COUNT)
            except ClientError as error:
                why = error.message
            inside = [m for m in result if offset <= m.queue_offset < span.max_offset]
            rows.add(side, number, by, inside)
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
    return int.from_bytes(blake2b(data, digest_size=8).digest(), signed=True)


async def _shown(
    admin: Admin, subject: str, address: str, queue: MessageQueue, offset: int
) -> dict[str, Any]:
    """Return a difference as a row, with the message's id if the message still exists."""
    result, _ = await admin.message.pull_at(address, queue, offset, 1)
    message_id = result[0].msg_id if result and result[0].queue_offset == offset else ""
    where = {"topic": queue.topic, "what": subject, "at": address, "queue": queue.queue_id}
    return {**where, "offset": offset, "msgId": message_id}


def _queue_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    counts: dict[MessageQueue, dict[str, int]] = {}
    for side, name in enumerate(("from", "to")):
        for number, (_, queue) in enumerate(rows.queues[side]):
            of_queue = counts.setdefault(queue, {})
            of_queue[name] = of_queue.get(name, 0) + rows.counts[side][number]
    for queue, result in sorted(counts.items()):
        position = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        yield position | {name: result.get(name) for name in ("from", "to")}
