"""A consumer's membership in its group, with subscriptions, held queues and heartbeats.

The rebalancer decides which queues to take and release. A held queue has a worker, which pulls it,
and an entry in the offset table. An orderly consumer also holds its lock, and loses the queue with
the lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from raftmq.remoting.allocation import AllocationStrategy
from raftmq.remoting.connection import Handler

from ..errors import ClientError
from ..instance import ClientInstance
from ..message import MessageModel, MessageQueue
from ..route import ReplicaGroup
from ..subscription import Subscription, consumer_heartbeat, subscribe
from .offsets import ConsumeFrom
from .process_queue import CacheBudget
from .queue_locks import LockConfig, QueueLocks
from .queue_puller import PullConfig, QueueWorker, WorkerOwner
from .rebalance import Rebalancer
from .remote_offset_store import Offsets, starting_offset

logger = logging.getLogger(__name__)


class MemberConfig(Protocol):
    """The settings of every group member."""

    @property
    def message_model(self) -> MessageModel: ...

    @property
    def allocation(self) -> AllocationStrategy: ...

    @property
    def consume_from(self) -> ConsumeFrom: ...

    @property
    def consume_from_timestamp_ms(self) -> int: ...

    @property
    def rebalance_interval_ms(self) -> int: ...


class Member(WorkerOwner, Protocol):
    """The methods of a consumer that its membership calls."""

    def began(self, worker: QueueWorker, offset: int) -> None:
        """A queue is held from now on; its worker starts next."""

    async def released(self, queues: Sequence[MessageQueue]) -> None:
        """Commit the finished messages of queues with stopped workers."""

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """The allocation of `topic` was computed; `queues` are all its queues."""


class Membership:
    """A consumer's membership. With `lock`, queues are held under their broker's lock."""

    def __init__(
        self,
        group: str,
        consume_type: str,
        instance: ClientInstance,
        member: Member,
        offsets: Offsets,
        config: MemberConfig,
        pull: PullConfig,
        lock: LockConfig | None = None,
        stop_grace_ms: int = 0,
    ) -> None:
        self.group = group
        self.consume_type = consume_type
        self.instance = instance
        self.offsets = offsets
        self.workers: dict[MessageQueue, QueueWorker] = {}
        # their queues are not held any more
        self._giving_up: dict[MessageQueue, asyncio.Task[None]] = {}
        self._stop: asyncio.Task[None] | None = None
        self.started_ms = 0
        self.locks = QueueLocks(group, instance, lock, self._lock_lost) if lock else None
        self._member = member
        self._config = config
        self._pull = pull
        self._stop_grace_ms = stop_grace_ms
        self._budget = CacheBudget(pull.limits)
        self._first_queues: dict[str, frozenset[MessageQueue]] = {}  # of a topic, when we joined
        self._broadcasting = config.message_model is MessageModel.BROADCASTING
        strategy = None if self._broadcasting else config.allocation
        self.rebalancer = Rebalancer(group, instance, self, strategy, config.rebalance_interval_ms)
        self.subscriptions = self.rebalancer.subscriptions

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return tuple(sorted(self.workers))

    def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Subscribe from the next rebalance on. Raises ClientError (bad expression)."""
        version = int(time.time() * 1000)
        self.subscriptions[topic] = subscribe(topic, expression, version, expression_type)
        self.rebalancer.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.pop(topic, None)
        self._first_queues.pop(topic, None)
        self.rebalancer.subscription_changed()

    async def start(self, handlers: Mapping[int, Handler]) -> None:
        """Start the instance; `rebalancer.start` then takes queues."""
        self.started_ms = int(time.time() * 1000)
        await self.instance.start(self._heartbeat, handlers)
        self.instance.directory.watch_leaders(self._leader_changed)
        if self.locks is not None:
            self.locks.start()

    async def stop(self) -> None:
        """Release all queues and leave the group, even if the release fails, and at once if
        cancelled. Concurrent calls share a single stop."""
        task = self.start_stop()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if not task.cancelled():  # by a different caller
            task.result()

    def start_stop(self) -> asyncio.Task[None]:
        """Start `stop` in a separate task, which it does not end. The listener gets no more."""
        for worker in self.workers.values():
            worker.hand_out_no_more()
        if self._stop is None or self._stop.done():
            self._stop = asyncio.get_running_loop().create_task(self._leave(), name="stop")
        return self._stop

    # ---- called by the rebalancer

    def held(self) -> Mapping[MessageQueue, Subscription]:
        return {queue: worker.subscription for queue, worker in self.workers.items()}

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        self._first_queues.setdefault(topic, frozenset(queues))
        self._member.queues_changed(topic, queues)

    async def take(self, queue: MessageQueue, subscription: Subscription) -> bool:
        """Take a queue; return False if its lock or offset is not available now."""
        config = self._config
        if (before := self._giving_up.get(queue)) is not None:
            await asyncio.wait((before,))
        try:
            # Take the lock first, because the previous holder commits before the release.
            if self.locks is not None and not await self.locks.acquire(queue):
                return False
            start = await starting_offset(
                self.offsets,
                self.instance,
                queue,
                self._consume_from(queue),
                config.consume_from_timestamp_ms,
            )
        except (ClientError, OSError) as error:
            logger.warning("start_offset_failed queue=%s error=%s", queue, error)
            return False
        if self.locks is not None and not self.locks.held(queue):
            return False  # lost: a different member has it and moves the offset
        self.offsets.table.start(queue, start)
        worker = QueueWorker(
            queue, self.group, subscription, start, self.instance, self._member, self._pull,
            self._budget,
        )  # fmt: skip
        self._member.began(worker, start)
        self.workers[queue] = worker
        worker.start()
        logger.info("queue_taken queue=%s offset=%d", queue, start)
        return True

    async def release(self, queues: Sequence[MessageQueue]) -> None:
        """Stop the queues' workers, commit finished messages, release the locks, and drop the
        queues, except queues that were lost with their locks. If the caller is cancelled, the work
        continues and `stop` waits for it."""
        await asyncio.shield(self._start_release(queues))

    # ---- inside

    def _consume_from(self, queue: MessageQueue) -> ConsumeFrom:
        """Return the start in a queue without an offset. A queue that was created after this member
        joined has messages that the group must not skip (a further broker group, more queues)."""
        is_later = queue not in self._first_queues.get(queue.topic, (queue,))
        return ConsumeFrom.FIRST_OFFSET if is_later else self._config.consume_from

    async def _leave(self) -> None:
        try:
            await self.rebalancer.stop()  # so that it takes no queues during the release
            rest = self._start_release(list(self.workers))
            tasks = {rest, *self._giving_up.values()}
            await asyncio.wait(tasks)
            for task in tasks:
                task.result()
            if self.locks is not None:
                await self.locks.release_all()
        finally:
            await self.instance.leave(None, self.group)

    def _start_release(self, queues: Sequence[MessageQueue]) -> asyncio.Task[None]:
        workers = {queue: self.workers.pop(queue) for queue in queues if queue in self.workers}
        task = self.instance.spawn(self._release(workers), "give queues up")
        self._giving_up.update(dict.fromkeys(workers, task))
        return task

    async def _release(self, workers: Mapping[MessageQueue, QueueWorker]) -> None:
        queues = list(workers)
        try:
            stopping = (worker.stop(self._stop_grace_ms) for worker in workers.values())
            idle = await asyncio.gather(*stopping)
            await self._member.released(queues)
            if self.locks is not None:
                rest = dict(zip(queues, idle, strict=True))
                await self.locks.release([queue for queue in queues if rest[queue]])
                await self.locks.release([q for q in queues if not rest[q]], notify=False)
            for queue in queues:
                self.offsets.table.drop(queue)
                logger.info("queue_given_up queue=%s", queue)
        finally:
            for queue in queues:
                del self._giving_up[queue]

    def _lock_lost(self, queue: MessageQueue) -> None:
        """Drop a queue that a different member has locked, without a commit, and rebalance."""
        worker = self.workers.pop(queue, None)
        if worker is not None:
            self.offsets.table.drop(queue)
            self.instance.spawn(self._restart(worker), f"begin anew {queue}")

    async def _restart(self, worker: QueueWorker) -> None:
        await worker.stop(0)
        self.rebalancer.ask()

    def _leader_changed(self, group: ReplicaGroup) -> None:
        if not self._broadcasting:
            self.offsets.table.forget_sent(group.name)
        if self.locks is not None:
            self.locks.leader_changed(group.name)
        for queue, worker in self.workers.items():
            if queue.broker_name == group.name:
                worker.leader_changed()

    def _heartbeat(self) -> Mapping[str, Any]:
        model, consume_from = self._config.message_model.value, self._config.consume_from.value
        subscriptions = self.subscriptions.values()
        return consumer_heartbeat(self.group, self.consume_type, model, consume_from, subscriptions)
