"""Plans from a seed which fault hits which target, and when. Data in, data out; no clock, no I/O.

The time is divided into equal slots, one per wish and repeat. Every round has each wish once, in a
shuffled order. A fault starts in the first third of its slot and is healed before the slot's end,
so the cluster can recover before the next fault. A wish of several faults is a composition: the
later faults start while the first lasts. The same seed and arguments give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .base import Kind, Planned

FAULTS_MAX = 10_000
PARTS_MAX = 8
START_SHARES = (0.15, 0.35)  # shares of a slot between which its fault starts
LASTS_MAX = 0.4  # part of a slot; with the above and the later parts all is healed at 0.91 of it


@dataclass(frozen=True, slots=True)
class Want:
    """A wish for a kind, with its target (by default the kind's usual target), and given numbers in
    the place of drawn numbers.

    `for_s`: how many seconds the fault is to last; 0: drawn. It may not be longer than its slot
    allows.
    """

    kind: Kind
    whom: str = ""
    for_s: float = 0.0
    params: Mapping[str, str | float] = field(default_factory=dict)


def plan(
    seed: int,
    wishes: Sequence[Sequence[Want]],
    seconds: float,
    repeats: int,
    *,
    in_order: bool = False,
) -> tuple[Planned, ...]:
    """Plan each of `wishes` (its parts at the same time) `repeats` times within `seconds`, shuffled
    in each round unless `in_order`.

    Sorted by start, numbered from 1. Raises ValueError outside the limits.
    """
    slots = len(wishes) * repeats
    if repeats < 0 or slots * max((len(parts) for parts in wishes), default=0) > FAULTS_MAX:
        raise ValueError(f"a plan holds 0 to {FAULTS_MAX} faults")
    if seconds <= 0:
        raise ValueError(f"the time to spread faults over must be positive, not {seconds}")
    if any(not 1 <= len(parts) <= PARTS_MAX for parts in wishes):
        raise ValueError(f"1 to {PARTS_MAX} faults can be at the same time")
    rng = random.Random(seed)
    result: list[Planned] = []
    slot_s = seconds / slots if slots else seconds
    for round_ in range(repeats):
        order = list(range(len(wishes)))
        if not in_order:
            rng.shuffle(order)
        for order_at, index in enumerate(order):
            slot = round_ * len(wishes) + order_at
            result += _slot(rng, wishes[index], slot, slot_s, len(result))
    result.sort(key=lambda planned: planned.at_s)
    return tuple(result)


def _slot(
    rng: random.Random, parts: Sequence[Want], slot: int, slot_s: float, before: int
) -> list[Planned]:
    most_s = slot_s * LASTS_MAX
    first_at_s = slot_s * slot + slot_s * rng.uniform(*START_SHARES)
    result: list[Planned] = []
    for want in parts:
        if want.for_s > most_s:
            raise ValueError(
                f"{want.kind.name} for {want.for_s:g} s does not fit: with so many faults in the "
                f"time there is, one may last {most_s:.2g} s"
            )
        drawn_s = min(rng.uniform(*want.kind.lasts_s), most_s)
        for_s = 0.0 if want.kind.oneoff else want.for_s or drawn_s
        at_s = first_at_s
        if result:
            at_s += rng.uniform(0.1, 0.4) * (result[0].for_s or drawn_s)
        params = {name: rng.uniform(*bounds) for name, bounds in want.kind.params.items()}
        result.append(
            Planned(
                before + len(result) + 1,
                at_s,
                for_s,
                want.kind.name,
                want.whom or want.kind.whom[0],
                rng.random(),
                params | dict(want.params),
                slot,
            )
        )
    return result
