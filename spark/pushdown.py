"""Spark's predicates as bounds on the read queues, offsets and times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from .offset_ranges import Queue

_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_UP_TO = (EqualTo, LessThan, LessThanOrEqual)


@dataclass(slots=True)
class Narrowing:
    """Bounds derived from predicates: `queues` by field of Queue, offsets in [offset_min,
    offset_end), stored at or after `from_ms`. They never exclude a matching message, but may
    include others."""

    queues: dict[str, set[object]] = field(default_factory=dict)
    offset_min: int = 0
    offset_end: int | None = None
    from_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """Return the bounds of predicates that must all hold."""
        narrowing = cls()
        for each in filters:
            narrowing._narrow(each)
        return narrowing

    def takes(self, queue: Queue) -> bool:
        return all(getattr(queue, name) in values for name, values in self.queues.items())

    def offsets(self, start: int, end: int) -> tuple[int, int]:
        if self.offset_end is not None:
            end = min(end, self.offset_end)
        return max(start, self.offset_min), end

    def _narrow(self, each: Filter) -> None:
        name = ".".join(getattr(each, "attribute", ()))
        value = getattr(each, "value", None)
        if name in Queue._fields and isinstance(each, (EqualTo, In)):
            values = set(value) if isinstance(each, In) else {value}  # type: ignore[arg-type]
            self.queues[name] = self.queues.get(name, values) & values
        elif name == "queue_offset" and isinstance(value, int):
            self._offsets(each, value)
        elif name == "store_time" and isinstance(value, dt.datetime):
            if isinstance(each, _FROM):
                from_ms = int(value.timestamp() * 1000)
                self.from_ms = max(from_ms, self.from_ms or 0)

    def _offsets(self, each: Filter, value: int) -> None:
        if isinstance(each, _FROM):
            self.offset_min = max(self.offset_min, value + isinstance(each, GreaterThan))
        if isinstance(each, _UP_TO):
            end = value + (not isinstance(each, LessThan))
            self.offset_end = end if self.offset_end is None else min(end, self.offset_end)
