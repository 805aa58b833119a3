"""Rates, durations, lag and numbers of messages over time: queries and answers. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..problem import invalid
from ..schema import Input, TimeMs, View
from .basics import Name

POINTS_MAX = 500
HOUR_MS = 3_600_000
Points = Annotated[int, Meta(ge=1, le=POINTS_MAX)]


class HistoryQuery(Input, frozen=True):
    """`untilMs`: now, unless stated; `sinceMs`: an hour before. `points`: so many at most. With
    `topic` its series, with `consumerGroup` that group's in its topics, with both in that one; with
    neither the broker's."""

    since_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    points: Points = 120
    topic: Name | None = None
    consumer_group: Name | None = None


def span_of(since_ms: int | None, until_ms: int | None, now_ms: int) -> tuple[int, int]:
    """Return the begin and the end of the time that a query asks for. Raises ApiProblem (422)."""
    until = now_ms if until_ms is None else until_ms
    since = max(0, until - HOUR_MS) if since_ms is None else since_ms
    if since >= until:
        raise invalid([("sinceMs", "has to be before untilMs")])
    return since, until


class HistorySeries(View, frozen=True, kw_only=True):
    """One figure at each of the times; null: it is not known. A rate is over the time since the one
    before. `topic`: of a consumer group's series, in which topic."""

    name: str
    topic: str | None
    values: list[float | None]


class HistoryView(View, frozen=True, kw_only=True):
    """`times` (ms) are the ends of equal parts. `leading`: whether the replica led then; null: not
    known. What is not noted any more, or never was, is null."""

    times: list[int]
    leading: list[bool | None]
    series: list[HistorySeries]


class GroupHistory(View, frozen=True, kw_only=True):
    """A broker group's figures: of each time as the leader had them, else another replica; messages
    handed out by any of them are summed."""

    group: str
    series: list[HistorySeries]
