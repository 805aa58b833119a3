"""The history of a broker's figures, sampled every `historyPeriodMs`.

Every replica samples, and figures of topics and groups are replicated, so a history outlives its
leader. A sample reads the first QUEUES_MAX queues on the loop. It has at most SERIES_MAX topics and
as many pairs of group and topic, those with the most new messages. Files are accessed in a thread.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import orjson

from ..context import Context
from ..scheduler import Chore
from ..tables.topics import SYSTEM_TOPICS
from .ring import Ring
from .samples import Sample, Span

T = TypeVar("T")
log = logging.getLogger("raftmq.broker.history")

BYTES_MAX = 32 << 20  # of the ring, for days, or some ten hours with hundreds of topics and groups
QUEUES_MAX = 5_000  # read for a sample in two milliseconds of the loop
SERIES_MAX = 200
LATE_PERIODS = 3  # in periods; older samples do not count for a time


class History:
    """A broker's figures over time."""

    def __init__(
        self,
        context: Context,
        pool: Executor,
        *,
        in_count: Callable[[], int],
        out_count: Callable[[], int],
        append_counts: Callable[[], Sequence[int]],
    ) -> None:
        self._context = context
        self._pool = pool
        self._in_count = in_count
        self._out_count = out_count
        self._append_counts = append_counts
        self._ring: Ring | None = None
        self._before: dict[Any, int] = {}  # totals of the previous sample
        self._failed = ""

    @property
    def period_ms(self) -> int:
        return self._context.config.history_period_ms

    def chores(self) -> list[Chore]:
        """Return the periodic work, if a history is kept."""
        return [Chore("history", self.period_ms, self.note)] if self.period_ms else []

    async def note(self) -> None:
        """Add a sample. A failing disk is logged once."""
        sample = self.sample()
        line = orjson.dumps(sample) + b"\n"
        try:
            await self._in_pool(lambda: self._opened().append(sample["t"], line))
        except OSError as error:
            if str(error) != self._failed:
                log.warning("history_not_written error=%s", error)
            self._failed = str(error)
        else:
            self._failed = ""

    async def spans(self, since_ms: int, until_ms: int, count: int) -> list[Span]:
        """Return two samples for each of `count` equal parts of a time, the last before it and its
        last. Raises OSError."""
        return await self._in_pool(partial(self._read, since_ms, until_ms, count))

    def close(self) -> None:
        """Close the files; called last, in the pool."""
        if self._ring is not None:
            self._ring.close()

    # ---- files: in the pool ---------------------------------------------------------------

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _opened(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self._context.disk, BYTES_MAX)
        return self._ring

    def _read(self, since_ms: int, until_ms: int, count: int) -> list[Span]:
        ring, late_ms = self._opened(), LATE_PERIODS * self.period_ms
        edges = [since_ms + (until_ms - since_ms) * n // count for n in range(count + 1)]
        decoded: dict[int, Sample] = {}

        def at(edge_ms: int) -> Sample | None:
            sample = ring.latest(edge_ms)
            if sample is None or edge_ms - sample[0] > late_ms:
                return None
            if sample[0] not in decoded:
                decoded[sample[0]] = orjson.loads(sample[1])
            return decoded[sample[0]]

        samples = [at(edge) for edge in edges]
        return [Span(*pair) for pair in pairwise(samples)]

    # ---- a sample -------------------------------------------------------------------------

    def sample(self) -> Sample:
        """Gather the current figures."""
        context = self._context
        topics, groups = self._topics(), self._groups()
        shown = {name: topics[name] for name in self._newest(topics)}
        by_group: dict[str, dict[str, list[int]]] = {}
        for group, topic in self._newest(groups):
            by_group.setdefault(group, {})[topic] = groups[group, topic]
        self._before = {key: one[0] for key, one in (*topics.items(), *groups.items())}
        return {
            "t": context.wall_ms(),
            "boot": context.life.boot_ms,
            "leads": context.roles.leading,
            "in": self._in_count(),
            "out": self._out_count(),
            "log": context.store.commitlog.max_offset,
            "append": list(self._append_counts()),
            "topics": shown,
            "groups": by_group,
        }

    def _newest(self, totals: dict[Any, list[int]]) -> list[Any]:
        """Return the names with the most new messages since the previous sample."""
        if len(totals) <= SERIES_MAX:
            return list(totals)
        before = self._before
        return heapq.nlargest(
            SERIES_MAX, totals, key=lambda name: totals[name][0] - before.get(name, 0)
        )

    def _topics(self) -> dict[Any, list[int]]:
        """Return for each topic the number of messages ever stored, and those still there."""
        queue_of = self._context.store.queues.queue
        counts: dict[Any, list[int]] = {}
        room = QUEUES_MAX
        for name, topic in self._context.state.topics.entries.items():
            room -= topic.queue_count
            if room < 0:
                break
            if name in SYSTEM_TOPICS:
                continue
            stored = there = 0
            for queue_id in range(topic.queue_count):
                queue = queue_of(name, queue_id)
                if queue is not None:
                    stored += queue.max_offset
                    there += max(0, queue.max_offset - queue.min_offset)
            counts[name] = [stored, there]
        return counts

    def _groups(self) -> dict[Any, list[int]]:
        """Return for each group and topic the number of consumed messages, and the lag."""
        state, end_of = self._context.state, self._context.store.queues.end_of
        counts: dict[Any, list[int]] = {}
        room = QUEUES_MAX
        for (topic, group), queues in state.offsets.offsets.items():
            room -= len(queues)
            if room < 0:
                break
            done = lag = 0
            for queue_id in queues:
                position, in_flight = state.progress(topic, group, queue_id)
                done += (position or 0) - in_flight
                lag += in_flight + max(0, end_of(topic, queue_id) - (position or 0))
            counts[group, topic] = [done, lag]
        return counts
