"""Hands batches to the user's listener and deals with what fails.

Concurrent: a failed message is sent back to the broker (36), which delivers it again later through
the group's retry topic, and to the group's dead letters after `max_reconsume_times`. Where that
does not work the message is sent to the retry topic as a new one; where that does not work either
it is kept and delivered again here after a pause. The offset does not pass it before one of them
succeeded: nothing is skipped, nothing is lost. A message that the listener has had for longer than
the consume time-out is sent back, too, and holds up the offset no more. The listener is left alone
and keeps its place among those that run; what it says in the end is ignored.
Orderly: a batch is only worked on under a valid lock of its queue. A failed message stops the queue
for a moment and comes again here; after `max_reconsume_times` it goes to the dead letters.
Broadcasting: a failed message is logged and not repeated, as every member has its own copy.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from raftmq.client.message import RETRY_PREFIX, ConsumeResult, MessageExt, MessageQueue
from raftmq.client.sendback import SendBack

logger = logging.getLogger(__name__)

DEAD_LETTER_NOW = -1  # a delay level
TIMED_OUT_LEVEL = 3  # the delay level of what took too long: RocketMQ's
EXPIRY_LOOKS = 10  # within one consume time-out: it is late by a tenth at most
RECONSUME_TIMES_MAX = 16  # RocketMQ's, when nothing else is said, for concurrent listeners


@dataclass(frozen=True, slots=True)
class Later:
    """A listener's fuller answer: the first `done` messages succeeded, the rest shall come again.

    `delay_level` is for concurrent listeners: 1 to 18, 0 for the broker's own (rising with each
    time), -1 for the dead letters at once. `suspend_ms` is for orderly ones: how long the queue
    stops (10 ms to 30 s); None for the policy's.
    """

    done: int = 0
    delay_level: int = 0
    suspend_ms: int | None = None


ListenerAnswer = ConsumeResult | Later | None
Listener = Callable[[list[MessageExt]], "ListenerAnswer | Awaitable[ListenerAnswer]"]
Finish = Callable[[], None]
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A concurrent message that no broker takes back waits here first * 2^n, at most max. An
    orderly queue stops for first. `max_reconsume_times` None: 16, for orderly listeners no end."""

    retry_pause_ms_first: int = 1000
    retry_pause_ms_max: int = 30_000
    max_reconsume_times: int | None = None
    send_back: bool = True  # False: always keep and retry here


class Locks(Protocol):
    """What orderly delivery needs: see client.locks."""

    async def hold(self, queue: MessageQueue) -> None: ...


class Deliverer:
    """Runs the listener over a batch until every message of it is dealt with. This one is for
    broadcasting, and what the others share."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.delivered = 0  # messages the listener succeeded with
        self.failed = 0  # messages of failed deliveries, each time
        self.timed_out = 0  # messages that went back while the listener had them
        self.last_ms = 0.0  # what the last call of the listener took

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        """Returns when all messages are dealt with and the listener is at rest. Calls `finish` if
        the first is true long before the second."""
        failed = (await self._attempt(messages))[0]
        if failed:
            logger.warning("broadcast_not_consumed queue=%s count=%d", queue, len(failed))

    async def offer(self, messages: list[MessageExt]) -> bool:
        """One attempt, for an administrator who asks; counted nowhere, not sent back."""
        restore_topics(messages)
        return await self._listen(messages) is None

    async def _attempt(self, messages: list[MessageExt]) -> tuple[list[MessageExt], Later]:
        """(what did not succeed, what the listener said of it)."""
        restore_topics(messages)
        answer = await self._listen(messages)
        done = len(messages) if answer is None else min(max(answer.done, 0), len(messages))
        self.delivered += done
        self.failed += len(messages) - done
        return messages[done:], answer or Later()

    async def _listen(self, messages: list[MessageExt]) -> Later | None:
        """None if the listener succeeded. What it raises is its answer: again later."""
        started_s = time.monotonic()
        try:
            given = self._listener(list(messages))
            result = await given if inspect.isawaitable(given) else given
        except Exception as error:
            logger.warning("listener_raised count=%d", len(messages), exc_info=error)
            return Later()
        finally:
            self.last_ms = (time.monotonic() - started_s) * 1000
        if result is None or result is ConsumeResult.SUCCESS:
            return None
        if isinstance(result, Later):
            return result if result.done < len(messages) else None
        if result is not ConsumeResult.RECONSUME_LATER:
            logger.error("listener_returned_nonsense value=%r", result)
        return Later()


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages with a concurrent listener, since when (loop time, seconds; None: between two
    attempts). `going_back`: they took too long; done when it is clear what a broker took."""

    messages: list[MessageExt]
    finish: Finish
    since: float | None = None
    going_back: asyncio.Future[None] | None = None


class ConcurrentDeliverer(Deliverer):
    """See the module. `sent_back(broker_name)` is told of every message that comes again.
    `at_once_max`: calls of the listener that run together, over all queues; 0: any number. Who
    waits for a place has not begun: the consume time-out is for what runs."""

    def __init__(
        self,
        listener: Listener,
        back: SendBack,
        policy: FailurePolicy,
        sent_back: Callable[[str], None],
        at_once_max: int = 0,
    ) -> None:
        super().__init__(listener)
        self._back = back
        self._policy = policy
        self._sent_back = sent_back
        self._places = asyncio.Semaphore(at_once_max) if at_once_max else nullcontext()
        self._deliveries: set[Delivery] = set()
        self._now = asyncio.get_running_loop().time
        limit = policy.max_reconsume_times
        self._reconsume_times_max = RECONSUME_TIMES_MAX if limit is None else limit

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        delivery = Delivery(messages, finish)
        self._deliveries.add(delivery)
        try:
            failures = 0
            while await self._try(delivery):
                pause_ms = min(
                    self._policy.retry_pause_ms_first * 2 ** min(failures, 16),
                    self._policy.retry_pause_ms_max,
                )
                failures += 1
                await asyncio.sleep(pause_ms / 1000)
                for message in delivery.messages:
                    message.reconsume_times += 1
        finally:
            self._deliveries.discard(delivery)

    async def expire_forever(self, timeout_ms: int) -> None:
        """Send back what listeners have had for longer."""
        while True:
            await asyncio.sleep(timeout_ms / EXPIRY_LOOKS / 1000)
            before = self._now() - timeout_ms / 1000
            slow = [d for d in self._deliveries if d.since is not None and d.since <= before]
            await asyncio.gather(*(self._expire(d) for d in slow if d.messages))

    async def _try(self, delivery: Delivery) -> bool:
        """One attempt; True if there are messages that have to come again here."""
        given = delivery.messages
        restore_topics(given)
        async with self._places:
            delivery.since = self._now()
            answer = await self._listen(given)
            delivery.since = None
        if delivery.going_back is not None:
            await asyncio.wait((delivery.going_back,))  # which a cancellation leaves alone
            delivery.going_back = None
        left = set(map(id, delivery.messages))
        if len(left) < len(given):
            logger.info("late_answer_ignored count=%d", len(given) - len(left))
        failed = given[len(given) if answer is None else max(answer.done, 0) :]
        failed = [message for message in failed if id(message) in left]
        self.failed += len(failed)
        self.delivered += len(left) - len(failed)
        if failed and self._policy.send_back:
            failed = await self._send_back(failed, answer.delay_level if answer else 0)
        delivery.messages = failed
        return bool(failed)

    async def _expire(self, delivery: Delivery) -> None:
        """What a broker takes is dealt with; for what none takes the listener's answer counts, if
        it comes before the next look."""
        if delivery.since is None or not self._policy.send_back:
            return  # it has just come back; or nothing is sent back at all
        delivery.going_back = asyncio.get_running_loop().create_future()
        had = delivery.messages
        try:
            kept = await self._send_back(had, TIMED_OUT_LEVEL)
            self.timed_out += len(had) - len(kept)
            delivery.messages = kept
            logger.warning("consume_timed_out count=%d kept=%d", len(had), len(kept))
            if not kept:
                delivery.finish()
        finally:
            delivery.going_back.set_result(None)

    async def _send_back(self, messages: list[MessageExt], delay_level: int) -> list[MessageExt]:
        """What no broker took."""
        kept: list[MessageExt] = []
        for message in messages:
            if await self._back.send(message, delay_level, self._reconsume_times_max):
                self._sent_back(message.broker_name)
            else:
                kept.append(message)
        return kept


class OrderlyDeliverer(Deliverer):
    """See the module."""

    def __init__(
        self, listener: Listener, back: SendBack, policy: FailurePolicy, locks: Locks
    ) -> None:
        super().__init__(listener)
        self._back = back
        self._policy = policy
        self._locks = locks

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        while True:
            await self._locks.hold(queue)
            messages, answer = await self._attempt(messages)
            messages = [m for m in messages if not await self._given_up(m, answer)]
            if not messages:
                return
            for message in messages:
                message.reconsume_times += 1
            pause_ms = answer.suspend_ms
            if pause_ms is None:
                pause_ms = self._policy.retry_pause_ms_first
            else:
                pause_ms = min(max(pause_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
            await asyncio.sleep(pause_ms / 1000)

    async def _given_up(self, message: MessageExt, answer: Later) -> bool:
        """True if it came often enough, and the dead letters have it now."""
        limit = self._policy.max_reconsume_times
        over = limit is not None and message.reconsume_times >= limit
        if not over and answer.delay_level != DEAD_LETTER_NOW:
            return False
        return await self._back.send(message, DEAD_LETTER_NOW, limit or 0)


def restore_topics(messages: list[MessageExt]) -> None:
    """Messages of the retry topic show the topic they were first sent to (section 9.2)."""
    for message in messages:
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = message.properties.get("RETRY_TOPIC") or message.topic
