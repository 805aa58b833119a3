"""`python -m raftmq.chaos.faults.faulty_broker -c broker.conf`: `mqbroker` over the fault layer.

The same broker with the same options; the harness controls its disk and its time of day. The
directory of faults is beside the store: DIR/<node>/store, DIR/<node>/faults.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from raftmq.broker.cli import main
from raftmq.broker.process import Machine

from .fault_control import Control, Rule, Steering, TooManyRules
from .fault_disk import FaultDisk
from .power import FAULTS


def steerable_machine(root: str) -> Machine:
    """Return the machine of the broker with the store at `root`."""
    home = Path(root).absolute().parent / FAULTS
    control = Control(home)
    return Machine(FaultDisk(root, home, control), control.wall_ms, HttpDoor(home))


PREFIX = "http-"
CLOCK = "clock"


class HttpDoor:
    """Lists, adds and heals faults over HTTP. Blocking."""

    def __init__(self, home: Path) -> None:
        self._steering = Steering(home)

    def listed(self) -> list[dict[str, Any]]:
        result = [
            {"id": key, "own": key.startswith(PREFIX), "kind": rule.effect, **asdict(rule)}
            for key, rules in sorted(self._steering.rules().items())
            for rule in rules
        ]
        offset_ms = self._steering.clock_offset_ms()
        if offset_ms:
            result.append({"id": CLOCK, "own": True, "kind": CLOCK, "offset_ms": offset_ms})
        return result

    def add(self, fault: dict[str, Any]) -> str:
        """Add a fault; return its id. Raises ValueError."""
        if fault["kind"] == CLOCK:
            self._steering.set_clock(int(fault["offset_ms"]))
            return CLOCK
        rule = Rule(
            fault["kind"],
            tuple(fault["calls"]),
            fault["pattern"],
            fault["skip"],
            fault["times"],
            float(fault["delay_ms"]),
        )
        taken = {key for key in self._steering.rules() if key.startswith(PREFIX)}
        number = next(n for n in range(len(taken) + 1) if f"{PREFIX}{n}" not in taken)
        try:
            self._steering.put(f"{PREFIX}{number}", [rule])
        except TooManyRules as error:
            raise ValueError(str(error)) from error
        return f"{PREFIX}{number}"

    def heal(self) -> int:
        own = [key for key in self._steering.rules() if key.startswith(PREFIX)]
        for key in own:
            self._steering.drop(key)
        clock = int(self._steering.clock_offset_ms() != 0)
        if clock:
            self._steering.set_clock(0)
        return len(own) + clock


if __name__ == "__main__":
    main(obj=steerable_machine)
