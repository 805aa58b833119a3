"""Rates, durations, lag and numbers of messages over time: queries and answers."""

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
    """`untilMs` is now by default, and `sinceMs` an hour before. `points` is a maximum. `topic`
    selects a topic's series, `consumerGroup` a group's series in its topics, both a group's series
    in a topic, and neither the broker's."""

    since_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    points: Points = 120
    topic: Name | None = None
    consumer_group: Name | None = None


def span_of(since_ms: int | None, until_ms: int | None, now_ms: int) -> tuple[int, int]:
    """Return start and end of the queried time. Raises ApiProblem (422)."""
    until = now_ms if until_ms is None else until_ms
    since = max(0, until - HOUR_MS) if since_ms is None else since_ms
    if since >= until:
        raise invalid([("sinceMs", "has to be before untilMs")])
    return since, until


class HistorySeries(View, frozen=True, kw_only=True):
    """A figure for each time; null if unknown. A rate is over the time since the previous figure.
    `topic` is set for a consumer group's series."""

    name: str
    topic: str | None
    values: list[float | None]


class HistoryView(View, frozen=True, kw_only=True):
    """`times` (ms) are the ends of equal intervals. `leading` states whether the replica led then;
    null if unknown. Figures that are not recorded are null."""

    times: list[int]
    leading: list[bool | None]
    series: list[HistorySeries]


class GroupHistory(View, frozen=True, kw_only=True):
    """A broker group's figures, for each time from the leader, or else from a different replica.
    Messages handed out by any replica are summed."""

    group: str
    series: list[HistorySeries]
