"""What `mqadmin top` shows: looks at the cluster, and the rates between two of them.

A look asks every replica for its figures, every leader how far its groups are, and every topic for
its offsets; rates are differences of these counts, so they are of the time between the looks and
not a broker's own averages.

Counts are kept by broker group. A rate is of the groups that both looks have: all that one has
which is back after a fail-over was not sent since the last look. Where a topic's group does not
answer, there is no sum, which would mislead, but words that say so.
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
from raftmq.remoting.names import RETRY_PREFIX

from .copy_definitions import is_own
from .targets import AT_ONCE_MAX, Replica, nobody_leads, replicas, runtime_infos

SYSTEM_GROUPS = ("CID_", "TOOLS_", "SELF_TEST", "FILTERSRV", "%")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look at: one topic, one group; "" for all. `system`: the system's own, too."""

    topic: str = ""
    group: str = ""
    system: bool = False


@dataclass(slots=True)
class Place:
    """Where a group is in a topic, over all queues of a broker group."""

    consumed: int = 0
    behind: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Look:
    """What was there at a time (monotonic, and epoch ms)."""

    at_s: float
    at_ms: int
    replicas: list[tuple[Replica, Mapping[str, str]]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)  # by broker group: why no progress is told
    unseen: set[str] = field(default_factory=set)  # topics: not all their queues are told
    brokers: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by topic: who has it
    # By topic and broker group: queues, messages ever.
    stored: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    # By group and topic, and by broker group.
    places: dict[tuple[str, str], dict[str, Place]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every broker group told its figures."""
        return not self.silent and not self.unseen

    def missing(self, topic: str) -> str:
        """Say which broker groups that have the topic tell no progress, and why; "" for none. Retry
        topics are not asked about: any may have one."""
        names = (name for name in self.brokers.get(topic, self.silent) if name in self.silent)
        return "; ".join(self.silent[name] for name in names)


async def look(admin: Admin, scope: Scope) -> Look:
    """Look at the cluster. Raises ClientError if no name server answers, or no broker; brokers that
    do not are shown as such."""
    found = Look(time.monotonic(), time.time_ns() // 1_000_000)
    info = await admin.cluster.info()
    everybody = replicas(info)
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def progress(replica: Replica) -> None:
        async with turn:
            try:
                told = await admin.broker.consume_stats(replica.address)
            except ClientError as error:
                found.silent[replica.broker_name] = _why(replica.broker_name, error)
            else:
                _add_places(found, scope, replica.broker_name, told)

    async def offsets(topic: str) -> None:
        async with turn:
            try:
                groups = await admin.cluster.groups_of(topic)
            except ClientError:  # deleted meanwhile, or a name that is no topic
                return
            stored: dict[str, tuple[int, int]] = {}
            for name, leader in leaders_in(groups).items():
                try:
                    queues = await admin.topic.offsets_at(leader, topic)
                except ClientError as error:
                    if error.code != ResponseCode.TOPIC_NOT_EXIST:
                        found.unseen.add(topic)
                    continue
                stored[name] = len(queues), sum(offset.max_offset for offset in queues.values())
            if headless(groups):
                found.unseen.add(topic)
            found.brokers[topic], found.stored[topic] = tuple(sorted(groups)), stored

    own = {*info.brokers, *info.clusters}
    topics = [t for t in await admin.cluster.topics() if _shown(t, own, scope)]
    leading = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    found.silent.update((name, nobody_leads([name])) for name in headless(info.brokers))
    said, *_ = await asyncio.gather(
        runtime_infos(admin, everybody),
        asyncio.gather(*(progress(replica) for replica in leading)),
        asyncio.gather(*(offsets(topic) for topic in topics)),
    )
    found.replicas = list(zip(everybody, said, strict=True))
    return found


def _why(broker_name: str, error: ClientError) -> str:
    return error.message if isinstance(error, BrokerRefused) else f"no answer from {broker_name}"


def _shown(topic: str, own: set[str], scope: Scope) -> bool:
    if scope.topic:
        return topic == scope.topic
    if scope.system:
        return True
    return not is_own(topic, own)


def _add_places(
    found: Look, scope: Scope, broker_name: str, told: Mapping[str, Sequence[Any]]
) -> None:
    for group, parts in told.items():
        wanted = group == scope.group if scope.group else True
        if not wanted or (group.startswith(SYSTEM_GROUPS) and not scope.system and not scope.group):
            continue
        for part in parts:
            for queue, progress in part.queues.items():
                if scope.topic not in ("", queue.topic):
                    continue
                places = found.places.setdefault((group, queue.topic), {})
                place = places.setdefault(broker_name, Place())
                place.consumed += progress.consumer_offset
                place.behind += progress.behind
                place.in_flight += max(0, progress.pull_offset - progress.consumer_offset)


# ---- rows


def broker_rows(now: Look, before: Look | None) -> list[dict[str, Any]]:
    """Return a row for each replica."""
    earlier = {} if before is None else {r.address: said for r, said in before.replicas}
    rows = []
    for replica, said in now.replicas:
        then = earlier.get(replica.address, {})
        role = said.get("raftRole") or {"0": "master"}.get(str(replica.broker_id), "slave")
        rows.append(
            {
                "broker": replica.broker_name,
                "node": said.get("raftSelfId") or str(replica.broker_id),
                "address": replica.address,
                "role": "no answer" if "error" in said else role,
                "term": _number(said.get("raftTerm")),
                "leader": said.get("raftLeader", ""),
                "inTps": _rate(now, before, said, then, "msgPutTotalTodayNow"),
                "outTps": _rate(now, before, said, then, "msgGetTotalTodayNow"),
                "behind": _number(said.get("raftBehindBytes")),
                "disk": _share(said.get("commitLogDiskRatio")),
            }
        )
    return rows


def topic_rows(now: Look, before: Look | None) -> list[dict[str, Any]]:
    """Return a row for each topic, the busiest first."""
    rows = []
    for topic, stored in now.stored.items():
        then = {} if before is None else before.stored.get(topic, {})
        behind = [_behind(places) for (_, of), places in now.places.items() if of == topic]
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


def group_rows(now: Look, before: Look | None) -> list[dict[str, Any]]:
    """Return a row for each group and topic, the one that is most behind first."""
    rows = []
    for (group, topic), places in now.places.items():
        behind, in_flight = _behind(places), sum(place.in_flight for place in places.values())
        if topic.startswith(RETRY_PREFIX) and not behind and not in_flight:
            continue  # every group has one
        then = {} if before is None else before.places.get((group, topic), {})
        missing = now.missing(topic)
        row: dict[str, Any] = {
            "group": group,
            "topic": topic,
            "outTps": _rate_of_both(now, before, _consumed(places), _consumed(then)),
            "lag": missing or behind,
            "inFlight": None if missing else in_flight,
        }
        rows.append((-behind, -(row["outTps"] or 0), group, row))
    return [row for *_, row in sorted(rows, key=lambda one: one[:3])]


def _messages(stored: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {name: messages for name, (_, messages) in stored.items()}


def _consumed(places: Mapping[str, Place]) -> dict[str, int]:
    return {name: place.consumed for name, place in places.items()}


def _behind(places: Mapping[str, Place]) -> int:
    return sum(place.behind for place in places.values())


def _rate_of_both(
    now: Look, before: Look | None, counts: Mapping[str, int], then: Mapping[str, int]
) -> float | None:
    """Return the rate over the broker groups that both looks have; None if there are none, or one
    counts anew."""
    both = counts.keys() & then.keys()
    if not both or any(counts[name] < then[name] for name in both):
        return None
    count, earlier = sum(counts[name] for name in both), sum(then[name] for name in both)
    return _per_s(now, before, count, earlier)


def _rate(
    now: Look, before: Look | None, said: Mapping[str, str], then: Mapping[str, str], name: str
) -> float | None:
    count, earlier = _number(said.get(name)), _number(then.get(name))
    return None if count is None else _per_s(now, before, count, earlier)


def _per_s(now: Look, before: Look | None, count: int, then: int | None) -> float | None:
    """Return the rate between two looks; None if it was not there before, or counts anew."""
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
