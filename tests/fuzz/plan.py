"""From a seed and a port to what is sent there: some steps, always the same. Pure.

A step is many frames in few writes, or a *situation*: a deed that needs more than frames, such as
connections that stay silent (`situations.py`), with its parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from raftmq.remoting.codes import RequestCode
from tests.fuzz.frames import FrameMaker
from tests.fuzz.peerframes import RaftMaker, damaged_opening, reports
from tests.fuzz.requests import RequestMaker
from tests.fuzz.samples import load
from tests.fuzz.values import damaged

# Which nodes a port's steps go to, each step to all of them.
TARGETS = {
    "broker": ("solo", "n0", "n1", "n2", "master", "slave"),
    "tls": ("n0", "n1", "n2", "names"),
    "names": ("names",),
    "raft": ("lone",),  # by somebody who has the secret
    "stranger": ("n0", "n1", "n2", "solo"),  # on the Raft port, by somebody who has not
    "ha": ("master",),  # by somebody who has it
    "hastranger": ("master",),
    "http": ("solo", "n0", "n1"),
    "nameshttp": ("names",),
}
PORTS = tuple(TARGETS)
SPOKEN = {"broker": "remoting", "names": "remoting", "tls": "remoting", "raft": "raft",
          "stranger": "raft", "ha": "ha", "hastranger": "ha", "http": "http",
          "nameshttp": "http"}  # fmt: skip
# Steps of a seed, and frames of a step.
SIZES = {"broker": (12, 250), "tls": (6, 250), "names": (12, 300), "raft": (20, 100),
         "stranger": (4, 25), "ha": (4, 25), "hastranger": (2, 25), "http": (6, 24),
         "nameshttp": (4, 24)}  # fmt: skip
SITUATIONS = {
    "broker": ("silent", "unfinished", "slow", "unread", "churn", "oneway", "fields", "nesting",
               "bomb", "long"),
    "tls": ("silent", "unfinished", "churn", "fields"),
    "names": ("silent", "unfinished", "slow", "unread", "churn", "fields", "nesting", "bomb",
              "long", "claim"),
    "raft": ("unfinished", "churn"),
    "stranger": ("silent", "unfinished", "churn"),
    "ha": ("churn",),
    "hastranger": ("silent", "churn"),
    "http": ("silent", "unfinished", "slow", "unread", "churn", "fields", "nesting", "long"),
    "nameshttp": ("silent", "unfinished", "slow", "unread", "churn", "fields", "nesting", "long"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """`what`: frames, openings (each on a connection of its own), or a situation."""

    what: str
    frames: Sequence[bytes] = field(default=(), repr=False)
    seed: int = 0  # of a situation's parameters

    def part(self, begin: int, end: int) -> Step:
        """Some of its frames."""
        return replace(self, frames=self.frames[begin:end])


def steps(seed: int, port: str, weight: int = 1) -> list[Step]:
    """All steps of one seed at one port: frames first, `weight` times as many as by default."""
    rng = random.Random(f"{seed} {port}")
    count, size = SIZES[port]
    make, what = _maker(port, rng)
    made = [Step(what, tuple(make() for _ in range(size))) for _ in range(count * weight)]
    if port == "tls":
        made.append(Step("openings", tuple(damaged(_opening(), rng) for _ in range(20))))
    choices = SITUATIONS[port]
    # All of them come round, the first at another seed at each port.
    turn = seed + PORTS.index(port)
    return [*made, Step(choices[turn % len(choices)], seed=rng.randrange(1 << 32))]


def every_situation(port: str, seed: int) -> list[Step]:
    """Each of the port's situations once."""
    rng = random.Random(f"{seed} {port} situations")
    return [Step(name, seed=rng.randrange(1 << 32)) for name in SITUATIONS[port]]


def _opening() -> bytes:
    return load()["tls"][0].data


def _maker(port: str, rng: random.Random) -> tuple[Callable[[], bytes], str]:
    recorded = load()
    if port in ("broker", "names", "tls"):
        codes = [int(code) for code in RequestCode if (code < 1000 or port != "names")]
        of_port = recorded["names" if port == "names" else "broker"]
        return FrameMaker(rng, of_port, codes).frame, "frames"
    if port == "raft":
        return RaftMaker(rng, recorded["raft"]).message, "frames"
    if port == "stranger":
        return lambda: damaged_opening(recorded["raft"], rng), "openings"
    if port == "hastranger":
        openings = [*recorded["raft"], *recorded["ha"]]
        return lambda: damaged_opening(openings, rng), "openings"
    if port == "ha":
        return lambda: reports(recorded["ha"], rng), "openings"
    return RequestMaker(rng, recorded[port]).request, "frames"
