"""The schedule of a world's faults, as data: which strikes when, and from which seed it draws.

Every strike draws from its own seed, whom it hits and for how long. So a strike that is taken out,
added or moved changes nothing about the others' draws. A schedule is kept as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from random import Random

import orjson


@dataclass(frozen=True, slots=True, order=True)
class Strike:
    """One fault. `at_s` counts from the moment at which faults begin."""

    at_s: float
    fault: str
    seed: int


Schedule = tuple[Strike, ...]


def drawn(rng: Random, faults: Sequence[str], every_s: float, length_s: float) -> Schedule:
    """Draw a fault about every so often."""
    strikes = []
    at_s = every_s * rng.random()
    while at_s < length_s:
        strikes.append(strike(rng, at_s, rng.choice(faults)))
        at_s += 2 * every_s * rng.random()
    return tuple(strikes)


def strike(rng: Random, at_s: float, fault: str) -> Strike:
    """Draw a strike of this kind at this time."""
    return Strike(round(at_s, 4), fault, rng.getrandbits(32))


def without(schedule: Schedule, faults: Collection[str]) -> Schedule:
    """Return the schedule without these faults."""
    return tuple(one for one in schedule if one.fault not in faults)


def to_json(schedule: Iterable[Strike]) -> list[tuple[float, str, int]]:
    return [astuple(one) for one in schedule]


def from_json(strikes: Iterable[Sequence[float | str | int]]) -> Schedule:
    return tuple(Strike(float(at_s), str(fault), int(seed)) for at_s, fault, seed in strikes)


def read(text: str) -> Schedule:
    return from_json(orjson.loads(text))


def table(schedule: Iterable[Strike]) -> str:
    """Return the schedule for a person, a strike a line."""
    return "\n".join(f"{one.at_s:9.4f} s  {one.fault:20} {one.seed}" for one in schedule)
