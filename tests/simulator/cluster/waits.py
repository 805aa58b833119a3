"""Messages that wait in a log which retention takes: popped or to be popped, and transactions.

Retention waits for none of them, only for timers: what waits is gone with the last copy of it, as
any message that nobody has read. (A half is stored again at each check, a popped message when it
comes again.) So each of them is done with, unless its last copy was taken before that was due, or
soon after. Noted is where the brokers store each message, as they apply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from raftmq.broker.state_machine import BrokerApplication
from raftmq.chaos.checks.pops import ACK
from raftmq.store.frame import Frame, FrameKind
from raftmq.store.properties import UNIQ_KEY, decode_properties
from raftmq.store.record import decode_record, walk_records
from tests.simulator.cluster.process import Process, here

WITHIN_NS = 10_000_000_000  # as long as anything that is due may take (lateness.py)

Record = Mapping[str, Any]


class Waits:
    """See the module's docstring."""

    def __init__(
        self, own: Callable[[Process], bool], gone: Callable[[Collection[str]], None]
    ) -> None:
        """`own(process)`: whether that is a broker of this world's group. `gone(names)` is told of
        messages whose last copy has been taken."""
        self._own = own
        self._gone = gone
        self._applied_index = 0
        self._last: dict[str, int] = {}  # id → the position of its last copy, if that is there
        self._taken_ns: dict[str, int] = {}  # id → when its last copy was taken

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while brokers apply."""
        apply = BrokerApplication.apply
        waits = self

        def on_apply(application: BrokerApplication, frames: Sequence[Frame]) -> None:
            apply(application, frames)
            if waits._own(here()):
                waits._note(frames)

        with patch.object(BrokerApplication, "apply", on_apply):
            yield

    def _note(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.index > self._applied_index and frame.kind == FrameKind.MESSAGES:
                data = frame.data[frame.records_at :]
                for at, _ in walk_records(data):
                    record = decode_record(data, at, check_body=False)
                    name = decode_properties(record.properties).get(UNIQ_KEY)
                    if name is not None:
                        self._last[name] = record.physical_offset
                        self._taken_ns.pop(name, None)
        self._applied_index = max(self._applied_index, frames[-1].index)

    def taken(self, start: int) -> None:
        """Note that some replica's log begins at this position now."""
        gone = [name for name, position in self._last.items() if position < start]
        for name in gone:
            del self._last[name]
            self._taken_ns[name] = time.monotonic_ns()
        self._gone(gone)

    def lost(self, records: Iterable[Record], healed_ns: int) -> set[str]:
        """Return the messages that wait for good, and may, by their ids."""
        due_ns: dict[str, int] = {}
        done = set()
        for record in records:
            what, name = record.get("f"), record.get("id", "")
            if what in ("post", "decide"):
                due_ns[name] = record["t_ns"]
            elif what == "pop":
                due_ns[name] = record["t_ns"] + record["invisible_ms"] * 1_000_000
            elif what == "deliver" or (
                what == "pop_end" and record["what"] == ACK and record["type"] in ("ok", "unknown")
            ):
                done.add(name)
        return {
            name
            for name in (due_ns.keys() & self._taken_ns.keys()) - done
            if self._taken_ns[name] <= max(due_ns[name], healed_ns) + WITHIN_NS
        }
