"""The states that a world has reached, abstract enough that worlds can be compared by them.

Of a broker: whether it runs, its role, whether it has recovered, its disk, damage, a snapshot
install, its standing in the group. Noted are the roles and faults that brokers have together,
however many have each, and each step of one broker from a state to another. A state is kept as a
number, the same in every process, so that sets of them can be compared between workers.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld

State = tuple[object, ...]


class Coverage:
    """See the module's docstring. `poll` notes what is now, if anybody will ask for the states:
    looking takes three hundredths of a world's time."""

    def __init__(self, world: ClusterWorld, wanted: bool) -> None:
        self._world = world
        self._damaged = wanted
        self._seen: set[State] = set()
        self._before: dict[str, State] = {}

    def poll(self) -> None:
        """Note the state of now."""
        if not self._damaged:
            return
        result = {name: self._standing(name) for name in self._world.brokers}
        if result == self._before:
            return
        for name, standing in result.items():
            before = self._before.get(name, ())
            if before != standing:
                self._seen.add(("step", before, standing))
        self._before = result
        together = {str(standing[0]) for standing in result.values()}
        self._seen.add(("group", *sorted(together)))

    def numbers(self) -> frozenset[int]:
        """Return every state that was reached."""
        return frozenset(number_of(state) for state in self._seen)

    def _standing(self, name: str) -> State:
        world = self._world
        machine = world.brokers[name]
        broker = world.invariants.brokers.get(name)
        if not machine.processes or broker is None:
            return ("down",)
        if machine.disk_stalled or any(process.frozen for process in machine.processes):
            return ("stopped",)
        return responder_state(broker.engine.status())


def responder_state(status: dict[str, Any]) -> State:
    """Return what matters of a member's view (raftmq.dledger.node.status)."""
    if status["failure"] is not None:
        return ("failed",)
    return (
        status["role"],
        status.get("recovered"),
        status.get("disk_state") != "ok",
        status.get("membership"),
        status["damaged_count"] > 0,
        status.get("installing") is not None,
    )


def number_of(state: State) -> int:
    return int.from_bytes(blake2b(repr(state).encode(), digest_size=8).digest(), "big")
