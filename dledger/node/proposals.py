"""Proposals, and the report of their outcomes, exactly once per command.

A proposal is identified by (index, term). Only the *committed* frames, in order, decide its
outcome:

- If the frame (index, term) itself is applied, it is stored.
- If a frame at or before its index with a higher term is applied, it can never be stored. Every
  later leader has that frame (leader completeness), and behind it no log has a lower term.
- Otherwise the outcome is open. Even after a truncation here the frame may survive at another
  replica that is elected later (possible with five replicas, and with three when the truncation
  itself was not durable).

So after a loss of leadership a proposal waits for its outcome, and fails with OUTCOME_UNKNOWN after
a time-out. A command that was never proposed is certainly not stored, and fails at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.store.frame import HEADER_SIZE_BYTES, Frame
from raftmq.store.record import BLANK_SIZE_BYTES

from ..raft.errors import Busy, CommandTooLarge, NotLeader, OutcomeUnknown, RaftError
from ..raft.messages import NodeId

COMMAND_SIZE_BYTES_MAX = 4 << 20  # state changes are small; frames have at most 32 MiB


def command_bytes_max(segment_size_bytes: int) -> int:
    """Return the max. size of a command for a log of such segments. A frame is never divided
    between two, and a blank record may follow it."""
    return min(COMMAND_SIZE_BYTES_MAX, segment_size_bytes - HEADER_SIZE_BYTES - BLANK_SIZE_BYTES)


@dataclass(slots=True)
class _Command:
    """A command, its place in the log once it is proposed, and its future."""

    payload: bytes
    future: asyncio.Future[int]
    deadline_ms: float
    index: int = 0
    term: int = 0


class Proposals:
    def __init__(
        self,
        waiting_max: int,
        waiting_bytes_max: int,
        timeout_ms: float,
        size_bytes_max: int = COMMAND_SIZE_BYTES_MAX,
    ) -> None:
        """`size_bytes_max` limits a command (`command_bytes_max`)."""
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._timeout_ms = timeout_ms
        self._size_bytes_max = size_bytes_max
        self._waiting: deque[_Command] = deque()
        self._waiting_bytes = 0
        self._proposed: dict[int, _Command] = {}  # by index, in the order of proposal
        self._term = 0  # of the leadership under way; 0: none
        self._last_index = 0  # last frame proposed in it, the application's included
        self._past: list[tuple[int, int]] = []  # (term, last index) of undecided leaderships

    @property
    def waiting(self) -> int:
        """Commands not yet proposed."""
        return len(self._waiting)

    @property
    def proposed(self) -> int:
        """The number of commands with an open outcome."""
        return len(self._proposed)

    def submit(self, payload: bytes, now_ms: float) -> asyncio.Future[int]:
        """Queue a command. Raises Busy at the limits, CommandTooLarge."""
        if len(payload) > self._size_bytes_max:
            raise CommandTooLarge(f"{len(payload)} bytes, limit {self._size_bytes_max}")
        if len(self._waiting) + len(self._proposed) >= self._waiting_max:
            raise Busy(f"{self._waiting_max} commands wait already")
        if self._waiting and self._waiting_bytes + len(payload) > self._waiting_bytes_max:
            raise Busy(f"commands of {self._waiting_bytes} bytes wait already")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Command(payload, future, now_ms + self._timeout_ms))
        self._waiting_bytes += len(payload)
        return future

    def take(self, index: int, term: int) -> bytes | None:
        """Return the next command, which the caller must propose as (index, term), or None."""
        while self._waiting:
            command = self._waiting.popleft()
            self._waiting_bytes -= len(command.payload)
            if command.future.done():
                continue  # cancelled
            command.index, command.term = index, term
            self._proposed[index] = command
            return command.payload
        return None

    def expect(self, index: int, term: int, now_ms: float, future: asyncio.Future[int]) -> None:
        """Report the outcome of the proposed frame (index, term) to `future`."""
        deadline_ms = now_ms + self._timeout_ms
        self._proposed[index] = _Command(b"", future, deadline_ms, index, term)

    def note(self, index: int, term: int) -> None:
        """Note that frame (index, term), of any kind, is proposed here."""
        self._term, self._last_index = term, index

    def leadership_lost(self, leader: NodeId | None) -> None:
        """Fail the commands that were never proposed; proposals wait for their outcome."""
        if self._term:
            self._past.append((self._term, self._last_index))
            self._term = 0
        self._fail_waiting(leader)

    def refuted_by(self, frames: Sequence[Frame]) -> int | None:
        """Return the first index from which these frames, which are about to be applied, prove
        proposals of earlier terms not stored, or None."""
        refuted: int | None = None
        for frame in frames:
            if not self._past:
                break
            for term, last_index in self._past:
                if frame.term > term and frame.index <= last_index:
                    refuted = frame.index if refuted is None else min(refuted, frame.index)
            self._past = [
                (term, last_index)
                for term, last_index in self._past
                if frame.term <= term and frame.index < last_index
            ]
        return refuted

    def applied(self, frames: Sequence[Frame]) -> None:
        """Report the outcomes that these committed and applied frames decide."""
        for frame in frames:
            if not self._proposed:
                return
            command = self._proposed.get(frame.index)
            if command is not None and command.term == frame.term:
                del self._proposed[frame.index]
                if not command.future.done():
                    command.future.set_result(frame.index)
            elif next(iter(self._proposed.values())).term < frame.term:  # the oldest one's
                self._refute(frame)

    def expire(self, now_ms: float) -> None:
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            command = self._waiting.popleft()
            self._waiting_bytes -= len(command.payload)
            _fail(command, Busy("the command could not be proposed in time; it is not stored"))
        overdue = [i for i, c in self._proposed.items() if c.deadline_ms <= now_ms]
        for index in overdue:
            command = self._proposed.pop(index)
            _fail(command, OutcomeUnknown(f"frame {index} of term {command.term}: no fate in time"))

    def close(self, reason: str) -> None:
        """Fail everything, because the member ends."""
        self._fail_waiting(None)
        for index, command in self._proposed.items():
            _fail(command, OutcomeUnknown(f"frame {index} of term {command.term}: {reason}"))
        self._proposed.clear()

    def _refute(self, frame: Frame) -> None:
        lost = [i for i, c in self._proposed.items() if i >= frame.index and c.term < frame.term]
        for index in lost:
            _fail(self._proposed.pop(index), NotLeader(None))

    def _fail_waiting(self, leader: NodeId | None) -> None:
        for command in self._waiting:
            _fail(command, NotLeader(leader))
        self._waiting.clear()
        self._waiting_bytes = 0


def _fail(command: _Command, error: RaftError) -> None:
    if not command.future.done():
        command.future.set_exception(error)
