"""Message queries by key (12), of the newest and oldest in a topic, and bodies as text.

The index follows the dispatched log at a distance (store.index.message_index). `KeyQueries` drives
it. A tick indexes in steps of STEP_BYTES, half a millisecond each, and the loop runs between them.
Less than that waits up to STEP_INTERVAL_NS, because the first step of a tick has code and data out
of the processor's caches and costs twice the next. More does not wait: the replicas of a group have
the same amount at the same time, and their runs of several steps delayed sends. A tick ends after
BUSY_NS while messages arrive, after IDLE_NS otherwise, and after FORCED_NS once the index is
BEHIND_BYTES_MAX behind. A lookup first catches up, for CATCH_UP_NS_MAX at most; after a rebuild it
answers from the indexed part. Every replica has its own index.

A failed write of the index is retried after RETRY_NS. At damage in the log the index waits for the
repair, REPAIR_NS_MAX at most. It skips the damage at once where nothing repairs frames (classic
mode).

The queues of a topic are merged by their messages' positions in the log. The newest messages are
read from the queues' ends; a filter examines SCANNED_MAX messages at most. The oldest of a time
range are read from where the range starts. A partial answer names the position to continue at.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fair_scheduling import StepTurns
from raftmq.store.derived_files import DerivedFiles
from raftmq.store.errors import StoreDamaged, StoreError
from raftmq.store.index.message_index import STEP_BYTES, KeyQuery, preload
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import KEYS, TAGS, decode_properties
from raftmq.store.record import SYS_COMPRESSED, MessageRecord, decode_record

from ..component import Service
from ..config import MIB
from ..errors import Refused
from ..scheduler import IDLE_MS, Chore

log = logging.getLogger("raftmq.broker.index")

MS = 1_000_000  # ns
INT64_MAX = (1 << 63) - 1
STEP_INTERVAL_NS = 1_000 * MS
BUSY_NS = 4 * MS  # of each housekeeping tick of 25 ms
IDLE_NS = 10 * MS
FORCED_NS = 8 * MS
BEHIND_BYTES_MAX = 256 * MIB  # of log
UNIQUE_KEY_COUNT = 32  # messages per query by UNIQ_KEY, as at Apache's
CATCH_UP_NS_MAX = 2_000 * MS  # below the 3 s that clients wait
RETRY_NS = 10_000 * MS
REPAIR_POLL_NS = 1_000 * MS
REPAIR_NS_MAX = 60_000 * MS  # for a peer's copy of a damaged frame, which may not exist
NOT_FOUND = "can not find message, maybe time range not correct"  # Apache's text


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A query by key and store times."""

    topic: str
    key: str
    unique_key: bool  # the key is a UNIQ_KEY
    count_max: int
    start_ms: int
    end_ms: int


class KeyQueries:
    """Drives the index and answers queries by key. The scheduler calls `tick`."""

    def __init__(
        self,
        store: DerivedFiles,
        raft_log: RaftLog | None,
        clock_ns: Callable[[], int] = lambda: time.monotonic_ns(),
    ) -> None:
        """`raft_log` None: nothing repairs frames."""
        self._store = store
        self._raft_log = raft_log
        self._clock_ns = clock_ns
        self._turns = StepTurns()
        self._seen_offset = -1
        self._due_ns = 0  # for small steps
        self._resume_ns = 0
        self._damage_at = -1  # the last damage
        self._give_up_ns = 0
        self._preloaded = False

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.QUERY_MESSAGE): self.query_message},
            chores=[Chore("index", 0, self.tick, self._rest_ms)],
        )

    async def tick(self) -> None:
        await self._preload()
        now_ns = self._clock_ns()
        if now_ns < self._resume_ns:
            return
        offset, left = self._store.dispatched_offset, self._behind_bytes
        budget_ns = BUSY_NS if offset != self._seen_offset else IDLE_NS
        if left > BEHIND_BYTES_MAX:
            budget_ns = max(budget_ns, FORCED_NS)
        self._seen_offset = offset
        is_due = now_ns >= self._due_ns
        enough = 1 if is_due else STEP_BYTES
        while left >= enough:
            left = self._step()
            if left < enough or self._clock_ns() >= now_ns + budget_ns:
                break
            await asyncio.sleep(0)

    async def _preload(self) -> None:
        """Let a thread import numpy, once."""
        if not self._preloaded:
            await asyncio.to_thread(preload)
            self._preloaded = True

    def _rest_ms(self) -> float:
        left = self._behind_bytes
        if not left:
            return IDLE_MS
        due_ns = max(self._resume_ns, 0 if left >= STEP_BYTES else self._due_ns)
        return max(0, due_ns - self._clock_ns()) / MS

    @property
    def _behind_bytes(self) -> int:
        return self._store.dispatched_offset - self._store.indexed_offset

    def _step(self) -> int:
        """Do a step; return the remaining bytes, or 0 if the disk fails."""
        try:
            left = self._step_or_wait()
        except (OSError, StoreError) as error:
            log.warning("index_refused retry_s=%d error=%r", RETRY_NS // (1000 * MS), error)
            self._resume_ns = self._clock_ns() + RETRY_NS
            return 0
        self._due_ns = self._clock_ns() + STEP_INTERVAL_NS
        return left

    def _step_or_wait(self) -> int:
        store, now_ns = self._store, self._clock_ns()
        try:
            return store.index_step()
        except StoreDamaged as damage:
            if damage.position != self._damage_at:
                self._damage_at, self._give_up_ns = damage.position, now_ns + REPAIR_NS_MAX
            positions, raft_log = (store.indexed_offset, damage.position), self._raft_log
            if raft_log is not None and now_ns < self._give_up_ns:
                if any(map(raft_log.frame_is_damaged, positions)):
                    self._resume_ns = now_ns + REPAIR_POLL_NS
                    return 0
            log.error("index_gap at=%d reason=%s", damage.position, damage.reason)
            store.pass_damage(damage.position)
            return self._behind_bytes

    async def catch_up(self) -> None:
        """Index the dispatched log within the time limit; the loop runs in between."""
        target, until_ns = self._store.dispatched_offset, self._clock_ns() + CATCH_UP_NS_MAX
        await self._preload()
        while self._store.indexed_offset < target and self._clock_ns() >= self._resume_ns:
            if self._clock_ns() >= until_ns:
                log.warning("index_behind bytes=%d: a lookup may miss some", self._behind_bytes)
                return
            self._step()
            await asyncio.sleep(0)

    async def find(self, query: KeyFilter) -> KeyQuery:
        """Return the newest messages with a key, in the order of the log. A UNIQ_KEY has its own
        limit, as in Apache's broker. Raises Refused."""
        count = UNIQUE_KEY_COUNT if query.unique_key else query.count_max
        await self.catch_up()
        try:
            return await self._turns.run(
                self._store.query(
                    query.topic,
                    query.key,
                    count,
                    query.start_ms,
                    query.end_ms,
                )
            )
        except (OSError, StoreError) as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the index cannot be read: {error}"
            ) from error

    async def newest(self, topic: str, unique_key: str) -> list[MessageRecord]:
        """Return the newest messages of a topic with this UNIQ_KEY or key. Raises Refused."""
        result = await self.find(KeyFilter(topic, unique_key, True, 0, 0, INT64_MAX))
        return [decode_record(data, check_body=False) for data in result.records]

    async def query_message(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_MESSAGE (12), on any replica. Only a leader reports that there is none."""
        header = QueryMessageHeader.parse(request.ext)
        result = await self.find(
            KeyFilter(
                header.topic,
                header.key,
                header.unique_key,
                header.count_max,
                header.begin_timestamp_ms,
                header.end_timestamp_ms,
            )
        )
        ext = {
            "indexLastUpdateTimestamp": str(result.index_timestamp_ms),
            "indexLastUpdatePhyoffset": str(result.index_offset),
        }
        if not result.records:
            code = ResponseCode.QUERY_NOT_FOUND
            return RemotingCommand.response_to(request, code, NOT_FOUND, ext)
        return RemotingCommand.response_to(request, ext=ext, body=b"".join(result.records))


SCANNED_MAX = 2_000  # messages examined per request
SCANNED_BYTES_MAX = 16 * 1024 * 1024
RECORDS_PER_TURN = 32  # examined per turn of the loop


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter of messages, in which "" matches any. `property` is a name or name=value. `text` is
    a part of the body, in any case."""

    tag: str = ""
    key: str = ""
    property: str = ""
    text: str = ""

    def fits(self, record: MessageRecord) -> bool:
        if self.tag or self.key or self.property:
            properties = decode_properties(record.properties)
            if self.tag and properties.get(TAGS) != self.tag:
                return False
            if self.key and self.key not in properties.get(KEYS, "").split():
                return False
            name, equals, value = self.property.partition("=")
            if name and (name not in properties or (equals and properties[name] != value)):
                return False
        return not self.text or self.text.lower() in (text_of(record) or "").lower()


@dataclass(frozen=True, slots=True)
class Newest:
    """A page of (record, size in bytes), newest first. The search continues before the CommitLog
    offset `following`, None at its end. `scanned` counts the examined messages."""

    records: list[tuple[MessageRecord, int]]
    following: int | None
    scanned: int


class NewestMessages:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def find(
        self,
        topic: str,
        queue_count: int,
        message_filter: MessageFilter,
        *,
        limit: int,
        before: int | None = None,
        since_ms: int = 0,
    ) -> Newest:
        """Return up to `limit` matching messages below the CommitLog offset `before` (None for
        all), not stored before `since_ms`."""
        queues = [self._positions(topic, queue_id, before) for queue_id in range(queue_count)]
        records: list[tuple[MessageRecord, int]] = []
        scanned = size_bytes = 0
        following = before
        for position in heapq.merge(*queues, reverse=True):
            if len(records) >= limit or scanned >= SCANNED_MAX or size_bytes >= SCANNED_BYTES_MAX:
                return Newest(records, following, scanned)
            data = self._store.reads.message_at(position)
            if data is None:  # deleted by retention, with all older messages
                break
            record = decode_record(data)
            if record.store_timestamp_ms < since_ms:
                break
            following = position
            scanned += 1
            size_bytes += len(data)
            if message_filter.fits(record):
                records.append((record, len(data)))
            if scanned % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return Newest(records, None, scanned)

    def _positions(self, topic: str, queue_id: int, before: int | None) -> Iterator[int]:
        """Yield the CommitLog offsets below `before` of a queue's messages, the newest first."""
        queues = self._store.queues
        at = None
        while (queue := queues.queue(topic, queue_id)) is not None:
            if at is None:
                at = queue.max_offset
                if before is not None:
                    at = queue.first_at(lambda position, _: position >= before)
            if at <= queue.min_offset:
                return
            at -= 1
            yield queue.entry(at)[0]


SIZE_BYTES_MAX = 1024 * 1024  # of an answer; a single message may exceed it


@dataclass(frozen=True, slots=True)
class Oldest:
    """A page of (record, size in bytes), oldest first. The search continues at the CommitLog offset
    `following`, None at its end."""

    records: list[tuple[MessageRecord, int]]
    following: int | None


class OldestMessages:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def find(
        self,
        topic: str,
        queue_count: int,
        start_ms: int,
        end_ms: int,
        *,
        limit: int,
        start: int = 0,
    ) -> Oldest:
        """Return up to `limit` messages stored in the time range, from CommitLog offset `start`."""
        ended: set[int] = set()  # queues without a further message of the time range
        queues = []
        for queue_id in range(queue_count):
            queue = self._store.queues.queue(topic, queue_id)
            if queue is not None:
                first = self._store.reads.offset_by_time(topic, queue_id, start_ms)
                first = queue.first_at(lambda at, _: at >= start, first)
                queues.append(self._positions(topic, queue_id, first, ended))
                await asyncio.sleep(0)
        records: list[tuple[MessageRecord, int]] = []
        size_bytes = 0
        for position, queue_id in heapq.merge(*queues):
            data = self._store.reads.message_at(position)
            if data is None:  # deleted by retention; the next page starts again
                return Oldest(records, position)
            record = decode_record(data)
            if record.store_timestamp_ms > end_ms:
                ended.add(queue_id)
                continue
            size_bytes += len(data)
            if records and (len(records) >= limit or size_bytes > SIZE_BYTES_MAX):
                return Oldest(records, position)
            records.append((record, len(data)))
            if len(records) % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return Oldest(records, None)

    def _positions(
        self, topic: str, queue_id: int, at: int, ended: Set[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the CommitLog offsets of a queue's messages from `at` on, until it is `ended`."""
        queues = self._store.queues
        while queue_id not in ended and (queue := queues.queue(topic, queue_id)) is not None:
            if at >= queue.max_offset:
                return
            yield queue.entry(at)[0], queue_id
            at = max(at + 1, queue.min_offset)


INFLATED_BYTES_MAX = 1024 * 1024  # of text shown
_COMPRESSION_SHIFT, _COMPRESSION_MASK = 8, 7  # in sys_flag; 0 and 3: zlib


def text_of(record: MessageRecord) -> str | None:
    """Return the body as text, decompressed if its producer compressed it, or None."""
    body = record.body
    if record.sys_flag & SYS_COMPRESSED:
        kind = record.sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, INFLATED_BYTES_MAX) if kind in (0, 3) else b""
        except zlib.error:
            return None
        if kind not in (0, 3) or inflate.unconsumed_tail:
            return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
