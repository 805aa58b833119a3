"""The replicated progress of delayed and timer messages.

Progress is committed in the same frame as the delivered messages (broker.delayed.delay_levels), so
every replica has both or neither. The JSON is Apache's delayOffset.json: level → offset of the next
message in the level's queue. `timer` is our addition (broker.tables.timer_wheel.Progress). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .timer_wheel import Progress, progress_from_json
from .versioned import entries_of


class DelayOffsets:
    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.timer = Progress()
        self.applied_index = 0
        self.counter = 0  # of changes

    def get(self, level: int) -> int:
        return self.offsets.get(level, 0)

    def advance(self, level: int, offset: int) -> None:
        self.counter += 1
        self.offsets[level] = offset

    def advance_timer(self, progress: Progress) -> None:
        self.counter += 1
        self.timer = progress

    def own(self) -> None:
        """Copy the mutable parts shared with the original table."""
        self.offsets = dict(self.offsets)

    def to_json(self) -> dict[str, Any]:
        version = {"counter": self.counter, "stateVersion": 0, "timestamp": 0}
        table = {str(level): offset for level, offset in sorted(self.offsets.items())}
        value: dict[str, Any] = {"dataVersion": version, "offsetTable": table}
        if self.timer != Progress():
            value["timer"] = self.timer._asdict()
        return value

    def load(
        self,
        value: Mapping[str, Any],
        applied_index: int,
        refused: dict[str, str] | None = None,
    ) -> None:
        """Load a snapshot's or an Apache file, all or nothing. `refused` is as in `entries_of`."""
        table = value.get("offsetTable") or {}
        read = entries_of(table, lambda level, offset: (int(level), int(offset)), refused)
        loaded = dict(read.values())
        said = value.get("timer")
        timer = progress_from_json(said) if said else Progress()
        self.counter = int((value.get("dataVersion") or {}).get("counter", 0))
        self.offsets = loaded
        self.timer = timer
        self.applied_index = applied_index
