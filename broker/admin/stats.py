"""Message statistics, with totals, recent rates, and VIEW_BROKER_STATS_DATA (315).

`Rates` follows Apache's runtime info, with totals since the process's start and since midnight.

315 reports the messages stored in a topic, or consumed by a group, in a minute, an hour and a day.
Stored messages are counted in the log by store time, so every replica has the same number.
Consumption is the distance by which the committed offsets advanced, queue by queue; a new or
reset offset counts nothing. Every replica samples the offsets every SAMPLE_MS since its start, for
at most PAIRS_MAX pairs of topic and group.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.fields import text

from ..context import Context
from ..errors import Refused
from ..tables.state import BrokerState

SAMPLE_MS = 10_000
SAMPLES_MAX = 61  # ten minutes and the previous sample
WINDOWS_MS = (10_000, 60_000, 600_000)


class Rates:
    """The rates of a running total. `sample` is called about every SAMPLE_MS."""

    def __init__(self, now_ms: int, day: int) -> None:
        """`day` is any number that changes at local midnight."""
        self._samples: deque[tuple[int, int]] = deque([(now_ms, 0)], SAMPLES_MAX)
        self._day = day
        self.at_midnight = 0  # the total at midnight
        self.at_midnight_before = 0

    def sample(self, now_ms: int, total: int, day: int) -> None:
        self._samples.append((now_ms, total))
        if day != self._day:
            self._day = day
            self.at_midnight_before, self.at_midnight = self.at_midnight, total

    def text(self, now_ms: int, total: int) -> str:
        """Return messages per second over 10 s, one minute and ten minutes, in Apache's format."""
        return " ".join(str(self._over(window, now_ms, total)) for window in WINDOWS_MS)

    def _over(self, window_ms: int, now_ms: int, total: int) -> float:
        """Return the rate since the latest sample at least `window_ms` old, or the oldest."""
        since_ms, before = self._samples[0]
        for sampled_ms, sampled in self._samples:
            if sampled_ms > now_ms - window_ms:
                break
            since_ms, before = sampled_ms, sampled
        return (total - before) * 1000 / max(1, now_ms - since_ms)


class Throughput:
    """The rates of messages stored and pulled."""

    def __init__(self, clock_ms: Callable[[], int], wall_ms: Callable[[], int],
                 put_count: Callable[[], int], get_count: Callable[[], int]) -> None:  # fmt: skip
        """`put_count()` and `get_count()` are the totals since the start of the process."""
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._put_count = put_count
        self._get_count = get_count
        self.put = Rates(clock_ms(), self._today())
        self.get = Rates(clock_ms(), self._today())

    def sample(self) -> None:
        """Sample the totals; a chore, every SAMPLE_MS."""
        now_ms, today = self._clock_ms(), self._today()
        self.put.sample(now_ms, self._put_count(), today)
        self.get.sample(now_ms, self._get_count(), today)

    def put_text(self) -> str:
        return self.put.text(self._clock_ms(), self._put_count())

    def get_text(self) -> str:
        return self.get.text(self._clock_ms(), self._get_count())

    def _today(self) -> int:
        return time.localtime(self._wall_ms() / 1000).tm_yday


PAIRS_MAX = 10_000
WINDOWS_S = (("statsMinute", 60), ("statsHour", 3_600), ("statsDay", 86_400))
# Samples of each window, spread over it.
SAMPLES = 6


@dataclass(slots=True)
class _Pair:
    """The progress of a pair's offsets, per window (time in ms, distance), oldest first."""

    windows: tuple[deque[tuple[int, int]], ...]
    offsets: dict[int, int]  # by queue id, at the last sample
    moved: int = 0

    def moved_to(self, queues: dict[int, int]) -> int:
        """Return the progress up to the offsets `queues`."""
        before = self.offsets
        return self.moved + sum(
            max(0, offset - before.get(queue_id, offset)) for queue_id, offset in queues.items()
        )


class GroupRates:
    def __init__(self, state: BrokerState, clock_ms: Callable[[], int]) -> None:
        self._state = state
        self._clock_ms = clock_ms
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def sample(self) -> None:
        """Sample all offsets; a chore, every SAMPLE_MS."""
        now_ms = self._clock_ms()
        offsets = self._state.offsets.offsets
        for key in [key for key in self._pairs if key not in offsets]:
            del self._pairs[key]
        for key, queues in offsets.items():
            pair = self._pairs.get(key)
            if pair is None:
                if len(self._pairs) >= PAIRS_MAX:
                    continue
                pair = self._pairs[key] = _Pair(tuple(deque() for _ in WINDOWS_S), {})
            if queues != pair.offsets:
                pair.moved, pair.offsets = pair.moved_to(queues), dict(queues)
            for samples, (_, seconds) in zip(pair.windows, WINDOWS_S, strict=True):
                _keep(samples, now_ms, pair.moved, seconds * 1000)

    def stats(self, topic: str, group: str) -> dict[str, Any]:
        """Return Apache's BrokerStatsData bean."""
        pair = self._pairs.get((topic, group))
        now_ms = self._clock_ms()
        queues = self._state.offsets.offsets.get((topic, group), {})
        moved = 0 if pair is None else pair.moved_to(queues)
        value = {}
        for number, (name, seconds) in enumerate(WINDOWS_S):
            taken, span_ms = 0, seconds * 1000
            if pair is not None and pair.windows[number]:
                since_ms, before = pair.windows[number][0]
                taken = moved - before
                span_ms = max(1000, min(span_ms, now_ms - since_ms))
            value[name] = _window(taken, span_ms / 1000)
        return value


def _keep(samples: deque[tuple[int, int]], now_ms: int, moved: int, window_ms: int) -> None:
    if not samples or now_ms - samples[-1][0] >= window_ms // SAMPLES:
        samples.append((now_ms, moved))
    while len(samples) > 1 and samples[1][0] <= now_ms - window_ms:
        samples.popleft()


@dataclass(frozen=True, slots=True)
class StatsQueries:
    """The handler of the query."""

    context: Context
    rates: GroupRates

    def handlers(self) -> dict[int, Handler]:
        return {int(RequestCode.VIEW_BROKER_STATS_DATA): self.view}

    def view(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the rates of a statistics item over minute, hour and day (315)."""
        name, key = text(request.ext, "statsName"), text(request.ext, "statsKey")
        value: dict[str, Any] | None = None
        if name == "TOPIC_PUT_NUMS" and key in self.context.state.topics.entries:
            value = self._came(key)
        elif name == "GROUP_GET_NUMS":
            topic, _at, group = key.partition("@")
            if (topic, group) in self.context.state.offsets.offsets:
                value = self.rates.stats(topic, group)
        if value is None:
            reason = f"The stats <{name}> <{key}> not exist"
            raise Refused(ResponseCode.SYSTEM_ERROR, reason, absent=True)
        return RemotingCommand.response_to(request, body=dumps(value))

    def _came(self, topic: str) -> dict[str, Any]:
        now_ms = self.context.wall_ms()
        queue_count = self.context.state.topics.entries[topic].queue_count
        value = {}
        for name, seconds in WINDOWS_S:
            total = 0
            for queue_id in range(queue_count):
                queue = self.context.store.queues.queue(topic, queue_id)
                if queue is not None and queue.max_offset > queue.min_offset:
                    since_ms = now_ms - seconds * 1000
                    first = self.context.store.reads.offset_by_time(topic, queue_id, since_ms)
                    total += queue.max_offset - first
            value[name] = _window(total, seconds)
        return value


def _window(total: int, seconds: float) -> dict[str, Any]:
    return {"sum": total, "tps": total / seconds, "avgpt": 0.0}
