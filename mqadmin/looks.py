"""What `mqadmin top` shows: looks at the cluster, and the rates between two of them.

A look asks every replica for its figures, every leader how far its groups are, and every topic for
its offsets; rates are differences of these counts, so they are of the time between the looks and
not a broker's own averages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerRefused, ClientError, NoRoute
from raftmq.client.route import LEADER_ID
from raftmq.mqadmin.targets import AT_ONCE_MAX, Replica, replicas, runtime_infos
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

REPLY_SUFFIX = "_REPLY_TOPIC"  # a cluster's topic of replies to requests
SYSTEM_GROUPS = ("CID_", "TOOLS_", "SELF_TEST", "FILTERSRV", "%")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look at: one topic, one group; "" for all. `system`: the system's own, too."""

    topic: str = ""
    group: str = ""
    system: bool = False


@dataclass(slots=True)
class Place:
    """Where a group is in a topic, over all queues."""

    consumed: int = 0
    behind: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Look:
    """What was there at a time (monotonic, and epoch ms)."""

    at_s: float
    at_ms: int
    replicas: list[tuple[Replica, Mapping[str, str]]] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)  # by topic, messages ever
    queues: dict[str, int] = field(default_factory=dict)  # by topic
    places: dict[tuple[str, str], Place] = field(default_factory=dict)  # by group and topic


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
                _add_places(found, scope, await admin.broker.consume_stats(replica.address))
            except ClientError:  # its row says that it does not answer
                pass

    async def offsets(topic: str) -> None:
        async with turn:
            try:
                queues = await admin.topic.offsets(topic)
            except (NoRoute, BrokerRefused):  # deleted meanwhile, or a name that is no topic
                return
            except ClientError:
                return
            found.stored[topic] = sum(offset.max_offset for offset in queues.values())
            found.queues[topic] = len(queues)

    own = {*info.brokers, *info.clusters}
    topics = [t for t in await admin.cluster.topics() if _shown(t, own, scope)]
    leading = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    said, *_ = await asyncio.gather(
        runtime_infos(admin, everybody),
        asyncio.gather(*(progress(replica) for replica in leading)),
        asyncio.gather(*(offsets(topic) for topic in topics)),
    )
    found.replicas = list(zip(everybody, said, strict=True))
    return found


def _shown(topic: str, own: set[str], scope: Scope) -> bool:
    if scope.topic:
        return topic == scope.topic
    if scope.system:
        return True
    return not (
        topic in SYSTEM_TOPICS
        or topic in own
        or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or topic.endswith(REPLY_SUFFIX)
    )


def _add_places(found: Look, scope: Scope, told: Mapping[str, Sequence[Any]]) -> None:
    for group, parts in told.items():
        wanted = group == scope.group if scope.group else True
        if not wanted or (group.startswith(SYSTEM_GROUPS) and not scope.system and not scope.group):
            continue
        for part in parts:
            for queue, progress in part.queues.items():
                if scope.topic not in ("", queue.topic):
                    continue
                place = found.places.setdefault((group, queue.topic), Place())
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
        then = None if before is None else before.stored.get(topic)
        behind = [place.behind for (_, of), place in now.places.items() if of == topic]
        rows.append(
            {
                "topic": topic,
                "queues": now.queues[topic],
                "inTps": _per_s(now, before, stored, then),
                "stored": stored,
                "groups": len(behind),
                "lag": max(behind, default=0),
            }
        )
    return sorted(rows, key=lambda row: (-(row["inTps"] or 0), row["topic"]))


def group_rows(now: Look, before: Look | None) -> list[dict[str, Any]]:
    """Return a row for each group and topic, the one that is most behind first."""
    rows = []
    for (group, topic), place in now.places.items():
        if topic.startswith(RETRY_PREFIX) and not place.behind and not place.in_flight:
            continue  # every group has one
        then = before.places.get((group, topic)) if before else None
        earlier = None if then is None else then.consumed
        rows.append(
            {
                "group": group,
                "topic": topic,
                "outTps": _per_s(now, before, place.consumed, earlier),
                "lag": place.behind,
                "inFlight": place.in_flight,
            }
        )
    return sorted(rows, key=lambda row: (-row["lag"], -(row["outTps"] or 0), row["group"]))


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
