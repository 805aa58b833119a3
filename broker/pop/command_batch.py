"""Batches changes of the pop table into commands of the log.

A handler decides a change from the applied table and the changes in flight (`leader_state`), calls
`add`, and responds when `done` is called. Changes during a command are gathered for the next
command, because more and smaller frames would load the followers.

A change must not be logged without the changes it was based on. So changes gathered in an earlier
leadership are rejected. After a command with an unknown outcome, an empty command is proposed. Once
that is applied, so is the earlier command.

A step logged after the deletion of its topic or group would outlive it. So such steps are rejected
until the deletion is applied (`check`), and the deletion waits for accepted steps (`settled`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX

from ..component import next_turn
from ..error_isolation import Contained
from ..errors import busy, not_leader
from ..send.callbacks import Completion, is_unknown
from ..tables.pops import Step, pop_command

COMMAND_BYTES_MAX = 3 << 20  # of JSON, by an upper estimate; the limit is 4 MiB
ENVELOPE_BYTES = 64  # of JSON around the steps
VALUE_BYTES = 24  # of a number, or of a name besides its characters
CHARACTER_BYTES_MAX = 6  # of JSON
GATHERED_MAX = 20_000
PAUSE_S = 0.1

Done = Callable[[Exception | None], None]


def _after_a_pause(act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(PAUSE_S, act)


class _Change(NamedTuple):
    """Related steps, decided in the same leadership."""

    leadership: int
    steps: Sequence[Step]
    done: Done


def _bytes_max(value: object) -> int:
    if isinstance(value, str):
        return VALUE_BYTES + CHARACTER_BYTES_MAX * len(value)
    if isinstance(value, tuple | list):
        return VALUE_BYTES + sum(map(_bytes_max, value))
    return VALUE_BYTES


class StepLog:
    def __init__(
        self,
        propose_then: Callable[[bytes, Done], None],
        contained: Contained,
        leadership: Callable[[], int],
        soon: Callable[[Callable[[], None]], object] = next_turn,
        later: Callable[[Callable[[], None]], object] = _after_a_pause,
        *,
        check: Callable[[Step], None] = lambda step: None,
        command_bytes_max: int = COMMAND_SIZE_BYTES_MAX,
    ) -> None:
        """`propose_then(command, done)` calls `done` with the outcome. `leadership()` returns the
        number of the present leadership (LiveQueues). `check(step)` raises Refused for a blocked
        step. `command_bytes_max` is the limit of the log (dledger.node.proposals)."""
        self._bytes_max = min(COMMAND_BYTES_MAX, command_bytes_max - ENVELOPE_BYTES)
        self._propose_then = propose_then
        self._contained = contained
        self._leadership = leadership
        self._check = check
        self._soon = soon
        self._later = later
        self._gathered: list[_Change] = []
        self._in_flight = False
        self._called = False

    def add(self, steps: Sequence[Step], done: Done) -> None:
        """Propose steps with the next command. Raises Refused, without effect, at the limit or for
        a blocked step; `done` is not called then."""
        for step in steps:
            self._check(step)
        if len(self._gathered) >= GATHERED_MAX:
            raise busy("too many changes of popped messages wait")
        self._gathered.append(_Change(self._leadership(), steps, done))
        if not self._called and not self._in_flight:
            self._called = True
            self._soon(self._flush)

    async def settled(self) -> None:
        """Return once all accepted steps are applied. Raises OutcomeUnknown, Refused and the
        member's errors."""
        if self._in_flight or self._gathered:
            ended = Completion()
            self.add((), ended)
            await ended.stored()

    def _flush(self) -> None:
        self._called = False
        self._refuse_stale()
        if self._in_flight or not self._gathered:
            return
        count = size = 0
        for one in self._gathered:
            size += sum(map(_bytes_max, one.steps))
            if count and size > self._bytes_max:
                break
            count += 1
        batch, self._gathered = self._gathered[:count], self._gathered[count:]
        self._in_flight = True
        self._propose(batch)

    def _refuse_stale(self) -> None:
        leadership = self._leadership()
        stale = [one for one in self._gathered if one.leadership != leadership]
        if stale:
            self._gathered = [one for one in self._gathered if one.leadership == leadership]
            self._notify(stale, not_leader())

    def _notify(self, batch: list[_Change], error: Exception | None) -> None:
        for one in batch:
            self._contained.run("pop_told", partial(one.done, error))

    def _propose(self, batch: list[_Change]) -> None:
        leadership = batch[0].leadership

        def ended(error: Exception | None) -> None:
            if error is not None and is_unknown(error) and leadership == self._leadership():
                self._propose_then(pop_command(()), partial(settled, error))
                return
            self._in_flight = False
            self._notify(batch, error)
            self._flush()

        def settled(unknown: Exception, error: Exception | None) -> None:
            if error is None and leadership == self._leadership():
                ended(None)
            elif error is None or is_unknown(error):
                ended(unknown)
            else:  # rejected, so retry after a pause
                self._later(partial(ended, unknown))

        self._propose_then(pop_command([step for one in batch for step in one.steps]), ended)
