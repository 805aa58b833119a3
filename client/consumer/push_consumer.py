"""The push consumer, which joins a group, takes its share of the queues and feeds a listener.

    async def listen(messages: list[MessageExt]) -> ConsumeResult: ...

    consumer = PushConsumer("group", "127.0.0.1:9876", listen)
    consumer.subscribe("orders", "created || paid")
    async with consumer: ...

Clustering: each queue has a single consumer of the group (client.consumer.rebalance). Delivery is
at least once. The offset behind the last finished message is committed every `commit_interval_ms`,
when a queue is released, and (confirmed) at the end.

Orderly: a queue is consumed only under its broker's lock (client.consumer.queue_locks).

Broadcasting: every consumer has every queue and stores the offsets itself
(client.consumer.local_offset_store).

client.consumer.consume_service handles failed messages. The listener may be a coroutine function or
a plain callable. A plain callable runs on the event loop and must not block (client.sync runs
blocking listeners in threads).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raftmq.remoting.allocation import AllocationStrategy, allocate_averagely
from raftmq.remoting.errors import RemotingError

from ..errors import BrokerRefused, BrokerUnreachable, ClientError, NoRoute
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from ..log_rate_limit import ListenerLog
from ..message import RETRY_PREFIX, MessageModel, MessageQueue
from ..subscription import ALL, check_in_broker
from .consume_service import (
    BroadcastDeliverer,
    ConcurrentDeliverer,
    Deliverer,
    FailurePolicy,
    GuardedListener,
    Listener,
    OrderlyDeliverer,
)
from .local_offset_store import OffsetStorage, offsets_of
from .membership import Membership
from .offsets import ConsumeFrom
from .process_queue import Batch
from .queue_locks import LockConfig
from .queue_puller import PullConfig, QueueWorker
from .remote_offset_store import OnCommit
from .send_back import SendBack
from .server_requests import ServerRequestHandlers

logger = logging.getLogger(__name__)

RETRY_ROUTE_PAUSE_S = 1.0  # a retry topic's route appears a moment after its first message


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A push consumer's settings, with times in milliseconds.

    `orderly` delivers a batch of a queue at a time, in order, under the broker's lock; failures
    block the queue. With `confirm_commits` periodic commits wait for the broker's answer.
    `offset_storage` is for broadcasting consumers; None means a file below the home directory. All
    members of a group need the same `allocation`. After `consume_timeout_ms` messages in a
    concurrent listener are sent back to the broker for redelivery; 0 means never. `listeners_max`
    limits concurrent calls of the listener over all queues (each queue has at most
    `pull.consume_tasks`); 0 for no limit. `stop` waits `stop_grace_ms` for listeners. Slower
    threads of a blocking consumer continue, and the interpreter waits for them at its exit."""

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
    """A push consumer, for a single event loop and not thread-safe (client.sync is).
    `on_commit(queue, offset)` is called for every confirmed commit, and `on_committing(queue,
    offset)` before each request of a commit that waits for confirmation."""

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
        self._listener = GuardedListener(listener, ListenerLog(group))
        self._instance = instance = ClientInstance(namesrv, instance_config)
        model, storage = config.message_model, config.offset_storage
        self._broadcasting = model is MessageModel.BROADCASTING
        offsets = offsets_of(group, instance, model, storage, on_commit, on_committing)
        lock = config.lock if config.orderly and not self._broadcasting else None
        self.membership = Membership(
            group, "CONSUME_PASSIVELY", instance, self, offsets, config, config.pull, lock,
            config.stop_grace_ms,
        )  # fmt: skip
        self._deliverer = self._new_deliverer()
        self._handlers = ServerRequestHandlers(
            self.membership, self, self._listener, config.orderly
        )
        self._retry_check: asyncio.TimerHandle | None = None

    @property
    def client_id(self) -> str:
        """Return this consumer's id on brokers; empty before the first start."""
        return self._instance.client_id

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the held queues."""
        return self.membership.queues

    @property
    def timed_out(self) -> int:
        """Return the number of messages sent back after `consume_timeout_ms`."""
        one = self._deliverer
        return one.timed_out if isinstance(one, ConcurrentDeliverer) else 0

    @property
    def called_by_listener(self) -> bool:
        """Return whether a running call of the listener is the caller."""
        return self._listener.calling

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        """Return each held queue's finished offset, which has been or will be committed."""
        return self.membership.offsets.table.finished()

    __aenter__, __aexit__ = entered, left

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Subscribe to `topic`, before or after `start`. Raises ClientError (bad expression).
        `expression_type` is TAG ("a || b") or SQL92, which brokers evaluate if configured. A
        changed expression of a consumed topic applies from the next rebalance on."""
        self.membership.subscribe(topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Release the topic's queues by a rebalance, which is requested at once."""
        self.membership.unsubscribe(topic)

    async def start(self) -> None:
        """Join the group. Waits for a server only to check SQL92 expressions; raises BrokerRefused
        for an invalid expression or without the broker's SQL92 support."""
        if not self._broadcasting:
            self.membership.subscribe(RETRY_PREFIX + self.group, ALL, "TAG")
        await self.membership.start(self._handlers.handlers())
        try:
            await self._check_expressions()
        except BaseException:
            await self._instance.leave(None, self.group)
            raise
        self.membership.rebalancer.start()
        self._instance.spawn(self._commit_forever(), "commit offsets")
        if isinstance(self._deliverer, ConcurrentDeliverer) and self.config.consume_timeout_ms:
            work = self._deliverer.expire_forever(self.config.consume_timeout_ms)
            self._instance.spawn(work, "consume time-outs")

    async def stop(self) -> None:
        """Stop pulling, let the listener finish (`stop_grace_ms`), commit (confirmed), and leave
        the group. In the listener it returns at once, and the stop waits for the listener's return.
        """
        if not self._instance.running:
            return
        if self._retry_check is not None:
            self._retry_check.cancel()
        if self.called_by_listener:
            self.membership.start_stop()
        else:
            await self.membership.stop()

    async def commit(self) -> dict[MessageQueue, int]:
        """Commit changed offsets now; return the confirmed offsets."""
        return await self.membership.offsets.commit_confirmed()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a held queue at `offset`; cached messages are dropped."""
        worker = self.membership.workers[queue]
        worker.reset(offset)
        self.membership.offsets.table.start(queue, offset)

    def pause(self, queues: Sequence[MessageQueue] | None = None) -> None:
        """Pause pulling these queues (None: all held); cached messages are still delivered."""
        for queue in self.membership.workers if queues is None else queues:
            self.membership.workers[queue].pause()

    def resume(self, queues: Sequence[MessageQueue] | None = None) -> None:
        """Resume pulling from these queues (None for all held)."""
        for queue in self.membership.workers if queues is None else queues:
            self.membership.workers[queue].resume()

    # ---- called by the queue workers

    def arrived(self, queue: MessageQueue) -> None:
        """Do nothing, since the worker's own tasks take the messages."""

    async def consume(self, queue: MessageQueue, batch: Batch, finish: Callable[[], None]) -> None:
        await self._deliverer.deliver(queue, batch.messages, finish)

    def advanced(self, queue: MessageQueue, offset: int) -> None:
        self.membership.offsets.table.advance(queue, offset)

    def rewound(self, queue: MessageQueue, offset: int) -> None:
        self.membership.offsets.table.start(queue, offset)

    # ---- called by the membership

    def began(self, worker: QueueWorker, offset: int) -> None:
        """Do nothing, since worker and offset table have everything."""

    async def released(self, queues: Sequence[MessageQueue]) -> None:
        await self.membership.offsets.commit_confirmed(queues)

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Do nothing, since a push consumer does not need it."""

    # ---- called on an administrator's request

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            await self.seek(queue, offset)
        await self.commit()

    # ---- inside

    def _new_deliverer(self) -> Deliverer:
        config, locks = self.config, self.membership.locks
        if self._broadcasting:
            return BroadcastDeliverer(self._listener)
        back = SendBack(self.group, self._instance)
        if locks is not None:
            return OrderlyDeliverer(self._listener, back, config.failure, locks)
        return ConcurrentDeliverer(
            self._listener, back, config.failure, self._sent_back, config.listeners_max
        )

    async def _check_expressions(self) -> None:
        """Let a broker check (46) expressions that only brokers can parse, if there is one."""
        for subscription in list(self.membership.subscriptions.values()):
            if subscription.expression_type == "TAG":
                continue
            try:
                await check_in_broker(self._instance, self.group, subscription)
            except BrokerRefused:
                raise
            except (NoRoute, BrokerUnreachable, ClientError, RemotingError) as error:
                logger.warning("expression_not_judged topic=%s %s", subscription.topic, error)

    def _sent_back(self, broker_name: str) -> None:
        """Check for the retry topic soon. The first message sent back creates it, and the regular
        rebalance would find it up to 20 s later."""
        retry_topic = RETRY_PREFIX + self.group
        known = any(
            queue.topic == retry_topic and queue.broker_name == broker_name
            for queue in self.membership.workers
        )
        if not known and self._retry_check is None:
            loop = asyncio.get_running_loop()
            self._retry_check = loop.call_later(RETRY_ROUTE_PAUSE_S, self._check_retries)

    def _check_retries(self) -> None:
        self._retry_check = None
        self.membership.rebalancer.ask()

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_interval_ms / 1000)
            if self.config.confirm_commits:
                await self.membership.offsets.commit_confirmed()
            else:
                await self.membership.offsets.commit_oneway()
