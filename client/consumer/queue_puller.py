"""The puller of a queue, which pulls from the leader, caches messages and feeds the listener.

A `QueueWorker` owns a pulling task and `consume_tasks` consuming tasks. It pulls while the process
queue has capacity; an empty pull waits at the broker (long polling). After a fail-over the worker
continues at the new leader from its own offset.

In classic (master/slave) mode it pulls where the brokers suggest, cold data from a slave. Without a
master it pulls from any replica, and tries the master again once the route has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingError
from raftmq.remoting.headers import (
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    PullResponseHeader,
)
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..errors import ClientError
from ..instance import ClientInstance, leader_hint
from ..message import MessageQueue
from ..route import LEADER_ID
from ..subscription import Subscription
from .offsets import OffsetMoved
from .process_queue import Batch, CacheBudget, CacheLimits, ProcessQueue

logger = logging.getLogger(__name__)

OFFSET_RESET = "OFFSET_RESET"  # remark of a 21 caused by an administrator's reset
PAUSE_MS_FIRST = 10.0
PAUSE_MS_MAX = 1000.0
LEADER_TRY_MS_FIRST = 1000.0  # before an unreachable leader is tried again, doubling up to
LEADER_TRY_MS_MAX = 30_000.0  # this, while it is in the route
LEADER_TRY_TIMEOUT_MS = 1000  # it may be frozen
FAST_EMPTY_MS = 20  # a faster "nothing new" was no long poll, so do not spin on it


@dataclass(frozen=True, slots=True)
class PullConfig:
    """Settings for pulling and consuming a queue, with times in milliseconds. `interval_ms` is a
    pause after a successful pull, to limit the rate."""

    batch_size: int = 256
    batch_bytes_max: int = 4 * 1024 * 1024
    interval_ms: int = 0
    suspend_ms: int = 15_000
    # A pull times out after suspend_ms plus this. Apache's broker checks its held pulls every 5 s
    # only, and an offset reset in the answer to an abandoned pull is lost.
    answer_grace_ms: int = 8_000
    consume_batch_size: int = 32
    consume_tasks: int = 4  # per queue; 1 for orderly, 0 for polling users
    limits: CacheLimits = field(default_factory=CacheLimits)
    moved_pause_ms: int = 500
    backward_confirmations: int = 10
    lite: bool = False  # request 361 instead of 11, which the broker counts separately


class WorkerOwner(Protocol):
    """The methods of a consumer that a worker calls."""

    def arrived(self, queue: MessageQueue) -> None:
        """Messages wait to be taken."""

    async def consume(self, queue: MessageQueue, batch: Batch, finish: Callable[[], None]) -> None:
        """Handle a batch, however slowly; return when the next may follow. Calls `finish()` if the
        messages are handled earlier."""

    def advanced(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is finished."""

    def rewound(self, queue: MessageQueue, offset: int) -> None:
        """The queue continues at `offset`, regardless of finished messages."""


class QueueWorker:
    """Pulls and consumes a queue."""

    def __init__(
        self,
        queue: MessageQueue,
        group: str,
        subscription: Subscription,
        start: int,
        instance: ClientInstance,
        owner: WorkerOwner,
        config: PullConfig,
        budget: CacheBudget,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.process_queue = ProcessQueue(start, config.limits, budget)
        self.last_pull_ms = 0.0
        self.last_consumed_ms = 0.0  # epoch
        self.paused = False
        self._budget = budget
        self._group = group
        self._instance = instance
        self._owner = owner
        self._config = config
        self._replicas = instance.directory.group(queue.broker_name)
        self._moved = OffsetMoved(config.backward_confirmations)
        self._needed = subscription.subscribed_tags()
        self._arrived = asyncio.Event()
        self._capacity = asyncio.Event()
        self._pull: asyncio.Task[RemotingCommand] | None = None
        self._pull_address = ""
        self._read_from = LEADER_ID  # the last suggested brokerId
        self._leader_try_ms = LEADER_TRY_MS_FIRST
        self._leader_due_ms = 0.0
        self._tasks: list[asyncio.Task[Any]] = []
        self._pulling: asyncio.Task[Any] | None = None
        self._pause_ms = 0.0
        self._stopping = False
        self._loop = asyncio.get_running_loop()

    @property
    def since_last_pull_ms(self) -> float:
        return self._loop.time() * 1000 - self.last_pull_ms

    def start(self) -> None:
        self._budget.waiting[self] = self._capacity.set
        name = f"{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        self._pulling = self._instance.spawn(self._pull_forever(), f"pull {name}")
        for number in range(self._config.consume_tasks):
            self._tasks.append(
                self._instance.spawn(self._consume_forever(), f"consume {name} {number}")
            )

    def hand_out_no_more(self) -> None:
        """Give the listener no further batches."""
        self._stopping = True

    async def stop(self, grace_ms: float) -> bool:
        """Stop pulling at once, and give the listener `grace_ms` for its batches. Returns False if
        it takes longer, when a thread may still use a batch."""
        self.hand_out_no_more()
        if self._pulling is not None:
            await _cancel([self._pulling])
        deadline = self._loop.time() + grace_ms / 1000
        while self.process_queue.taken_count and self._loop.time() < deadline:
            self._capacity.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._capacity.wait()
            except TimeoutError:
                break
        idle = not self.process_queue.taken_count
        await _cancel(self._tasks)
        self._budget.waiting.pop(self, None)
        self.process_queue.discard()
        return idle

    def leader_changed(self) -> None:
        """Pull from the new leader: the old leader's held pull is useless, perhaps frozen."""
        leader = self._replicas.leader
        self._read_from = LEADER_ID
        if self._pull is not None and leader is not None and leader != self._pull_address:
            self._pull.cancel()

    def reset(self, offset: int) -> None:
        """Drop the cache and continue at `offset`. Taken batches no longer count."""
        self._start_at(offset)
        if self._pull is not None:
            self._pull.cancel()

    def pause(self) -> None:
        """Stop pulling; the cache stays."""
        self.paused = True
        if self._pull is not None:
            self._pull.cancel()

    def resume(self) -> None:
        self.paused = False
        self._capacity.set()

    def taken(self, count_max: int) -> Batch | None:
        """Take the next messages for a polling user; this queue counts them as finished."""
        if self.paused:
            return None
        batch = self.process_queue.take(count_max)
        if batch is not None:
            offset = self.process_queue.finish(batch)
            self._capacity.set()
            self._owner.advanced(self.queue, offset)
        return batch

    def _start_at(self, offset: int) -> None:
        self.process_queue.discard()
        self.process_queue = ProcessQueue(offset, self._config.limits, self._budget)
        self._capacity.set()

    # ---- pulling

    async def _pull_forever(self) -> None:
        while True:
            if self._pause_ms:
                await asyncio.sleep(self._pause_ms / 1000)
            process_queue = self.process_queue
            if self.paused or process_queue.full:
                self._capacity.clear()
                await self._capacity.wait()
                continue
            response = await self._request(process_queue.next_pull)
            if response is None or process_queue is not self.process_queue:
                continue
            try:
                await self._take_in(process_queue, response)
            except (HeaderError, RecordError, ClientError) as error:
                logger.error("pull_answer_broken queue=%s error=%s", self.queue, error)
                self._back_off()
            if response.code == ResponseCode.SUCCESS and self._config.interval_ms:
                await asyncio.sleep(self._config.interval_ms / 1000)

    async def _request(self, offset: int) -> RemotingCommand | None:
        """Pull once; None if it has to be repeated (no leader, or a new leader)."""
        address = self._address()
        if address is None:
            self._instance.directory.refresh_groups_soon()
            self._back_off()
            return None
        trying = address == self._replicas.absent_leader
        suspend_ms = 0 if trying else self._config.suspend_ms
        header = PullHeader(
            self._group,
            self.queue.topic,
            self.queue.queue_id,
            offset,
            self._config.batch_size,
            PULL_SUBSCRIPTION
            | (PULL_SUSPEND if suspend_ms else 0)
            | (PULL_LITE if self._config.lite else 0),
            0,
            suspend_ms,
            self.subscription.expression,
            self.subscription.version,
            self.subscription.expression_type,
            self._config.batch_bytes_max,
            self.queue.broker_name,
        )
        code = RequestCode.LITE_PULL_MESSAGE if self._config.lite else RequestCode.PULL_MESSAGE
        command = RemotingCommand.request(code, header.to_ext())
        timeout_ms = suspend_ms + self._config.answer_grace_ms
        if trying:
            timeout_ms = LEADER_TRY_TIMEOUT_MS
        self.last_pull_ms = self._loop.time() * 1000
        self._pull_address = address
        self._pull = self._loop.create_task(
            self._instance.remoting.invoke(address, command, timeout_ms)
        )
        try:
            await asyncio.wait((self._pull,))
            if self._pull.cancelled():
                return None  # leader_changed or reset
            return self._pull.result()
        except RemotingError as error:
            logger.info("pull_failed queue=%s address=%s error=%s", self.queue, address, error)
            self._read_from = LEADER_ID
            self._instance.directory.doubt(self._replicas, address)
            self._back_off(PAUSE_MS_FIRST * 8)
            return None
        finally:
            self._pull.cancel()  # no effect unless this task itself is being cancelled
            self._pull = None

    def _address(self) -> str | None:
        """Return the address to pull from, or None."""
        replicas = self._replicas
        if self._read_from != LEADER_ID:
            return replicas.replica(self._read_from) or replicas.target
        absent = replicas.absent_leader
        now_ms = self._loop.time() * 1000
        if absent is None:
            self._leader_try_ms = LEADER_TRY_MS_FIRST
        elif now_ms >= self._leader_due_ms:
            self._leader_due_ms = now_ms + self._leader_try_ms
            self._leader_try_ms = min(2 * self._leader_try_ms, LEADER_TRY_MS_MAX)
            return absent
        return replicas.target

    def _follow_suggestion(self, answer: PullResponseHeader) -> bool:
        """Record the broker's suggested replica for the next pull; return whether it changed."""
        if self._pull_address == self._replicas.absent_leader:
            self._instance.directory.presume(self._replicas, self._pull_address)
        self._read_from = answer.suggested_broker_id
        requested = self._replicas.replica(self._read_from)
        if self._read_from == LEADER_ID and self._replicas.leader is None:
            return False  # no known leader
        return requested is not None and requested != self._pull_address

    async def _take_in(self, process_queue: ProcessQueue, response: RemotingCommand) -> None:
        code = response.code
        if code == ResponseCode.SUCCESS:
            answer = PullResponseHeader.parse(response.ext)
            self._follow_suggestion(answer)
            messages = decode_messages(response.body, self.queue.broker_name, self._needed)
            start = process_queue.next_pull
            if messages and messages[0].queue_offset < start:  # a broker may start a batch earlier
                messages = [message for message in messages if message.queue_offset >= start]
            process_queue.add(messages, max(answer.next_offset, start))
            self._good_answer()
            if messages:
                self._arrived.set()
                self._owner.arrived(self.queue)
            else:
                self._owner.advanced(self.queue, process_queue.committable)
        elif code == ResponseCode.PULL_NOT_FOUND or code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self._nothing_new(process_queue, response)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            answer = PullResponseHeader.parse(response.ext)
            if response.remark == OFFSET_RESET:
                self._reset_by_broker(answer.next_offset)
            else:
                self._offset_moved(process_queue, answer)
        elif code == ResponseCode.SERVICE_NOT_AVAILABLE:
            directory = self._instance.directory
            directory.doubt(self._replicas, self._pull_address, leader_hint(response))
            self._back_off(PAUSE_MS_FIRST * 8)
        elif code in (
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ):
            self._back_off()
            await self._instance.heartbeat_shared()
        else:
            logger.warning(
                "pull_refused queue=%s code=%d remark=%s", self.queue, code, response.remark
            )
            self._instance.directory.refresh_groups_soon()
            self._back_off()

    def _nothing_new(self, process_queue: ProcessQueue, response: RemotingCommand) -> None:
        """Handle 19 (nothing at or after the offset) and 20 (no match there, continue after it)."""
        answer = PullResponseHeader.parse(response.ext)
        self._moved.clear()
        elsewhere = self._follow_suggestion(answer)
        offset = process_queue.next_pull
        if response.code == ResponseCode.PULL_NOT_FOUND:
            useful = self._loop.time() * 1000 - self.last_pull_ms >= FAST_EMPTY_MS
        else:  # a follower answers thus without progress
            useful = answer.next_offset > offset or (elsewhere and answer.next_offset == offset)
            if answer.next_offset > offset:
                process_queue.add([], answer.next_offset)
                self._owner.advanced(self.queue, process_queue.committable)
        if useful:
            self._pause_ms = 0.0
        else:
            self._back_off()

    def _reset_by_broker(self, offset: int) -> None:
        """Continue at the offset of an administrator's reset, and drop the cache."""
        logger.info("offset_reset queue=%s to=%d", self.queue, offset)
        self._good_answer()
        self._start_at(offset)
        self._owner.rewound(self.queue, offset)

    def _offset_moved(self, process_queue: ProcessQueue, answer: PullResponseHeader) -> None:
        requested = process_queue.next_pull
        if not self._moved.believes(requested, answer):
            self._instance.directory.refresh_groups_soon()
            self._pause_ms = float(self._config.moved_pause_ms)
            return
        logger.warning(
            "offset_moved queue=%s from=%d to=%d min=%d max=%d",
            self.queue, requested, answer.next_offset, answer.offset_min, answer.offset_max,
        )  # fmt: skip
        self._pause_ms = 0.0
        if answer.next_offset > requested:
            process_queue.add([], answer.next_offset)
            self._owner.advanced(self.queue, process_queue.committable)
        else:
            self._start_at(answer.next_offset)
            self._owner.rewound(self.queue, answer.next_offset)

    def _good_answer(self) -> None:
        self._pause_ms = 0.0
        self._moved.clear()

    def _back_off(self, pause_ms_max: float = PAUSE_MS_MAX) -> None:
        """Pause before the next pull, from 10 ms, doubling up to the bound."""
        self._pause_ms = min(max(PAUSE_MS_FIRST, self._pause_ms * 2), pause_ms_max)

    # ---- consuming

    async def _consume_forever(self) -> None:
        while not self._stopping:
            process_queue = self.process_queue
            batch = process_queue.take(self._config.consume_batch_size)
            if batch is None:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            finish = partial(self._finish, process_queue, batch)
            await self._owner.consume(self.queue, batch, finish)
            self.last_consumed_ms = time.time() * 1000
            finish()
            await asyncio.sleep(0)  # a listener without awaits must not block the loop

    def _finish(self, process_queue: ProcessQueue, batch: Batch) -> None:
        if batch.finished:
            return
        offset = process_queue.finish(batch)
        self._capacity.set()
        if process_queue is self.process_queue:  # otherwise it was reset
            self._owner.advanced(self.queue, offset)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
