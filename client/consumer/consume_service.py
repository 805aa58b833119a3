"""Delivery of batches to the user's listener, and the handling of failed messages.

Concurrent: a failed message is sent back to the broker (36), which redelivers it through the
group's retry topic, or moves it to the dead letters after `max_reconsume_times`. If that fails, the
message is sent to the retry topic as a new message, and if that also fails, it is kept and
redelivered here after a pause. The offset passes it only after one of these succeeded, so nothing
is skipped. A message that the listener holds beyond the consume time-out is also sent back and no
longer holds up the offset. The listener call is not cancelled and still counts as running; its
result is ignored.

Orderly: a batch is consumed only under a valid lock of its queue. A failed message pauses the queue
and is redelivered here; after `max_reconsume_times` it becomes a dead letter.

Broadcasting: a failed message is logged and not repeated, because every member has its own copy.

client.log_rate_limit logs the failures.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..log_rate_limit import ListenerLog
from ..message import RETRY_PREFIX, ConsumeResult, MessageExt, MessageQueue
from .queue_locks import QueueLocks
from .send_back import SendBack

logger = logging.getLogger(__name__)

DEAD_LETTER_NOW = -1  # a delay level
TIMED_OUT_LEVEL = 3  # RocketMQ's delay level for messages that timed out
EXPIRY_CHECKS = 10  # checks per consume time-out, so it is at most a tenth late
RECONSUME_TIMES_MAX = 16  # RocketMQ's default for concurrent listeners


@dataclass(frozen=True, slots=True)
class Later:
    """A listener's detailed result: the first `done` messages succeeded, and the rest is to be
    redelivered. `delay_level` is for concurrent listeners: 1 to 18, 0 for the broker's choice
    (rising with each attempt), -1 for a dead letter. `suspend_ms` is for orderly listeners, the
    pause of the queue (10 ms to 30 s); None for the policy's value."""

    done: int = 0
    delay_level: int = 0
    suspend_ms: int | None = None


ListenerAnswer = ConsumeResult | Later | None
Answering = ListenerAnswer | Awaitable[ListenerAnswer] | Future[ListenerAnswer]
Listener = Callable[[list[MessageExt]], Answering]  # a Future for a result from a thread pool
Finish = Callable[[], None]
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000
_call: ContextVar[object] = ContextVar("call", default=None)  # the listener's latest call


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The treatment of failed messages. A concurrent message that no broker accepts waits here for
    `retry_pause_ms_first` * 2^n, at most `retry_pause_ms_max`. An orderly queue pauses for
    `retry_pause_ms_first`. `max_reconsume_times` None means 16, and no limit for orderly listeners.
    """

    retry_pause_ms_first: int = 1000
    retry_pause_ms_max: int = 30_000
    max_reconsume_times: int | None = None
    send_back: bool = True  # False keeps and retries all messages here


class GuardedListener:
    """A user's listener, with its errors contained and logged."""

    def __init__(self, listener: Listener, log: ListenerLog) -> None:
        self.log = log
        self._listener = listener
        self._calls: set[object] = set()  # running calls

    @property
    def calling(self) -> bool:
        """Return whether the calling code was called by the listener, in its task or a child task,
        or in its thread if that has the context."""
        return _call.get() in self._calls

    async def call(
        self,
        messages: list[MessageExt],
        threaded: Callable[[Future[ListenerAnswer]], None] | None = None,
    ) -> Later | None:
        """Call the listener; return None on success. An exception means redelivery, also SystemExit
        in a thread, where it does not end the program. `threaded(work)` is called if a thread does
        the work, which continues if this is cancelled."""
        restore_topics(messages)
        this = object()
        _call.set(this)
        self._calls.add(this)
        in_thread = False
        try:
            given = self._listener(list(messages))
            if isinstance(given, Future):
                in_thread = True
                if threaded is not None:
                    threaded(given)
                given = asyncio.wrap_future(given)
            elif inspect.iscoroutine(given):
                given = asyncio.create_task(given)  # a separate task, because it may cancel its own
            result = await given if inspect.isawaitable(given) else given
        except BaseException as error:
            if not _is_failure(error, in_thread):
                raise
            self.log.raised(error, messages)
            return Later()
        finally:
            self._calls.discard(this)
        if result is None or result is ConsumeResult.SUCCESS:
            return None
        if isinstance(result, Later):
            return result if result.done < len(messages) else None
        if result is not ConsumeResult.RECONSUME_LATER:
            self.log.returned_nonsense(result, messages)
        return Later()


class Deliverer(Protocol):
    """Runs the listener over a batch until every message is handled."""

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        """Deliver a batch. Returns when all messages are handled and the listener has returned.
        Calls `finish` if the messages are handled long before."""


class BroadcastDeliverer:
    """Delivers once to listeners of broadcasting consumers."""

    def __init__(self, listener: GuardedListener) -> None:
        self._listener = listener

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        failed = failed_of(messages, await self._listener.call(messages))
        if failed:
            self._listener.log.not_consumed(failed)


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages in a concurrent listener, and the start of the call (loop time, seconds; None
    between attempts). `going_back` is set at the time-out, and done when it is known which messages
    a broker accepted."""

    messages: list[MessageExt]
    finish: Finish
    since: float | None = None
    going_back: asyncio.Future[None] | None = None


class ConcurrentDeliverer:
    """Delivers to concurrent listeners. `sent_back(broker_name)` is called for every message that
    is sent back. `at_once_max` limits concurrent calls of the listener over all queues; 0 for no
    limit. The consume time-out covers running calls only, not waiting calls."""

    def __init__(
        self,
        listener: GuardedListener,
        back: SendBack,
        policy: FailurePolicy,
        sent_back: Callable[[str], None],
        at_once_max: int = 0,
    ) -> None:
        self.timed_out = 0  # messages sent back during the listener's call
        self._listener = listener
        self._back = back
        self._policy = policy
        self._sent_back = sent_back
        self._slots = asyncio.Semaphore(at_once_max) if at_once_max else nullcontext()
        self._deliveries: set[Delivery] = set()
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
        """Send back messages held by the listener for longer than `timeout_ms`."""
        while True:
            await asyncio.sleep(timeout_ms / EXPIRY_CHECKS / 1000)
            before = asyncio.get_running_loop().time() - timeout_ms / 1000
            slow = [d for d in self._deliveries if d.since is not None and d.since <= before]
            await asyncio.gather(*(self._expire(d) for d in slow if d.messages))

    async def _try(self, delivery: Delivery) -> bool:
        """Attempt a delivery; return whether messages remain to be redelivered here."""
        given = delivery.messages
        async with self._slots:
            delivery.since = asyncio.get_running_loop().time()
            answer = await self._listener.call(given)
            delivery.since = None
        if delivery.going_back is not None:
            await asyncio.wait((delivery.going_back,))  # a cancellation does not cancel it
            delivery.going_back = None
        failed = failed_of(given, answer)
        if len(delivery.messages) < len(given):  # a time-out has sent back some of them
            logger.info("late_answer_ignored count=%d", len(given) - len(delivery.messages))
            left = set(map(id, delivery.messages))
            failed = [message for message in failed if id(message) in left]
        if failed and self._policy.send_back:
            failed = await self._send_back(failed, answer.delay_level if answer else 0)
        delivery.messages = failed
        return bool(failed)

    async def _expire(self, delivery: Delivery) -> None:
        """Send a timed-out delivery back. Messages accepted by a broker are handled; for the rest
        the listener's result counts until the next check."""
        if delivery.since is None or not self._policy.send_back:
            return  # the listener has just returned, or messages are never sent back
        delivery.going_back = asyncio.get_running_loop().create_future()
        had = delivery.messages
        try:
            kept = await self._send_back(had, TIMED_OUT_LEVEL)
            self.timed_out += len(had) - len(kept)
            delivery.messages = kept
            self._listener.log.timed_out(had, len(kept))
            if not kept:
                delivery.finish()
        finally:
            delivery.going_back.set_result(None)

    async def _send_back(self, messages: list[MessageExt], delay_level: int) -> list[MessageExt]:
        """Send messages back; return those that no broker accepted."""
        kept: list[MessageExt] = []
        for message in messages:
            if await self._back.send(message, delay_level, self._reconsume_times_max):
                self._sent_back(message.broker_name)
            else:
                kept.append(message)
        return kept


class OrderlyDeliverer:
    """Delivers to orderly listeners, under the queue's lock."""

    def __init__(
        self, listener: GuardedListener, back: SendBack, policy: FailurePolicy, locks: QueueLocks
    ) -> None:
        self._listener = listener
        self._back = back
        self._policy = policy
        self._locks = locks

    async def deliver(
        self, queue: MessageQueue, messages: list[MessageExt], finish: Finish
    ) -> None:
        while True:
            await self._locks.hold(queue)
            threaded = partial(self._locks.worked_on, queue)
            answer = await self._listener.call(messages, threaded)
            failed = failed_of(messages, answer)
            answer = answer or Later()
            messages = [m for m in failed if not await self._exhausted(m, answer)]
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

    async def _exhausted(self, message: MessageExt, answer: Later) -> bool:
        """Move a message with too many failures to the dead letters; return whether it is there."""
        limit = self._policy.max_reconsume_times
        over = limit is not None and message.reconsume_times >= limit
        if not over and answer.delay_level != DEAD_LETTER_NOW:
            return False
        return await self._back.send(message, DEAD_LETTER_NOW, limit or 0)


def _is_failure(error: BaseException, in_thread: bool) -> bool:
    """Return whether a listener failed, with any exception. Otherwise the calling task or the whole
    program is to end. A cancellation without that of the task is the listener's own, of its task or
    of something it awaited."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    ends = GeneratorExit if in_thread else (GeneratorExit, SystemExit, KeyboardInterrupt)
    return not isinstance(error, ends)


def failed_of(messages: list[MessageExt], answer: Later | None) -> list[MessageExt]:
    return [] if answer is None else messages[max(answer.done, 0) :]


def restore_topics(messages: list[MessageExt]) -> None:
    """Restore the original topic in messages of the retry topic. All are from the same queue, so
    the first message decides."""
    if messages and messages[0].topic.startswith(RETRY_PREFIX):
        for message in messages:
            message.topic = message.properties.get("RETRY_TOPIC") or message.topic
