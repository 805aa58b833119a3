"""The check for consumers that commit less than they had committed. Pure.

chaos.checks.registers judges the brokers' answers and allows every commit. But a consumer commits
its finished offset, which only rises, so a commit below an acknowledged commit of the same consumer
is a violation. A reset is allowed. So is a lower commit by a consumer that took the queue over
(counted, because its messages are redelivered). A consumer took over if the commit of a different
consumer may have followed its last own commit. Concurrent and unanswered commits have no known
order. Memory holds an object for each queue, consumer, and offset without an answered commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ..history.events import Commit, Kind
from .verdict import Check, Handlers, Offenders, queue_title


@dataclass(slots=True)
class _Queue:
    """The commits of a group in a queue that may be in force."""

    # Acknowledged commits by process, of which any may be the last.
    last: dict[str, Commit] = field(default_factory=dict)
    # (process, offset) → how many of its commits have no answer.
    unanswered: Counter[tuple[str, int]] = field(default_factory=Counter)

    def answer(self, commit: Commit) -> None:
        key = commit.process, _offset(commit)
        if self.unanswered[key] > 1:
            self.unanswered[key] -= 1
        else:
            del self.unanswered[key]

    def is_lower(self, commit: Commit) -> bool:
        """Return whether all possible last commits were higher, and answered before this commit."""
        return bool(self.last) and all(
            one.t_ns <= commit.invoked_ns and _offset(one) > _offset(commit)
            for one in self.last.values()
        )

    def may_be_another_ones(self, commit: Commit) -> bool:
        """Return whether its consumer may have started from a different consumer's commit."""
        return bool(self.last.keys() - {commit.process}) or any(
            process != commit.process and offset <= _offset(commit)
            for process, offset in self.unanswered
        )

    def replace(self, commit: Commit) -> None:
        """Record a commit or reset as the last. Concurrent commits may also be the last."""
        later = {p: one for p, one in self.last.items() if one.t_ns > commit.invoked_ns}
        self.last = later | {commit.process: commit}


class OffsetsBack:
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
                self._wrong.add(_text(commit, queue.last[commit.process]))
        queue.replace(commit)

    def _reset(self, reset: Commit) -> None:
        self._queue(reset).replace(reset)


def _offset(commit: Commit) -> int:
    assert commit.offset is not None
    return commit.offset


def _text(commit: Commit, last: Commit) -> str:
    where = queue_title((commit.group, commit.broker, commit.topic, commit.queue))
    return f"{where}: {commit.process} committed {commit.offset} after {last.offset}"
