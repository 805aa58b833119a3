"""A sample of a broker's figures, and the series made from samples.

A sample has totals where possible, so that the rate over any time is the difference of two samples:

    {"t": ms, "boot": ms, "leads": bool, "in": messages stored, "out": messages handed out,
     "log": end of the CommitLog, "append": group commits by duration (ops.metrics.Timings),
     "topics": {topic: [messages ever stored, messages there]},
     "groups": {group: {topic: [messages done with, lag]}}}

"in", "out" and "append" count since `boot`, the start of the process. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from raftmq.ops.metrics import LATENCY_BOUNDS_S

Sample = dict[str, Any]
SAMPLES_FOR_P50 = 10
SAMPLES_FOR_P99 = 100  # the minimum for a hundredth part


class Span(NamedTuple):
    """Two samples, None if missing. `seconds` is the time between them."""

    before: Sample | None
    after: Sample | None

    @property
    def seconds(self) -> float:
        if self.before is None or self.after is None:
            return 0.0
        return float(self.after["t"] - self.before["t"]) / 1000

    def rate(self, total: Callable[[Sample], Any], *, of_process: bool = False) -> float | None:
        """Return the growth of a total per second, or None."""
        if self.before is None or self.after is None or self.seconds <= 0:
            return None
        if of_process and self.before["boot"] != self.after["boot"]:
            return None
        before, after = total(self.before), total(self.after)
        if before is None or after is None or after < before:
            return None  # missing, or recreated under this name
        return round(float(after - before) / self.seconds, 3)

    def last(self, figure: Callable[[Sample], Any]) -> float | None:
        value = None if self.after is None else figure(self.after)
        return None if value is None else float(value)

    def append_ms(self, share: float, samples_min: int) -> float | None:
        """Return the maximum duration of that share of the group commits, in ms."""
        if self.before is None or self.after is None or self.before["boot"] != self.after["boot"]:
            return None
        counts = [b - a for a, b in zip(self.before["append"], self.after["append"], strict=False)]
        if len(counts) != len(LATENCY_BOUNDS_S) + 1 or sum(counts) < samples_min:
            return None
        return quantile_ms(counts, share)


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """Return a quantile of bucketed durations in ms, interpolated within a bucket."""
    rank = share * sum(counts)
    low_s = 0.0
    for count, high_s in zip(counts, LATENCY_BOUNDS_S, strict=False):
        if count and rank <= count:
            return round((low_s + (high_s - low_s) * rank / count) * 1000, 3)
        rank -= count
        low_s = high_s
    return LATENCY_BOUNDS_S[-1] * 1000


class Series(NamedTuple):
    """A figure over time. `topic` distinguishes several topics."""

    name: str
    values: list[float | None]
    topic: str | None = None


def of_broker(spans: Sequence[Span]) -> list[Series]:
    return [
        Series("messagesInPerS", [s.rate(lambda x: x["in"], of_process=True) for s in spans]),
        Series("messagesOutPerS", [s.rate(lambda x: x["out"], of_process=True) for s in spans]),
        Series("logBytesPerS", [s.rate(lambda x: x["log"]) for s in spans]),
        Series("appendP50Ms", [s.append_ms(0.5, SAMPLES_FOR_P50) for s in spans]),
        Series("appendP99Ms", [s.append_ms(0.99, SAMPLES_FOR_P99) for s in spans]),
    ]


def of_topic(spans: Sequence[Span], topic: str) -> list[Series]:
    def figure_of(number: int) -> Callable[[Sample], Any]:
        return lambda sample: (sample["topics"].get(topic) or (None, None))[number]

    return [
        Series("messagesInPerS", [span.rate(figure_of(0)) for span in spans]),
        Series("messages", [span.last(figure_of(1)) for span in spans]),
    ]


def of_group(spans: Sequence[Span], group: str, topic: str = "") -> list[Series]:
    """Return the series of a consumer group, for a single topic or for each."""
    topics = {topic} if topic else {
        name
        for span in spans
        if span.after is not None
        for name in span.after["groups"].get(group, ())
    }  # fmt: skip
    series: list[Series] = []
    for name in sorted(topics):

        def figure_of(number: int, name: str = name) -> Callable[[Sample], Any]:
            return lambda sample: (sample["groups"].get(group, {}).get(name) or (None, None))[
                number
            ]

        series.append(Series("lag", [span.last(figure_of(1)) for span in spans], name))
        series.append(Series("messagesOutPerS", [span.rate(figure_of(0)) for span in spans], name))
    return series
