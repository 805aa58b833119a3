"""Rates, durations and lag over time, merged from the replicas of each group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.web.operation import Call, Operation
from raftmq.web.resources.basics import Name
from raftmq.web.resources.history import GroupHistory, Points, span_of
from raftmq.web.schema import Input, TimeMs, View

from .broker_fanout import Leaders
from .broker_http import VIEW_TIMEOUT_S, NodeSilent
from .cluster import ClusterView, Item
from .inputs import OptionalName
from .seen import History
from .views import GroupError

PATH = "/api/v1/history"
SUMMED = ("messagesInPerS", "messagesOutPerS")  # each replica has its own share

Answer = Mapping[str, Any]
Value = float | None


class HistoryOfGroupsQuery(Input, frozen=True):
    """As a broker's HistoryQuery, with an optional broker group."""

    since_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    points: Points = 120
    topic: Name | None = None
    consumer_group: Name | None = None
    group: OptionalName = ""


class HistoryOfGroups(View, frozen=True, kw_only=True):
    """`times` (ms) are the ends of equal intervals. `errors` lists groups without any answer."""

    times: list[int]
    groups: list[GroupHistory]
    errors: list[GroupError]


class Histories:
    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", PATH, "getHistory",
                      "Rates, durations, lag and numbers of messages over time, by broker group.",
                      self.history, query=HistoryOfGroupsQuery, answer=HistoryOfGroups),
        ]  # fmt: skip

    async def history(self, call: Call) -> Item:
        query: HistoryOfGroupsQuery = call.query
        if query.group:
            self._leaders.check_group(query.group)
        now_ms = time.time_ns() // 1_000_000
        since_ms, until_ms = span_of(query.since_ms, query.until_ms, now_ms)
        requested = {
            "sinceMs": str(since_ms),
            "untilMs": str(until_ms),
            "points": str(query.points),
        }
        if query.topic is not None:
            requested["topic"] = query.topic
        if query.consumer_group is not None:
            requested["consumerGroup"] = query.consumer_group
        replicas: dict[str, list[str]] = {}
        for item in self._cluster.known():
            if not query.group or item.group == query.group:
                addresses = replicas.setdefault(item.group, [])
                if item.http_address and item.gone_since_ms is None:
                    addresses.append(item.http_address)
        names = sorted(replicas)
        result = await asyncio.gather(
            *(self._of_group(replicas[name], requested) for name in names)
        )
        times = sorted({at for answers, _ in result for item in answers for at in item["times"]})
        complete = query.topic is None and query.consumer_group is None
        return {
            "times": times,
            "groups": [
                {"group": name, "series": merged(answers, times, SUMMED if complete else ())}
                for name, (answers, _) in zip(names, result, strict=True)
                if answers
            ],
            "errors": [
                {"group": name, "error": error or "no replica with an HTTP address is registered"}
                for name, (answers, error) in zip(names, result, strict=True)
                if not answers
            ],
        }

    async def _of_group(
        self, addresses: Sequence[str], requested: Mapping[str, str]
    ) -> tuple[list[Answer], str]:
        """Return the answers of a group's replicas, and the error of a silent replica."""
        answers: list[Answer] = []
        error = ""

        async def ask(address: str) -> None:
            nonlocal error
            try:
                answer = await self._cluster.nodes.ask(
                    address, "GET", PATH, query=requested, timeout_s=VIEW_TIMEOUT_S
                )
                if answer.ok:
                    answers.append(answer.json(History))
                else:
                    error = answer.reason()
            except NodeSilent as silent:
                error = silent.reason

        await asyncio.gather(*(ask(address) for address in addresses))
        return answers, error


def merged(answers: Sequence[Answer], times: Sequence[int], summed: Sequence[str]) -> list[Item]:
    """Merge the histories of a group's replicas. At each time this is the leader's value, or
    otherwise the largest value; series in `summed` are added."""
    figures: dict[tuple[str, str | None], dict[int, list[tuple[bool, float]]]] = {}
    for answer in answers:
        for series in answer["series"]:
            by_time = figures.setdefault((series["name"], series["topic"]), {})
            rows = zip(answer["times"], answer["leading"], series["values"], strict=True)
            for at, leading, value in rows:
                if value is not None:
                    by_time.setdefault(at, []).append((bool(leading), value))
    return [
        {
            "name": name,
            "topic": topic,
            "values": [_one_of(by_time.get(at, ()), name in summed) for at in times],
        }
        for (name, topic), by_time in sorted(figures.items(), key=_position)
    ]


def _position(item: tuple[tuple[str, str | None], Any]) -> tuple[str, str]:
    (name, topic), _ = item
    return topic or "", name


def _one_of(reported: Sequence[tuple[bool, float]], is_summed: bool) -> Value:
    if not reported:
        return None
    if is_summed:
        return round(sum(value for _, value in reported), 3)
    return max(reported)[1]  # the leader's is last
