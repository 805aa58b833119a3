"""The push consumer: joins a group, takes its share of the queues, feeds a listener.

    async def listen(messages: list[MessageExt]) -> ConsumeResult: ...

    consumer = PushConsumer("group", "127.0.0.1:9876", listen)
    consumer.subscribe("orders", "created || paid")
    async with consumer: ...

Clustering: each queue has one consumer of the group (client.rebalance). Delivery is at least once:
the offset after the last finished message is committed every `commit_interval_ms`, when a queue is
given up, and (confirmed) at the end. Orderly: a queue is consumed only under its broker's lock
(client.locks). Broadcasting: every consumer has every queue and keeps the offsets itself
(client.localoffsets). client.listen says what happens to messages that fail.
The listener may be a coroutine function or a plain callable; a plain one runs on the event loop and
must not block (client.sync runs blocking listeners in threads).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raftmq.client.allocation import AllocationStrategy, allocate_averagely
from raftmq.client.asked import Asked
from raftmq.client.errors import BrokerRefused, BrokerUnreachable, ClientError, NoRoute
from raftmq.client.instance import ClientInstance, InstanceConfig, local_address
from raftmq.client.lifecycle import entered, left
from raftmq.client.listen import (
    ConcurrentDeliverer,
    Deliverer,
    FailurePolicy,
    Listener,
    OrderlyDeliverer,
)
from raftmq.client.localoffsets import LocalOffsetStore, OffsetFile, OffsetStorage, offset_file
from raftmq.client.locks import LockConfig, QueueLocks
from raftmq.client.message import RETRY_PREFIX, MessageModel, MessageQueue
from raftmq.client.offsets import ConsumeFrom
from raftmq.client.offsetstore import Offsets, OffsetStore, OnCommit
from raftmq.client.processqueue import Batch, CacheBudget
from raftmq.client.pull import PullConfig, QueueWorker
from raftmq.client.rebalance import Rebalancer
from raftmq.client.route import ReplicaGroup
from raftmq.client.sendback import SendBack
from raftmq.client.subscription import (
    ALL,
    Subscription,
    check_in_broker,
    consumer_heartbeat,
    subscribe,
)
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)

RETRY_ROUTE_PAUSE_S = 1.0  # a retry topic's route appears a moment after its first message


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A push consumer's settings; times in milliseconds.

    `orderly`: one batch of a queue at a time, in order, under the broker's lock; failures block the
    queue. `confirm_commits`: periodic commits wait for the broker's answer. `offset_storage`: for a
    broadcasting consumer; None means a file below the home directory. All members of a group must
    use one `allocation`. `consume_timeout_ms`: messages that a concurrent listener has held for
    longer are sent back to the broker, to be redelivered; 0: never. `listeners_max`: concurrent
    calls of the listener over all queues (each queue has at most `pull.consume_tasks`); 0: no
    limit. `stop_grace_ms`: how long `stop` waits for listeners."""

    orderly: bool = False
    message_model: MessageModel = MessageModel.CLUSTERING
    allocation: AllocationStrategy = allocate_averagely
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_from_timestamp_ms: int = 0
    rebalance_interval_ms: int = 20_000
    commit_interval_ms: int = 5_000
    confirm_commits: bool = False
    stop_grace_ms: int = 5_000
    consume_timeout_ms: int = 15 * 60_000
    listeners_max: int = 0
    pull: PullConfig = field(default_factory=PullConfig)
    failure: FailurePolicy = field(default_factory=FailurePolicy)
    lock: LockConfig = field(default_factory=LockConfig)
    offset_storage: OffsetStorage | None = None


class PushConsumer:
    """A push consumer. It belongs to one event loop and is not thread-safe (client.sync is).

    `on_commit(queue, offset)` is called for every commit that a broker confirmed, and
    `on_committing(queue, offset)` before a commit that waits for confirmation is sent.
    """

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: Listener,
        *,
        config: ConsumerConfig | None = None,
        instance_config: InstanceConfig | None = None,
        on_commit: OnCommit | None = None,
        on_committing: OnCommit | None = None,
    ) -> None:
        self.group = group
        config = config or ConsumerConfig()
        if config.orderly:
            config = replace(config, pull=replace(config.pull, consume_tasks=1))
        self.config = config
        self._broadcasting = config.message_model is MessageModel.BROADCASTING
        self._listener = listener
        self._instance = ClientInstance(namesrv, instance_config)
        self._on_commit = on_commit
        self._on_committing = on_committing
        self._workers: dict[MessageQueue, QueueWorker] = {}
        self._budget = CacheBudget(config.pull.limits)
        self._offsets: Offsets | None = None
        self._deliverer: Deliverer | None = None
        self._locks: QueueLocks | None = None
        self._rebalancer = Rebalancer(
            group,
            self._instance,
            self,
            None if self._broadcasting else config.allocation,
            config.rebalance_interval_ms,
        )
        self._subscriptions = self._rebalancer.subscriptions
        self._asked = Asked(self, self._delivering)
        self._greeting: asyncio.Task[Any] | None = None
        self._retry_look: asyncio.TimerHandle | None = None
        self.started_ms = 0

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues this consumer holds now."""
        return tuple(sorted(self._workers))

    @property
    def timed_out(self) -> int:
        """Count the messages sent back because the listener held them for `consume_timeout_ms`."""
        return self._deliverer.timed_out if self._deliverer else 0

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        """Return each held queue's finished offset: what has been or will be committed."""
        return self._offsets.table.finished() if self._offsets else {}

    __aenter__, __aexit__ = entered, left

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`, before or after `start`. Raises ClientError (bad expression).

        `expression_type` is TAG ("a || b") or SQL92, which brokers evaluate if configured to.
        A changed expression for a topic already consumed applies from the next rebalance on."""
        version = int(time.time() * 1000)
        self._subscriptions[topic] = subscribe(topic, expression, version, expression_type)
        self._rebalancer.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Give up the topic's queues at the next rebalance, and request one at once."""
        self._subscriptions.pop(topic, None)
        self._rebalancer.subscription_changed()

    async def start(self) -> None:
        """Join the group. Waits for a server only to have SQL92 expressions checked; raises
        BrokerRefused if one is invalid or the broker does not filter by SQL92."""
        self.started_ms = int(time.time() * 1000)
        retry_topic = RETRY_PREFIX + self.group
        if not self._broadcasting:
            self._subscriptions[retry_topic] = subscribe(retry_topic, ALL, self.started_ms)
        await self._instance.start(self._heartbeat, self._asked.handlers())
        try:
            await self._check_expressions()
        except BaseException:
            await self._instance.unregister(None, self.group)
            await self._instance.stop()
            raise
        self._instance.directory.watch_leaders(self._leader_changed)
        self._offsets = self._new_offsets()
        self._deliverer = self._new_deliverer()
        self._rebalancer.start()
        self._instance.spawn(self._commit_forever(), "commit offsets")
        if isinstance(self._deliverer, ConcurrentDeliverer) and self.config.consume_timeout_ms:
            work = self._deliverer.expire_forever(self.config.consume_timeout_ms)
            self._instance.spawn(work, "consume time-outs")

    async def stop(self) -> None:
        """Stop pulling, let the listener finish (`stop_grace_ms`), commit (confirmed), and leave
        the group."""
        if not self._instance.running:
            return
        await self._rebalancer.stop()  # so that it takes no queues while they are given up
        if self._retry_look is not None:
            self._retry_look.cancel()
        await self.give_up(list(self._workers))
        if self._locks is not None:
            await self._locks.release_all()
        await self._instance.unregister(None, self.group)
        await self._instance.stop()

    async def commit(self) -> dict[MessageQueue, int]:
        """Commit now the offsets that moved since the last commit; return those confirmed."""
        return await self._store().commit_confirmed()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a held queue at `offset`; cached messages are dropped."""
        worker = self._workers[queue]
        worker.reset(offset)
        self._store().table.begin(queue, offset, told=False)

    def pause(self, queues: Sequence[MessageQueue] | None = None) -> None:
        """Stop pulling from these queues (None: all held now); cached messages are still
        delivered."""
        for queue in self._workers if queues is None else queues:
            self._workers[queue].pause()

    def resume(self, queues: Sequence[MessageQueue] | None = None) -> None:
        for queue in self._workers if queues is None else queues:
            self._workers[queue].resume()

    # ---- called by the queue workers

    def arrived(self, queue: MessageQueue) -> None:
        """Do nothing: the worker's own tasks take the messages."""

    async def consume(self, queue: MessageQueue, batch: Batch, finish: Callable[[], None]) -> None:
        assert self._deliverer is not None
        await self._deliverer.deliver(queue, batch.messages, finish)

    def advanced(self, queue: MessageQueue, offset: int) -> None:
        self._store().table.advance(queue, offset)

    def rewound(self, queue: MessageQueue, offset: int) -> None:
        self._store().table.begin(queue, offset, told=False)

    async def subscription_outdated(self) -> None:
        if self._greeting is None or self._greeting.done():
            self._greeting = self._instance.spawn(self._instance.heartbeat_all(), "heartbeat")
        await asyncio.wait((self._greeting,))

    # ---- called by the rebalancer

    def held(self) -> Mapping[MessageQueue, Subscription]:
        return {queue: worker.subscription for queue, worker in self._workers.items()}

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Do nothing: a push consumer has no use for it."""

    async def take(self, queue: MessageQueue, subscription: Subscription) -> bool:
        config = self.config
        try:
            # Take the lock first: the previous holder commits before it releases it.
            if self._locks is not None and not await self._locks.acquire(queue):
                logger.info("queue_locked_by_another queue=%s", queue)
                return False
            start, told = await self._store().start_offset(
                queue, config.consume_from, config.consume_from_timestamp_ms
            )
        except (ClientError, OSError) as error:
            logger.warning("start_offset_failed queue=%s error=%s", queue, error)
            return False
        self._store().table.begin(queue, start, told)
        worker = QueueWorker(
            queue, self.group, subscription, start, self._instance, self, config.pull, self._budget
        )
        self._workers[queue] = worker
        worker.start()
        logger.info("queue_taken queue=%s offset=%d", queue, start)
        return True

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop the queues' workers, commit what is finished, release the locks, drop the queues."""
        workers = [self._workers.pop(queue) for queue in queues]
        idle = await asyncio.gather(*(w.stop(self.config.stop_grace_ms) for w in workers))
        await self._store().commit_confirmed(queues)
        if self._locks is not None:
            rest = dict(zip(queues, idle, strict=True))
            await self._locks.release([queue for queue in queues if rest[queue]])
            await self._locks.release([q for q in queues if not rest[q]], tell=False)
        for queue in queues:
            self._store().table.drop(queue)
            logger.info("queue_given_up queue=%s", queue)

    # ---- offsets, leaders, heartbeats

    def _new_offsets(self) -> Offsets:
        if not self._broadcasting:
            return OffsetStore(self.group, self._instance, self._on_commit, self._on_committing)
        storage = self.config.offset_storage
        if storage is None:
            address = socket.inet_ntoa(local_address())
            storage = OffsetFile(offset_file(self.group, address))
        return LocalOffsetStore(self._instance, storage)

    def _new_deliverer(self) -> Deliverer:
        """Make the deliverer, and the queue locks if the consumer is orderly."""
        back = SendBack(self.group, self._instance)
        if self._broadcasting:
            return Deliverer(self._listener)
        if not self.config.orderly:
            policy = self.config.failure
            limit = self.config.listeners_max
            return ConcurrentDeliverer(self._listener, back, policy, self._sent_back, limit)
        self._locks = QueueLocks(self.group, self._instance, self.config.lock, self._lock_lost)
        self._locks.start()
        return OrderlyDeliverer(self._listener, back, self.config.failure, self._locks)

    def _lock_lost(self, queue: MessageQueue) -> None:
        """Drop a queue that another member has locked, without committing, and rebalance."""
        worker = self._workers.pop(queue, None)
        if worker is not None:
            self._store().table.drop(queue)
            self._instance.spawn(self._begin_anew(worker), f"begin anew {queue}")

    async def _begin_anew(self, worker: QueueWorker) -> None:
        await worker.stop(0)
        self._rebalancer.ask()

    async def _check_expressions(self) -> None:
        """Have a broker check (46) expressions that only brokers can judge. A cluster that is not
        up yet is no error."""
        for subscription in list(self._subscriptions.values()):
            if subscription.expression_type == "TAG":
                continue
            try:
                await check_in_broker(self._instance, self.group, subscription)
            except BrokerRefused:
                raise
            except (NoRoute, BrokerUnreachable, ClientError, RemotingError) as error:
                logger.warning("expression_not_judged topic=%s %s", subscription.topic, error)

    def _sent_back(self, broker_name: str) -> None:
        """Look for the retry topic soon: the first message sent back creates it, and the regular
        rebalance would find it only after up to 20 s."""
        retry_topic = RETRY_PREFIX + self.group
        known = any(
            queue.topic == retry_topic and queue.broker_name == broker_name
            for queue in self._workers
        )
        if not known and self._retry_look is None:
            loop = asyncio.get_running_loop()
            self._retry_look = loop.call_later(RETRY_ROUTE_PAUSE_S, self._look_for_retries)

    def _look_for_retries(self) -> None:
        self._retry_look = None
        self._rebalancer.ask()

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_interval_ms / 1000)
            if self.config.confirm_commits:
                await self._store().commit_confirmed()
            else:
                await self._store().commit_oneway()

    def _leader_changed(self, group: ReplicaGroup) -> None:
        if not self._broadcasting:
            self._store().table.forget_told(group.name)
        if self._locks is not None:
            self._locks.leader_changed(group.name)
        for queue, worker in self._workers.items():
            if queue.broker_name == group.name:
                worker.leader_changed()

    def _heartbeat(self) -> Mapping[str, Any]:
        config, subscriptions = self.config, self._subscriptions.values()
        model, begin = config.message_model.value, config.consume_from.value
        return consumer_heartbeat(self.group, self.consume_type, model, begin, subscriptions)

    def _store(self) -> Offsets:
        assert self._offsets is not None, "not started"
        return self._offsets

    # ---- for client.asked

    def ids_changed(self, request: RemotingCommand) -> None:
        self._rebalancer.ids_changed(request)

    async def go_on_at(self, offsets: Mapping[MessageQueue, int]) -> int:
        held = {queue: offset for queue, offset in offsets.items() if queue in self._workers}
        for queue, offset in held.items():
            await self.seek(queue, offset)
        await self.commit()
        return len(held)

    @property
    def instance(self) -> ClientInstance:
        return self._instance

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self._subscriptions

    @property
    def workers(self) -> Mapping[MessageQueue, QueueWorker]:
        return self._workers

    @property
    def locks(self) -> QueueLocks | None:
        return self._locks

    @property
    def orderly(self) -> bool:
        return self.config.orderly

    def _delivering(self) -> Deliverer:
        assert self._deliverer is not None, "not started"
        return self._deliverer
