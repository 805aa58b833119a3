"""A process's metrics in Prometheus' format, from its owner's families and its own figures.

Between scrapes only `Timings` (a bisection per timing) and `LoopLag` (a timer, four times per
second) cost CPU time. A scrape runs on the loop and gathers existing figures in `Families`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

LOOP_LAG_PERIOD_S = 0.25
# From a fast NVMe's fdatasync, or a commit within a machine, up to a time-out.
LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
LAG_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

Row = tuple[Sequence[str], float]  # label values, figure


class Timings:
    """Durations in buckets, as in Prometheus' histograms, with a single writer."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (bound, cumulative count) pairs; the last bound is "+Inf"."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self.bounds_s, "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return buckets


class LoopLag:
    """Measures the loop's lateness for a timer, the minimal wait of every request."""

    def __init__(self, timings: Timings) -> None:
        self.timings = timings
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + LOOP_LAG_PERIOD_S
        self._timer = loop.call_at(self._due_s, self._measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        self.timings.observe(max(0.0, loop.time() - self._due_s))
        self.start()


class Families:
    """Gathers the metric families of a scrape, all with `labels`."""

    def __init__(self, labels: Sequence[tuple[str, str]]) -> None:
        self._names = [name for name, _ in labels]
        self._values = [value for _, value in labels]
        self.all: list[Metric] = []

    def gauge(self, name: str, doc: str, value: float) -> None:
        """Add a gauge with a single figure."""
        self.gauges(name, doc, (), [((), value)])

    def gauges(self, name: str, doc: str, labels: Sequence[str], rows: Iterable[Row]) -> None:
        """Add a gauge with a figure per row; `labels` name the rows' label values."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        family = GaugeMetricFamily(name, doc, labels=[*self._names, *labels])
        for values, figure in rows:
            family.add_metric([*self._values, *values], figure)
        self.all.append(family)

    def counter(self, name: str, doc: str, value: float) -> None:
        """Add a counter with a single figure; `name` ends with _total."""
        self.counters(name, doc, (), [((), value)])

    def counters(self, name: str, doc: str, labels: Sequence[str], rows: Iterable[Row]) -> None:
        """Add a counter with a figure per row; `name` ends with _total."""
        assert name.endswith("_total"), name
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(name, doc, labels=[*self._names, *labels])
        for values, figure in rows:
            family.add_metric([*self._values, *values], figure)
        self.all.append(family)

    def states(self, name: str, doc: str, label: str, states: Sequence[str], now: str) -> None:
        """Add a family with a series per state, 1 for the present state, else 0."""
        known = states if now in states else (*states, now)
        self.gauges(name, doc, (label,), [((state,), float(state == now)) for state in known])

    def histogram(self, name: str, doc: str, timings: Timings) -> None:
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(name, doc, labels=self._names)
        family.add_metric(self._values, timings.buckets(), timings.sum_s)
        self.all.append(family)


class Exposition:
    """A registry of this process; `collect` gathers its owner's families at each scrape.

    The first scrape imports prometheus_client, so that a start need not.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._registry: CollectorRegistry | None = None

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type; `accept` is the scraper's Accept header."""
        from prometheus_client.exposition import choose_encoder

        if self._registry is None:
            self._registry = _registry(self._collect)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _registry(collect: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """Return a registry of the owner's families and of the process's own figures."""
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
    from prometheus_client.registry import Collector

    class Owners(Collector):
        def describe(self) -> Iterable[Metric]:
            return ()  # the families are unknown before the first scrape

        def collect(self) -> Iterable[Metric]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Owners())
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
