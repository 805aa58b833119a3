"""The searches of the model: within which bounds, and without which rules.

RecoveryCheck.tla explains the bounds. `SEARCHES` and `BROKEN` are small enough for every run of the
tests; `LONG_SEARCHES` and `LONG_BROKEN` are the long tests' (`make test-long`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

INVARIANTS = ("ElectionSafety", "LeaderCompleteness", "PromisesKept", "LogMatching")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one search."""

    founders: str = "abc"
    joiners: str = ""
    start: str = "led"
    term_max: int = 2
    length_max: int = 3
    losses_max: int = 1
    restarts_max: int = 0
    loss_kinds: tuple[str, ...] = ("disk",)
    members: bool = False
    unpromised: bool = False

    def configuration(self, broken: Iterable[str] = ()) -> str:
        """TLC's configuration file for a search without the rules that are named."""
        replicas = [*self.founders, *self.joiners]
        constants = {
            **{name: name for name in replicas},
            "Replicas": _set(replicas),
            "Founders": _set(self.founders),
            "Leader": self.founders[0],
            "Nobody": "nobody",
            "TermMax": self.term_max,
            "AtOnce": "TRUE",
            "Broken": _set(f'"{rule}"' for rule in broken),
            "Start": f'"{self.start}"',
            "LengthMax": self.length_max,
            "LossesMax": self.losses_max,
            "RestartsMax": self.restarts_max,
            "LossKinds": _set(f'"{kind}"' for kind in self.loss_kinds),
            "Members": str(self.members).upper(),
            "Unpromised": str(self.unpromised).upper(),
        }
        lines = ["INIT Init", "NEXT Next", "SYMMETRY Symmetry", "CHECK_DEADLOCK FALSE"]
        lines += [f"INVARIANT {name}" for name in INVARIANTS]
        lines += [f"CONSTANT {name} = {value}" for name, value in constants.items()]
        return "\n".join(lines)


def _set(items: Iterable[str]) -> str:
    return "{" + ", ".join(items) + "}"


_CHANGES = Bounds(members=True, length_max=4, losses_max=0)
_FOUNDING = Bounds(start="blank", length_max=2, losses_max=0)
_SET_BACK = Bounds(length_max=2, loss_kinds=("image",))

# By what they show: the bounds, and how many states there are within them.
SEARCHES: Mapping[str, tuple[Bounds, int]] = {
    "a replica loses its disk": (Bounds(length_max=2), 9_512),
    "one of two voters loses its disk": (Bounds(founders="ab", unpromised=True), 3_133),
    "a group is founded": (_FOUNDING, 6_967),
    "a disk is set back": (_SET_BACK, 3_258),
}
LONG_SEARCHES: Mapping[str, tuple[Bounds, int]] = {
    "voters are added and removed": (_CHANGES, 36_357),
    "a replica loses its disk": (Bounds(), 111_895),
    "a replica loses its votes, or frames": (Bounds(loss_kinds=("votes", "frames")), 40_861),
    "a disk is set back": (Bounds(loss_kinds=("image",)), 46_863),
    "a replica loses its disk, another one restarts": (
        Bounds(length_max=2, restarts_max=1),
        95_784,
    ),
    "one of two voters loses its disk": (
        Bounds(founders="ab", term_max=3, unpromised=True),
        64_469,
    ),
    "one loses its disk while a group is founded": (
        Bounds(start="blank", length_max=2, unpromised=True),
        469_856,
    ),
    "a replica loses its disk while voters are removed": (Bounds(members=True), 275_797),
    "a replica loses its disk while a third voter comes and goes": (
        Bounds("ab", "c", members=True),
        24_606,
    ),
}

# A rule of Recovery.tla, and the bounds within which its want shows.
BROKEN: Mapping[str, Bounds] = {
    # Raft's, with memory lost: 13, 14, 16, 17 and 19 of tests/simulator/cluster/corebreaks.py
    "only recovered voters make a majority": Bounds(),
    "only recovered replicas' copies count": Bounds(),
    "a barrier proposed after the loss": Bounds(),
    "all means all": Bounds(),
    "that it recovers is noted": Bounds(restarts_max=1),
    # of older stores
    "older stores are told": _SET_BACK,
    "what an older store began ends": _SET_BACK,
    # of members: M1 to M4 there
    "a configuration is in force from its append on": _CHANGES,
    "one change at a time": _CHANGES,
    "only voters count": _CHANGES,
    "a leader that is removed does not count itself": _CHANGES,
}
LONG_BROKEN: Mapping[str, Bounds] = {
    "more than the leader vouches for a replica": Bounds(),  # 15 there
    "configurations outlive a restart": Bounds(
        members=True, length_max=4, losses_max=0, restarts_max=1
    ),
    "for one that does not vote a majority vouches": Bounds(members=True),
    "founding waits for all voters": Bounds(start="blank", length_max=2, unpromised=True),
}
