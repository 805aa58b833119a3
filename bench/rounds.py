"""Summarises benchmarks that measure in rounds: shares within a round, medians, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Protocol


class Rated(Protocol):
    """The figures of one round."""

    @property
    def rate(self) -> float:
        """A second."""
        ...


def share(found: Sequence[Rated], other: Sequence[Rated]) -> float:
    """Return the median over rounds of one way's rate as a share of another's."""
    return statistics.median(a.rate / b.rate for a, b in zip(found, other, strict=True))


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    rows = [head, ("---",) * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
