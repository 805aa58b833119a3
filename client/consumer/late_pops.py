"""Pops whose caller went away, kept for the calls that come after.

Nobody else of the group could have their messages before the invisible time is over. A call takes a
pop if its messages are what the call asks for and have enough of that time left; the others stay.
A bound holds for each broker group; what is beyond it comes again after its invisible time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..errors import BrokerUnreachable, ClientError
from ..message import MessageExt
from ..subscription import Subscription

LATE_MAX = 4  # kept at one target, each with up to 32 messages
Target = tuple[str, str]  # topic, broker group


@dataclass(frozen=True, slots=True)
class Answer:
    """The messages that a pop got, or its error, and when they came: `at_s` (loop time)."""

    found: list[MessageExt] | ClientError
    at_s: float


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop that was begun at `begun_s` (loop time), and the task that ends with its answer."""

    target: Target
    subscription: Subscription
    count_max: int
    invisible_ms: int
    begun_s: float
    wait_ms: int
    task: asyncio.Task[Answer]

    @property
    def answer(self) -> Answer | None:
        """Return its answer; None if there is none yet, or a stop cancelled it."""
        return self.task.result() if self.task.done() and not self.task.cancelled() else None

    @property
    def owed(self) -> bool:
        """Return whether its answer has not come, or was an error."""
        return self.answer is None or isinstance(self.answer.found, ClientError)

    def left_s(self, now_s: float) -> float:
        """Return for how long its messages, if there are any, are invisible to others; 0 if there
        are none."""
        if self.answer is None:
            return 0.0 if self.task.done() else self.invisible_ms / 1000
        if isinstance(self.answer.found, ClientError) or not self.answer.found:
            return 0.0
        return max(0.0, self.answer.at_s + self.invisible_ms / 1000 - now_s)

    def serves(self, count_max: int, invisible_ms: int, now_s: float) -> bool:
        """Return whether its messages are no more than a call asks for, and most of the time that
        it asks for is left."""
        found = None if self.answer is None else self.answer.found
        count = len(found) if isinstance(found, list) else self.count_max
        return count <= count_max and self.left_s(now_s) >= 0.75 * invisible_ms / 1000

    def silence(self, now_s: float) -> list[MessageExt] | ClientError:
        """Return the error of a broker group that owes the answer; [] if it may still wait."""
        if now_s < self.begun_s + self.wait_ms / 1000:
            return []
        broker = self.target[1]
        return BrokerUnreachable(f"{broker} did not answer in time", outcome_unknown=True)


class LatePops:
    """The pops that nobody waits for, by target, the oldest first."""

    def __init__(self) -> None:
        self._pops: dict[Target, list[Pop]] = {}

    def keep(self, pop: Pop, now_s: float) -> None:
        kept = self._usable(pop.target, pop.subscription, now_s)
        if len(kept) < LATE_MAX and pop.left_s(now_s):
            self._pops[pop.target] = [*kept, pop]

    def take(
        self,
        target: Target,
        subscription: Subscription,
        count_max: int,
        invisible_ms: int,
        now_s: float,
    ) -> Pop | None:
        """Remove and return a pop that serves such a call. Forget those that can serve none any
        more, or were begun with another expression: the broker looks at their messages again."""
        kept = self._usable(target, subscription, now_s)
        found = next((pop for pop in kept if pop.serves(count_max, invisible_ms, now_s)), None)
        self._pops[target] = [pop for pop in kept if pop is not found]
        return found

    def owed(self, target: Target) -> bool:
        """Return whether a pop there still waits for its answer, or ended with an error. Says no
        when no further pop would be kept."""
        pops = self._pops.get(target, [])
        return len(pops) < LATE_MAX and any(pop.owed for pop in pops)

    def forget(self, topic: str) -> None:
        for target in [target for target in self._pops if target[0] == topic]:
            del self._pops[target]

    def clear(self) -> None:
        self._pops.clear()

    def _usable(self, target: Target, subscription: Subscription, now_s: float) -> list[Pop]:
        return [
            pop
            for pop in self._pops.get(target, [])
            if pop.left_s(now_s) and pop.subscription.selects_as(subscription)
        ]
