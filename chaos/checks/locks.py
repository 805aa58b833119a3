"""Checks of orderly consumption by one consumer at a time under a queue lock, without gaps.

A piece of work on a queue is an interval of the machine's monotonic clock. Violations:
- Work on a queue starts before earlier work on it has ended, in any consumers and with any result
  (two at once).
- Work starts behind a message of its queue that no consumer has finished (skipped).

Repeating work after a consumer left is allowed (at least once). The idle time of a queue between
two consumers is measured. A queue takes one object of memory, and a hand-over a number. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..history.deferred_events import Worked
from ..history.events import Kind
from .verdict import Check, Handlers, Offenders, Verdict, at

LONG_MS = 30_000  # idle times above this are counted


@dataclass(slots=True)
class _Queue:
    next: int  # everything before this offset is done; the topic may have existed before
    latest_ns: int = -1  # when work on it last ended
    worker: str = ""  # the consumer that did that
    last_ns: int = -1  # when the work recorded last ended
    last_worker: str = ""


class WorkBook:
    """The state that all checks of work under queue locks share; a suite feeds it once."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str, str, int], _Queue] = {}
        self._pieces = 0
        self._together = Offenders()
        self._skipped = Offenders()
        self._still_ms: list[float] = []

    @property
    def applies(self) -> bool:
        return self._pieces > 0

    def handlers(self) -> Handlers:
        return {Kind.WORKED: self._worked}

    def _worked(self, work: Worked) -> None:
        self._pieces += 1
        key = (work.group, work.broker, work.topic, work.queue)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(next=work.first)
        self._check_others(queue, work)
        self._check_gaps(queue, work)

    def _check_others(self, queue: _Queue, work: Worked) -> None:
        # Records are in the order in which work ended, so only the last piece can overlap.
        if work.began_ns < queue.latest_ns:
            shared_ms = (queue.latest_ns - work.began_ns) / 1_000_000
            self._together.add(
                f"{_where(work)}: {work.process} began {shared_ms:.1f} ms before {queue.worker} "
                "had ended"
            )
        if queue.last_worker and queue.last_worker != work.process:
            self._still_ms.append((work.began_ns - queue.last_ns) / 1_000_000)
        queue.last_ns, queue.last_worker = work.t_ns, work.process
        if work.t_ns >= queue.latest_ns:
            queue.latest_ns, queue.worker = work.t_ns, work.process

    def _check_gaps(self, queue: _Queue, work: Worked) -> None:
        if work.first > queue.next:
            self._skipped.add(f"{_where(work)}: {work.process} began, {queue.next} is not done")
        if work.done:
            queue.next = max(queue.next, work.last + 1)

    def two_at_once(self, name: str) -> Check:
        """Find two consumers that worked on a queue at the same time."""
        return self._together.check(name, self._seen(), self._pieces)

    def skipped(self, name: str) -> Check:
        """Find work that started before all work in front of it was finished."""
        return self._skipped.check(name, self._seen(), self._pieces)

    def _seen(self) -> str:
        return f"{self._pieces} pieces of work on {len(self._queues)} queues"

    def stood_still(self, name: str) -> Check:
        """Measure the idle time of queues between two consumers. Allowed.

        The lock of a consumer that left without unlocking expires after a minute or more.
        """
        still = sorted(self._still_ms)
        detail = "no queue went to another consumer"
        if still:
            middle, last = still[len(still) // 2], still[-1]
            detail = f"{len(still)} hand-overs: p50 {middle:,.0f} ms, max {last:,.0f} ms (allowed)"
        return Check(name, Verdict.PASS, sum(ms > LONG_MS for ms in still), detail)


def _where(work: Worked) -> str:
    return at((work.broker, work.topic, work.queue, work.first))
