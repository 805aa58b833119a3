"""Samples of the cluster and rates between samples, for `mqadmin top`.

A sample asks every replica for its runtime information, every leader for its groups' progress, and
every topic for its offsets. Rates are differences of these counts between samples, not a broker's
own averages.

Counts are stored by broker group, and a rate covers the groups in both samples, because a group
that returns after a failover would otherwise count all its messages as new. A sum over a topic with
a silent group would mislead, so a message replaces it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftmq.client.admin import Admin, headless, leaders_in
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.route import LEADER_ID
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.definitions import is_own
from raftmq.remoting.names import RETRY_PREFIX

from .targets import AT_ONCE_MAX, Replica, no_leader, replicas, runtime_infos

SYSTEM_GROUPS = ("CID_", "TOOLS_", "SELF_TEST", "FILTERSRV", "%")


@dataclass(frozen=True, slots=True)
class Scope:
    """The selected topic and group, "" for all. `system` includes system topics."""

    topic: str = ""
    group: str = ""
    system: bool = False


@dataclass(slots=True)
class GroupProgress:
    """A group's progress in a topic, over all queues of a broker group."""

    consumed: int = 0
    behind: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Sample:
    """The figures of a point in time (monotonic, and epoch ms)."""

    at_s: float
    at_ms: int
    replicas: list[tuple[Replica, Mapping[str, str]]] = field(default_factory=list)
    # Broker group → reason for missing progress
    silent: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)  # topics with missing queues
    brokers: dict[str, tuple[str, ...]] = field(default_factory=dict)  # topic → its broker groups
    # By topic and broker group, the number of queues and of all messages.
    stored: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    # By group and topic, and by broker group.
    progress: dict[tuple[str, str], dict[str, GroupProgress]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Return whether every broker group sent its figures."""
        return not self.silent and not self.unseen

    def missing(self, topic: str) -> str:
        """Return the broker groups of the topic without progress, and the reasons; "" if there are
        none. Any broker group may have a retry topic, so these are not checked."""
        names = (name for name in self.brokers.get(topic, self.silent) if name in self.silent)
        return "; ".join(self.silent[name] for name in names)


async def take_sample(admin: Admin, scope: Scope) -> Sample:
    """Take a sample, showing silent brokers as such. Raises ClientError if all are silent."""
    result = Sample(time.monotonic(), time.time_ns() // 1_000_000)
    info = await admin.cluster.info()
    everybody = replicas(info)
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def progress(replica: Replica) -> None:
        async with turn:
            try:
                stats = await admin.broker.consume_stats(replica.address)
            except ClientError as error:
                result.silent[replica.broker_name] = _why(replica.broker_name, error)
            else:
                _add_progress(result, scope, replica.broker_name, stats)

    async def offsets(topic: str) -> None:
        async with turn:
            try:
                groups = await admin.cluster.groups_of(topic)
            except ClientError:  # deleted in between, or no topic's name
                return
            stored: dict[str, tuple[int, int]] = {}
            for name, leader in leaders_in(groups).items():
                try:
                    queues = await admin.topic.offsets_at(leader, topic)
                except ClientError as error:
                    if error.code != ResponseCode.TOPIC_NOT_EXIST:
                        result.unseen.add(topic)
                    continue
                stored[name] = len(queues), sum(offset.max_offset for offset in queues.values())
            if headless(groups):
                result.unseen.add(topic)
            result.brokers[topic], result.stored[topic] = tuple(sorted(groups)), stored

    own = {*info.brokers, *info.clusters}
    topics = [t for t in await admin.cluster.topics() if _shown(t, own, scope)]
    leading = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    result.silent.update((name, no_leader([name])) for name in headless(info.brokers))
    reported, *_ = await asyncio.gather(
        runtime_infos(admin, everybody),
        asyncio.gather(*(progress(replica) for replica in leading)),
        asyncio.gather(*(offsets(topic) for topic in topics)),
    )
    result.replicas = list(zip(everybody, reported, strict=True))
    return result


def _why(broker_name: str, error: ClientError) -> str:
    return error.message if isinstance(error, BrokerRefused) else f"no answer from {broker_name}"


def _shown(topic: str, own: set[str], scope: Scope) -> bool:
    if scope.topic:
        return topic == scope.topic
    if scope.system:
        return True
    return not is_own(topic, own)


def _add_progress(
    result: Sample, scope: Scope, broker_name: str, reported: Mapping[str, Sequence[Any]]
) -> None:
    for group, parts in reported.items():
        requested = group == scope.group if scope.group else True
        if not requested or (
            group.startswith(SYSTEM_GROUPS) and not scope.system and not scope.group
        ):
            continue
        for stats in parts:
            for queue, progress in stats.queues.items():
                if scope.topic not in ("", queue.topic):
                    continue
                by_broker = result.progress.setdefault((group, queue.topic), {})
                total = by_broker.setdefault(broker_name, GroupProgress())
                total.consumed += progress.consumer_offset
                total.behind += progress.behind
                total.in_flight += max(0, progress.pull_offset - progress.consumer_offset)


def broker_rows(now: Sample, before: Sample | None) -> list[dict[str, Any]]:
    earlier = {} if before is None else {r.address: reported for r, reported in before.replicas}
    rows = []
    for replica, reported in now.replicas:
        then = earlier.get(replica.address, {})
        role = reported.get("raftRole") or {"0": "master"}.get(str(replica.broker_id), "slave")
        rows.append(
            {
                "broker": replica.broker_name,
                "node": reported.get("raftSelfId") or str(replica.broker_id),
                "address": replica.address,
                "role": "no answer" if "error" in reported else role,
                "term": _number(reported.get("raftTerm")),
                "leader": reported.get("raftLeader", ""),
                "inTps": _rate(now, before, reported, then, "msgPutTotalTodayNow"),
                "outTps": _rate(now, before, reported, then, "msgGetTotalTodayNow"),
                "behind": _number(reported.get("raftBehindBytes")),
                "disk": _share(reported.get("commitLogDiskRatio")),
            }
        )
    return rows


def topic_rows(now: Sample, before: Sample | None) -> list[dict[str, Any]]:
    """Return a row for each topic, in descending order of rate."""
    rows = []
    for topic, stored in now.stored.items():
        then = {} if before is None else before.stored.get(topic, {})
        behind = [_behind(progress) for (_, of), progress in now.progress.items() if of == topic]
        missing, unseen = now.missing(topic), topic in now.unseen
        rows.append(
            {
                "topic": topic,
                "queues": None if unseen else sum(queues for queues, _ in stored.values()),
                "inTps": _rate_of_both(now, before, _messages(stored), _messages(then)),
                "stored": None if unseen else sum(_messages(stored).values()),
                "groups": len(behind),
                "lag": missing or max(behind, default=0),
            }
        )
    return sorted(rows, key=lambda row: (-(row["inTps"] or 0), row["topic"]))


def group_rows(now: Sample, before: Sample | None) -> list[dict[str, Any]]:
    """Return a row for each group and topic, in descending order of lag."""
    rows = []
    for (group, topic), progress in now.progress.items():
        behind, in_flight = (
            _behind(progress),
            sum(position.in_flight for position in progress.values()),
        )
        if topic.startswith(RETRY_PREFIX) and not behind and not in_flight:
            continue  # every group has a retry topic
        then = {} if before is None else before.progress.get((group, topic), {})
        missing = now.missing(topic)
        row: dict[str, Any] = {
            "group": group,
            "topic": topic,
            "outTps": _rate_of_both(now, before, _consumed(progress), _consumed(then)),
            "lag": missing or behind,
            "inFlight": None if missing else in_flight,
        }
        rows.append((-behind, -(row["outTps"] or 0), group, row))
    return [row for *_, row in sorted(rows, key=lambda item: item[:3])]


def _messages(stored: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {name: messages for name, (_, messages) in stored.items()}


def _consumed(progress: Mapping[str, GroupProgress]) -> dict[str, int]:
    return {name: position.consumed for name, position in progress.items()}


def _behind(progress: Mapping[str, GroupProgress]) -> int:
    return sum(position.behind for position in progress.values())


def _rate_of_both(
    now: Sample, before: Sample | None, counts: Mapping[str, int], then: Mapping[str, int]
) -> float | None:
    """Return the rate over groups in both samples; None without any, or after a reset."""
    both = counts.keys() & then.keys()
    if not both or any(counts[name] < then[name] for name in both):
        return None
    count, earlier = sum(counts[name] for name in both), sum(then[name] for name in both)
    return _per_s(now, before, count, earlier)


def _rate(
    now: Sample,
    before: Sample | None,
    reported: Mapping[str, str],
    then: Mapping[str, str],
    name: str,
) -> float | None:
    count, earlier = _number(reported.get(name)), _number(then.get(name))
    return None if count is None else _per_s(now, before, count, earlier)


def _per_s(now: Sample, before: Sample | None, count: int, then: int | None) -> float | None:
    """Return the rate between two samples. None for a new or a reset count."""
    if before is None or then is None or count < then:
        return None
    return round((count - then) / max(now.at_s - before.at_s, 0.001), 1)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def _share(text: str | None) -> str:
    try:
        return f"{float(text or ''):.0%}"
    except ValueError:
        return ""
