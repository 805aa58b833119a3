"""The check for consumers that commit less than they had committed. Pure.

What brokers answer is judged by chaos.checks.registers, which allows every commit. But a consumer
that has a queue commits what it has finished, and that only rises: a commit below an acknowledged
one of the same consumer is wrong. Allowed are a reset, and a lower commit by a consumer that took
the queue over (counted in the detail: its messages are handed out again). It has taken over if
another one's commit may have followed its own last one: of two at the same time, and of one without
an answer, nobody knows which came last. Memory: an object for each queue, consumer, and offset
whose commit was never answered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ..history.events import Commit, Kind
from .verdict import Check, Handlers, Offenders


@dataclass(slots=True)
class _Queue:
    """The commits of a group in one queue that may be in force."""

    # By process: the acknowledged commits of which any may be the last.
    last: dict[str, Commit] = field(default_factory=dict)
    # (process, offset) → how many of its commits have no answer.
    unanswered: Counter[tuple[str, int]] = field(default_factory=Counter)

    def answer(self, commit: Commit) -> None:
        """Take note that one of the process's commits of this offset was answered."""
        key = commit.process, _offset(commit)
        if self.unanswered[key] > 1:
            self.unanswered[key] -= 1
        else:
            del self.unanswered[key]

    def is_lower(self, commit: Commit) -> bool:
        """Tell whether all that may have been the last were higher, and answered before it."""
        return bool(self.last) and all(
            one.t_ns <= commit.invoked_ns and _offset(one) > _offset(commit)
            for one in self.last.values()
        )

    def may_be_another_ones(self, commit: Commit) -> bool:
        """Tell whether its consumer may have begun where another one's commit had set the queue."""
        return bool(self.last.keys() - {commit.process}) or any(
            process != commit.process and offset <= _offset(commit)
            for process, offset in self.unanswered
        )

    def replace(self, commit: Commit) -> None:
        """Take an answered commit or reset as the last; others may be that were answered since it
        began."""
        later = {p: one for p, one in self.last.items() if one.t_ns > commit.invoked_ns}
        self.last = later | {commit.process: commit}


class OffsetsBack:
    """The check for consumers whose commits went back."""

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[str, str, str, int], _Queue] = defaultdict(_Queue)
        self._wrong = Offenders()
        self._seen = 0
        self._taken_over = 0

    def handlers(self) -> Handlers:
        return {
            Kind.COMMIT_INVOKED: self._invoked,
            Kind.COMMITTED: self._committed,
            Kind.RESET: self._reset,
        }

    @property
    def applies(self) -> bool:
        return self._seen > 0

    def result(self, name: str) -> Check:
        detail = f"{len(self._queues)} queues of groups, {self._seen} commits"
        if self._taken_over:
            detail += f"; {self._taken_over} lower ones by a consumer that had just taken over"
        return self._wrong.check(name, detail, self._seen)

    def _queue(self, commit: Commit) -> _Queue:
        return self._queues[commit.group, commit.broker, commit.topic, commit.queue]

    def _invoked(self, commit: Commit) -> None:
        self._queue(commit).unanswered[commit.process, _offset(commit)] += 1

    def _committed(self, commit: Commit) -> None:
        self._seen += 1
        queue = self._queue(commit)
        queue.answer(commit)
        if queue.is_lower(commit):
            if queue.may_be_another_ones(commit):
                self._taken_over += 1
            else:
                self._wrong.add(_words(commit, queue.last[commit.process]))
        queue.replace(commit)

    def _reset(self, reset: Commit) -> None:
        self._queue(reset).replace(reset)


def _offset(commit: Commit) -> int:
    assert commit.offset is not None
    return commit.offset


def _words(commit: Commit, last: Commit) -> str:
    where = f"{commit.broker}:" if commit.broker else ""
    return (
        f"{commit.group} {where}{commit.topic}-{commit.queue}: {commit.process} "
        f"committed {commit.offset} after {last.offset}"
    )
