"""The states that a world has reached, abstract enough that worlds can be compared by them.

Of a broker: whether it runs, its role, whether it has recovered, its disk, damage, a snapshot
install, its standing in the group, how far it lags. Noted are the states of all brokers together,
and each step of one broker from a state to another with the fault that struck last. A state is
kept as a number, the same in every process, so that sets of them can be compared between workers.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld

State = tuple[object, ...]
LAG_LONG = 64  # frames; a follower further behind than that catches up in several requests


class Coverage:
    """See the module's docstring. `look` notes what is now."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._seen: set[State] = set()
        self._before: dict[str, State] = {}

    def look(self) -> None:
        """Note the state of now."""
        world = self._world
        latest = world.plan.latest
        found = {name: self._standing(name) for name in world.brokers}
        for name, standing in found.items():
            before = self._before.get(name, ())
            if before != standing:
                self._seen.add(("step", latest, before, standing))
        if found != self._before:
            self._before = found
            self._seen.add(("group", *sorted(found.values(), key=repr)))

    def numbers(self) -> frozenset[int]:
        """Return every state that was reached."""
        return frozenset(number_of(state) for state in self._seen)

    def _standing(self, name: str) -> State:
        world = self._world
        machine = world.brokers[name]
        broker = world.invariants.brokers.get(name)
        if not machine.powered:
            return ("off",)
        if not machine.processes or broker is None:
            return ("down",)
        frozen = any(process.frozen for process in machine.processes)
        return frozen, machine.disk_stalled, *standing_of(broker.engine.status())


def standing_of(status: dict[str, Any]) -> State:
    """Return what matters of a member's view (raftmq.dledger.status)."""
    committed, applied = status.get("commit_index", 0), status.get("applied_index", 0)
    return (
        status["role"],
        status["leader_ready"],
        status["leader"] is None,
        status["failure"] is not None,
        status.get("recovered"),
        status.get("disk_state"),
        status.get("membership"),
        status.get("configuration_committed"),
        status["damaged_count"] > 0,
        status.get("installing") is not None,
        status["first_index"] > 1,
        lag(status["last_index"] - committed),
        lag(committed - applied),
    )


def lag(frames: int) -> int:
    """Return 0 for none, 1 for a few frames, 2 for many."""
    return int(frames > 0) + int(frames > LAG_LONG)


def number_of(state: State) -> int:
    return int.from_bytes(blake2b(repr(state).encode(), digest_size=8).digest(), "big")
