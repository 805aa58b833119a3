"""A world to play, as data, and what came of it: what a search passes to its workers and back."""

from __future__ import annotations

import gc
import logging
import re
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import orjson

from tests.simulator.cluster import schedule
from tests.simulator.cluster.invariants import CheckFailed
from tests.simulator.cluster.schedule import Schedule
from tests.simulator.cluster.world import LONG, ClusterWorld, Wish

KIND_WORDS = 5  # so many first words say which promise was broken; then come numbers and names


@dataclass(frozen=True, slots=True)
class Case:
    """A seed; the schedule and parts of the profile that take the place of what it draws; whether
    its world is a long one."""

    seed: int
    schedule: Schedule | None = None
    profile: Mapping[str, Any] = field(default_factory=dict)
    long: bool = False

    @property
    def command(self) -> str:
        """Return the command that replays it."""
        text = ["python", "-m", "tests.simulator", "--verbose", str(self.seed)]
        if self.long:
            text.append("--long")
        if self.schedule is not None:
            text += ["--schedule", orjson.dumps(schedule.to_json(self.schedule)).decode()]
        if self.profile:
            text += ["--profile", orjson.dumps(dict(self.profile)).decode()]
        return shlex.join(text)

    def to_json(self) -> dict[str, Any]:
        strikes = None if self.schedule is None else schedule.to_json(self.schedule)
        profile = dict(self.profile)
        return {"seed": self.seed, "schedule": strikes, "profile": profile, "long": self.long}

    @staticmethod
    def from_json(kept: Mapping[str, Any]) -> Case:
        strikes = kept["schedule"]
        return Case(
            kept["seed"],
            None if strikes is None else schedule.from_json(strikes),
            kept["profile"],
            kept["long"],
        )

    def wish(self, base: Wish) -> Wish:
        profile = {**base.profile, **self.profile}
        size = LONG if self.long else base.size
        return replace(base, schedule=self.schedule, profile=profile, size=size)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a world. `schedule`: the faults that it could suffer; `failure`: "" if none."""

    schedule: Schedule | None
    states: frozenset[int]
    numbers: Counter[str]
    failure: str = ""
    kind: str = ""


def play(
    case: Case, base: Wish | None = None, trace: Callable[[str], None] | None = None
) -> Outcome:
    """Play a world to its end or its first broken promise."""
    with patch.object(sys, "unraisablehook", lambda _: None):
        outcome = _outcome(ClusterWorld(case.seed, trace, case.wish(base or Wish()), covers=True))
        logging.disable(logging.CRITICAL)
        gc.collect()  # what is left of dead processes complains when it is collected
        logging.disable(logging.NOTSET)
    return outcome


def _outcome(world: ClusterWorld) -> Outcome:
    numbers: Counter[str] = Counter()
    failure = kind = ""
    try:
        numbers = world.run()
    except CheckFailed as failed:
        failure, kind = str(failed).partition("\nreplay:")[0], kind_of(str(failed))
    except Exception as error:
        failure, kind = traceback.format_exc(), kind_of(repr(error))
    return Outcome(world.plan.schedule, world.coverage.numbers(), numbers, failure, kind)


def kind_of(failure: str) -> str:
    """Return the failure's first words without what differs from world to world."""
    reason = re.sub(r"^seed \d+ at [\d.]+ s: ", "", failure).partition("\n")[0]
    general = re.sub(r"\b[ns]?\d+\b", "#", reason)
    return " ".join(re.split(r"[\s{]+", general)[:KIND_WORDS])
