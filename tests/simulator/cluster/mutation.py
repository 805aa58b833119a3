"""Draws a new world from one that reached something new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.simulator.cluster.case import Case
from tests.simulator.cluster.faults import FAULTS
from tests.simulator.cluster.schedule import Schedule, Strike, strike

STRIKES_MAX = 80  # as many as the roughest drawn schedules have
LENGTH_S = 5.0  # the longest that faults strike (world.SHORT)
CHANGES_MAX = 4


def mutated(rng: Random, parent: Case, other: Case, fresh_seed: int) -> Case:
    """Return a case that differs from its parent in a few strikes, that goes on as `other` does,
    or that plays the same schedule in another world."""
    if rng.random() < 0.2:
        return replace(parent, seed=fresh_seed)
    strikes = parent.schedule or ()
    for _ in range(rng.randint(1, CHANGES_MAX)):
        if rng.random() < 0.15:
            strikes = spliced(rng, strikes, other.schedule or ())
        else:
            strikes = rng.choice(CHANGES)(rng, strikes)
    return replace(parent, schedule=tuple(sorted(strikes)[:STRIKES_MAX]))


def spliced(rng: Random, head: Schedule, tail: Schedule) -> Schedule:
    """Return what strikes here before a moment, and there from then on."""
    at_s = rng.uniform(0, LENGTH_S)
    return tuple(
        [one for one in head if one.at_s < at_s] + [one for one in tail if one.at_s >= at_s]
    )


def _dropped(rng: Random, strikes: Schedule) -> Schedule:
    """Leave out one strike or some that follow each other."""
    if not strikes:
        return strikes
    at, count = rng.randrange(len(strikes)), rng.choice((1, 1, 2, 4, 8))
    return strikes[:at] + strikes[at + count :]


def _added(rng: Random, strikes: Schedule) -> Schedule:
    return *strikes, strike(rng, rng.uniform(0, LENGTH_S), rng.choice(FAULTS))


def _moved(rng: Random, strikes: Schedule) -> Schedule:
    return _with_another(rng, strikes, lambda one: replace(one, at_s=_near(rng, one.at_s)))


def _redrawn(rng: Random, strikes: Schedule) -> Schedule:
    """Let one strike hit another victim, or for another time."""
    return _with_another(rng, strikes, lambda one: replace(one, seed=rng.getrandbits(32)))


def _repeated(rng: Random, strikes: Schedule) -> Schedule:
    """Let a strike hit once more, near the first time."""
    if not strikes:
        return strikes
    one = rng.choice(strikes)
    return *strikes, replace(one, at_s=_near(rng, one.at_s))


def _with_another(rng: Random, strikes: Schedule, change: Callable[[Strike], Strike]) -> Schedule:
    if not strikes:
        return strikes
    at = rng.randrange(len(strikes))
    return *strikes[:at], change(strikes[at]), *strikes[at + 1 :]


def _near(rng: Random, at_s: float) -> float:
    return round(min(LENGTH_S, max(0.0, at_s + rng.gauss(0, 0.5))), 4)


CHANGES = (_dropped, _added, _added, _moved, _redrawn, _repeated)
