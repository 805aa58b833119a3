"""The check for consumers that commit less than they had committed. Pure.

What brokers answer is judged by chaos.checks.registers, which allows every commit. But a consumer
that has a queue commits what it has finished, and that only rises: a commit below an acknowledged
one of the same consumer is wrong. Allowed are a reset, and a lower commit by another consumer than
the last, which took the queue over before it knew (counted in the detail: its messages are handed
out again). Memory: one object a queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.chaos.checks.verdict import Check, Handlers, Offenders
from raftmq.chaos.history.events import Commit, Kind


@dataclass(slots=True)
class _Last:
    """The last acknowledged commit or reset of a group's queue."""

    process: str
    offset: int
    t_ns: int


class OffsetsBack:
    """The check for consumers whose commits went back."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str, int], _Last] = {}
        self._wrong = Offenders()
        self._seen = 0
        self._taken_over = 0

    def handlers(self) -> Handlers:
        return {Kind.COMMITTED: self._committed, Kind.RESET: self._reset}

    @property
    def applies(self) -> bool:
        return self._seen > 0

    def result(self, name: str) -> Check:
        detail = f"{len(self._last)} queues of groups, {self._seen} commits"
        if self._taken_over:
            detail += f"; {self._taken_over} lower ones by a consumer that had just taken over"
        return self._wrong.check(name, detail, self._seen)

    def _committed(self, commit: Commit) -> None:
        self._seen += 1
        assert commit.offset is not None
        key = (commit.group, commit.broker, commit.topic, commit.queue)
        last = self._last.get(key)
        if last is not None and commit.offset < last.offset and last.t_ns <= commit.invoked_ns:
            if last.process == commit.process:
                where = f"{commit.broker}:" if commit.broker else ""
                self._wrong.add(
                    f"{commit.group} {where}{commit.topic}-{commit.queue}: {commit.process} "
                    f"committed {commit.offset} after {last.offset}"
                )
            elif last.process:
                self._taken_over += 1
        self._last[key] = _Last(commit.process, commit.offset, commit.t_ns)

    def _reset(self, reset: Commit) -> None:
        assert reset.offset is not None
        key = (reset.group, reset.broker, reset.topic, reset.queue)
        self._last[key] = _Last("", reset.offset, reset.t_ns)
