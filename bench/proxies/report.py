"""The figures of bench.proxies, their medians, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.proxies.lanes import Timed
from bench.rounds import share

GOAL = 0.8  # of what Apache's proxy and brokers send
HEAD = (
    *("in flight", "through, to", "a second", "of Apache's", "p50 ms", "p99 ms"),
    *("proxies' CPU ms", "brokers' CPU ms", "client's CPU ms"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One way in one round: sends a second, their latencies, and the CPU milliseconds of all
    proxies, all brokers and the client for each."""

    rate: float
    p50_ms: float
    p99_ms: float
    proxies_ms: float
    brokers_ms: float
    client_ms: float
    refused: int


# By load, then by way: one entry for each round.
Found = Mapping[str, Mapping[str, Sequence[Figures]]]


def figures_of(found: Timed, proxies_us: float, brokers_us: float) -> Figures:
    """Return a load's figures, the CPU time shared by its sends. At least one has to have been
    acknowledged."""
    result = found.result
    assert result.messages, "a load without a send"
    each = 1000 * result.messages
    return Figures(
        result.rate,
        result.percentile_ms(0.5),
        result.percentile_ms(0.99),
        proxies_us / each,
        brokers_us / each,
        found.client_us / each,
        result.refused,
    )


def smallest(shares: Mapping[int, float], goal: float = GOAL) -> int | None:
    """Return the smallest number of proxies whose share reaches the goal; None if none does."""
    return min((count for count, part in shares.items() if part >= goal), default=None)


def lines(found: Found, beside: str) -> list[tuple[str, ...]]:
    """Return the table's lines: medians over the rounds, and shares of `beside`'s rate."""
    made = []
    for load, ways in found.items():
        for way, rounds in ways.items():
            made.append((load, way, *_cells(rounds, share(rounds, ways[beside]))))
    return made


def _cells(rounds: Sequence[Figures], part: float) -> tuple[str, ...]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(figures, name) for figures in rounds))

    return (
        f"{median('rate'):,.0f}",
        f"{part:.0%}",
        f"{median('p50_ms'):.2f}",
        f"{median('p99_ms'):.1f}",
        f"{median('proxies_ms'):.2f}",
        f"{median('brokers_ms'):.2f}",
        f"{median('client_ms'):.2f}",
    )


def verdicts(found: Found, goal: str, same: str, counts: Mapping[str, int]) -> list[str]:
    """Return for each load how many of our proxies reach the goal, a share of the way `goal`, and
    their shares of `same`, Apache's proxy before the same brokers; and each way whose sends failed.
    `counts`: the number of our proxies, by way."""
    said = []
    for load, ways in found.items():
        shares = {count: share(ways[way], ways[goal]) for way, count in counts.items()}
        fewest = smallest(shares)
        reached = f"{fewest} mqproxy" if fewest is not None else "not reached"
        said.append(f"{load} in flight, {GOAL:.0%} of {goal}: {reached} ({_listed(shares)})")
        shares = {count: share(ways[way], ways[same]) for way, count in counts.items()}
        said.append(f"{load} in flight, of {same}: {_listed(shares)}")
        for way, rounds in ways.items():
            if refused := sum(figures.refused for figures in rounds):
                said.append(f"{load} in flight, {way}: {refused} sends failed")
    return said


def _listed(shares: Mapping[int, float]) -> str:
    return ", ".join(f"{count}: {part:.0%}" for count, part in shares.items())


def as_json(found: Found) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return every round's figures."""
    return {
        load: {way: [asdict(figures) for figures in rounds] for way, rounds in ways.items()}
        for load, ways in found.items()
    }
