"""Parsers for the answers of brokers and name servers to administrators.

Fields may be missing, because brokers of several versions answer. A body of a different form raises
BodyError. Times are epoch milliseconds. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raftmq.remoting.errors import BodyError

from ..message import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The offsets in a queue, and the store time of its last message (0 if none)."""

    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A group's progress in a queue. `last_ms` is the store time of the last consumed message."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int

    @property
    def behind(self) -> int:
        """Return how many messages of the queue the group has not consumed. An offset beyond the
        queue's end, as after a manual reset, leaves none."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress in the requested queues, and its messages per second. `headless` lists the
    broker groups missing here for want of a leader."""

    tps: float
    queues: Mapping[MessageQueue, Progress]
    headless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """Messages per minute, hour or day, and their mean per second."""

    total: int
    tps: float


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """A statistic of a broker (315)."""

    minute: StatsWindow
    hour: StatsWindow
    day: StatsWindow


def topic_offsets(body: Mapping[str, Any]) -> dict[MessageQueue, TopicOffset]:
    """Parse the body of 202 GET_TOPIC_STATS_INFO."""
    return {
        queue: TopicOffset(
            int(value.get("minOffset", 0)),
            int(value.get("maxOffset", 0)),
            int(value.get("lastUpdateTimestamp", 0)),
        )
        for queue, value in _by_queue(body.get("offsetTable"))
    }


def consume_stats(body: Mapping[str, Any]) -> ConsumeStats:
    """Parse the body of 208 GET_CONSUME_STATS, or an item in the body of 317."""
    queues = {}
    for queue, value in _by_queue(body.get("offsetTable")):
        consumed = int(value.get("consumerOffset", 0))
        queues[queue] = Progress(
            int(value.get("brokerOffset", 0)),
            consumed,
            int(value.get("pullOffset", consumed)),
            int(value.get("lastTimestamp", 0)),
        )
    return ConsumeStats(float(body.get("consumeTps") or 0), queues)


def broker_consume_stats(body: Mapping[str, Any]) -> dict[str, list[ConsumeStats]]:
    """Parse the body of 317 GET_BROKER_CONSUME_STATS by group, an entry per topic."""
    result: dict[str, list[ConsumeStats]] = {}
    for entry in body.get("consumeStatsList") or ():
        for group, parts in entry.items():
            result.setdefault(str(group), []).extend(consume_stats(stats) for stats in parts)
    return result


def queue_offsets(table: Any) -> dict[MessageQueue, int]:
    """Parse the offsetTable of 222 INVOKE_BROKER_TO_RESET_OFFSET."""
    return {queue: int(value) for queue, value in _pairs(table)}


def broker_stats(body: Mapping[str, Any]) -> BrokerStats:
    """Parse the body of 315 VIEW_BROKER_STATS_DATA."""

    def window(name: str) -> StatsWindow:
        value = body.get(name) or {}
        return StatsWindow(int(value.get("sum", 0)), float(value.get("tps", 0)))

    return BrokerStats(window("statsMinute"), window("statsHour"), window("statsDay"))


def merged(parts: Iterable[ConsumeStats], headless: tuple[str, ...] = ()) -> ConsumeStats:
    """Merge the answers of several brokers, without the groups `headless`."""
    queues: dict[MessageQueue, Progress] = {}
    tps = 0.0
    for stats in parts:
        queues.update(stats.queues)
        tps += stats.tps
    return ConsumeStats(tps, queues, headless)


def properties(text: str) -> dict[str, str]:
    """Parse properties as brokers write them, in `key=value` lines without escapes."""
    result: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith(("#", "!")):
            continue
        key, _, value = line.partition("=")
        result[key.strip()] = value.strip()
    return result


def _by_queue(table: Any) -> Iterable[tuple[MessageQueue, Mapping[str, Any]]]:
    for queue, value in _pairs(table):
        if not isinstance(value, dict):
            raise BodyError(f"no offsets: {value!r}")
        yield queue, value


def _pairs(table: Any) -> Iterable[tuple[MessageQueue, Any]]:
    if not isinstance(table, dict | None):
        raise BodyError("offsetTable is no object")
    for key, value in (table or {}).items():
        if not isinstance(key, MessageQueue):
            raise BodyError(f"not a message queue: {key!r}")
        yield key, value
