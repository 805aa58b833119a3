"""The history of a run in memory, with the interface of the harness's HistoryWriter."""

from __future__ import annotations

import itertools
import time
from typing import Any

from raftmq.chaos.history.assembly import VERSION


class Recorder:
    """See raftmq.chaos.history.files.HistoryWriter."""

    def __init__(self, **meta: Any) -> None:
        self._ops = itertools.count(1)
        self._open = True
        self.records: list[dict[str, Any]] = []
        self.write(
            {
                "type": "meta",
                "version": VERSION,
                "wall_ms": time.time_ns() // 1_000_000,
                "t_ns": time.monotonic_ns(),
                **meta,
            }
        )

    def next_op(self) -> int:
        return next(self._ops)

    def write(self, record: dict[str, Any]) -> None:
        if self._open:
            self.records.append(record)

    def event(self, kind: str, function: str, process: str, op: int, /, **fields: Any) -> int:
        t_ns = time.monotonic_ns()
        self.write({"type": kind, "f": function, "op": op, "t_ns": t_ns, "p": process, **fields})
        return t_ns

    def record(self, function: str, process: str, /, **fields: Any) -> None:
        self.event("ok", function, process, self.next_op(), **fields)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """End the history. Programs that the world ends run their `finally` blocks later, and a
        guest that lost power long ago must not end its work only then."""
        self._open = False
