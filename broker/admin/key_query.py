"""Finds messages by key (12), and gives the index time to keep up with the log.

The index follows the dispatched log at a distance (store.index.message_index); this module drives
it. A tick indexes what waits in steps of STEP_BYTES, and lets the loop run between two steps, each
of which takes about a tenth of a millisecond. Less than that waits until there is more of it, or
for STEP_INTERVAL_NS, because a step of few messages costs nearly as much as one of many. A tick
ends after BUSY_NS while messages come in, after IDLE_NS when none came since the last tick, and
after FORCED_NS once the index is BEHIND_BYTES_MAX behind. At full rate it needs half of BUSY_NS. So
the index never falls far behind, and a lookup, which first catches up, needs CATCH_UP_NS_MAX at
most. Only after a start that must rebuild the index from the log can it be further behind: then
lookups answer from what is indexed so far. Every replica does this for itself and answers lookups.

If writing the index fails, for example because the disk is full, it is tried again after RETRY_NS;
messages are stored and delivered meanwhile.

Where the log is damaged the index waits for the repair, which it asks for, but not for ever: after
REPAIR_NS_MAX, or at once where nothing repairs frames (classic mode, pysyncobj), it leaves out what
cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fair_scheduling import StepTurns
from raftmq.store.derived_files import DerivedFiles
from raftmq.store.errors import StoreDamaged, StoreError
from raftmq.store.index.message_index import STEP_BYTES, KeyQuery
from raftmq.store.record import MessageRecord, decode_record

from ..component import Service
from ..config import MIB, BrokerConfig
from ..errors import Refused
from ..scheduler import IDLE_MS, Chore

log = logging.getLogger("raftmq.broker.index")

MS = 1_000_000  # ns
INT64_MAX = (1 << 63) - 1
STEP_INTERVAL_NS = 1_000 * MS
BUSY_NS = 1 * MS  # of each housekeeping tick of 25 ms
IDLE_NS = 10 * MS
FORCED_NS = 8 * MS
BEHIND_BYTES_MAX = 256 * MIB  # of log
CATCH_UP_NS_MAX = 2_000 * MS  # below the 3 s that clients wait
RETRY_NS = 10_000 * MS
REPAIR_POLL_NS = 1_000 * MS
REPAIR_NS_MAX = 60_000 * MS  # waited for a peer's copy of a damaged frame; there may be none
NOT_FOUND = "can not find message, maybe time range not correct"  # as Apache's broker says it


@dataclass(frozen=True, slots=True)
class KeyWanted:
    """A query by key; times are store times."""

    topic: str
    key: str
    unique_key: bool  # the key is a UNIQ_KEY
    count_max: int
    begin_ms: int
    end_ms: int


class KeyQueries:
    """Drives the index and answers queries by key; the housekeeper calls `tick` on every tick."""

    def __init__(
        self,
        config: BrokerConfig,
        store: DerivedFiles,
        frame_is_damaged: Callable[[int], bool],
        clock_ns: Callable[[], int] = lambda: time.monotonic_ns(),
    ) -> None:
        self._config = config
        self._store = store
        self._frame_is_damaged = frame_is_damaged
        self._clock_ns = clock_ns
        self._turns = StepTurns()
        self._seen_offset = -1
        self._due_ns = 0  # when little is indexed, too
        self._resume_ns = 0
        self._damage_at = -1  # met there last
        self._give_up_ns = 0

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.QUERY_MESSAGE): self.query_message},
            chores=[Chore("index", 0, self.tick, self._rest_ms)],
        )

    async def tick(self) -> None:
        now_ns = self._clock_ns()
        if now_ns < self._resume_ns:
            return
        offset, left = self._store.dispatched_offset, self._behind_bytes
        budget_ns = BUSY_NS if offset != self._seen_offset else IDLE_NS
        if left > BEHIND_BYTES_MAX:
            budget_ns = max(budget_ns, FORCED_NS)
        self._seen_offset = offset
        enough = 1 if now_ns >= self._due_ns else STEP_BYTES
        while left >= enough:
            left = self._step()
            if left < enough or self._clock_ns() >= now_ns + budget_ns:
                break
            await asyncio.sleep(0)

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
        """Do one step; return how much is left to do, 0 if the disk refuses it."""
        try:
            left = self._step_or_wait()
        except (OSError, StoreError) as error:
            log.warning("index_refused retry_s=%d error=%r", RETRY_NS // (1000 * MS), error)
            self._resume_ns = self._clock_ns() + RETRY_NS
            return 0
        self._due_ns = self._clock_ns() + STEP_INTERVAL_NS
        return left

    def _step_or_wait(self) -> int:
        """Do one step; where the log is damaged, wait until it is repaired, or go on behind it."""
        store, now_ns = self._store, self._clock_ns()
        try:
            return store.index_step()
        except StoreDamaged as damage:
            if damage.position != self._damage_at:
                self._damage_at, self._give_up_ns = damage.position, now_ns + REPAIR_NS_MAX
            places = (store.indexed_offset, damage.position)
            if now_ns < self._give_up_ns and any(map(self._frame_is_damaged, places)):
                self._resume_ns = now_ns + REPAIR_POLL_NS
                return 0
            log.error("index_gap at=%d reason=%s", damage.position, damage.reason)
            store.pass_damage(damage.position)
            return self._behind_bytes

    async def catch_up(self) -> None:
        """Index what is dispatched by now, if that can be done in time; the loop runs in
        between."""
        wanted, until_ns = self._store.dispatched_offset, self._clock_ns() + CATCH_UP_NS_MAX
        while self._store.indexed_offset < wanted and self._clock_ns() >= self._resume_ns:
            if self._clock_ns() >= until_ns:
                log.warning("index_behind bytes=%d: a lookup may miss some", self._behind_bytes)
                return
            self._step()
            await asyncio.sleep(0)

    async def find(self, wanted: KeyWanted) -> KeyQuery:
        """Return the newest messages with a key, in the order of the log. A UNIQ_KEY has its own
        limit, as with Apache's broker. Raises Refused."""
        config = self._config
        count = config.default_query_max_num if wanted.unique_key else wanted.count_max
        await self.catch_up()
        try:
            return await self._turns.run(
                self._store.query(
                    wanted.topic,
                    wanted.key,
                    min(count, config.max_msgs_num_batch),
                    wanted.begin_ms,
                    wanted.end_ms,
                )
            )
        except (OSError, StoreError) as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the index cannot be read: {error}"
            ) from error

    async def newest(self, topic: str, unique_key: str) -> list[MessageRecord]:
        """Return the newest messages of a topic with this UNIQ_KEY or key. Raises Refused."""
        found = await self.find(KeyWanted(topic, unique_key, True, 0, 0, INT64_MAX))
        return [decode_record(data, check_body=False) for data in found.records]

    async def query_message(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_MESSAGE (12), on any replica. Only a leader says that there is none."""
        header = QueryMessageHeader.parse(request.ext)
        found = await self.find(
            KeyWanted(
                header.topic,
                header.key,
                header.unique_key,
                header.count_max,
                header.begin_timestamp_ms,
                header.end_timestamp_ms,
            )
        )
        ext = {
            "indexLastUpdateTimestamp": str(found.index_timestamp_ms),
            "indexLastUpdatePhyoffset": str(found.index_offset),
        }
        if not found.records:
            code = ResponseCode.QUERY_NOT_FOUND
            return RemotingCommand.response_to(request, code, NOT_FOUND, ext)
        return RemotingCommand.response_to(request, ext=ext, body=b"".join(found.records))
