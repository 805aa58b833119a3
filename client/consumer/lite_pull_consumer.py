"""The lite pull consumer, which prefetches messages for the user's polls.

    consumer = LitePullConsumer("group", "127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        while True:
            for message in await consumer.poll():
                ...

With `subscribe` the group's members share the queues, as with PushConsumer; with `assign` the user
selects them, regardless of the group. A message counts as processed at the next `poll`. Auto-commit
commits up to there, never messages still in process. It starts at a poll after its interval,
without delaying the poll, and when a queue is released. `commit` commits everything handed out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raftmq.remoting.allocation import AllocationStrategy, allocate_averagely

from ..errors import ClientClosed, ClientError
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from ..message import MessageExt, MessageModel, MessageQueue
from ..subscription import ALL, subscribe
from .local_offset_store import OffsetStorage, offsets_of
from .membership import Membership
from .offsets import ConsumeFrom
from .process_queue import Batch
from .queue_puller import PullConfig, QueueWorker
from .remote_offset_store import max_offset, min_offset, offset_for
from .server_requests import ServerRequestHandlers

logger = logging.getLogger(__name__)

QueuesChanged = Callable[[str, Sequence[MessageQueue]], None]


@dataclass(frozen=True, slots=True)
class LitePullConfig:
    """A lite pull consumer's settings, with times in milliseconds. `poll_size` is the limit of
    messages per poll. The rest is as in ConsumerConfig."""

    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    poll_size: int = 10
    message_model: MessageModel = MessageModel.CLUSTERING
    allocation: AllocationStrategy = allocate_averagely
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_from_timestamp_ms: int = 0
    rebalance_interval_ms: int = 20_000
    pull: PullConfig = field(default_factory=PullConfig)
    offset_storage: OffsetStorage | None = None


class LitePullConsumer:
    """A lite pull consumer, for a single event loop and a single `poll` at a time. Methods that ask
    brokers raise ClientError. `on_queues_changed(topic, queues)` is called when queues of the topic
    are first seen, added or removed."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: LitePullConfig | None = None,
        instance_config: InstanceConfig | None = None,
        on_queues_changed: QueuesChanged | None = None,
    ) -> None:
        self.group = group
        self.config = config or LitePullConfig()
        self._instance = instance = ClientInstance(namesrv, instance_config)
        model, storage = self.config.message_model, self.config.offset_storage
        pull = replace(self.config.pull, consume_tasks=0, lite=True)
        offsets = offsets_of(group, instance, model, storage)
        self.membership = Membership(
            group, "CONSUME_ACTIVELY", instance, self, offsets, self.config, pull
        )
        self._handlers = ServerRequestHandlers(self.membership, self)
        self._on_queues_changed = on_queues_changed
        self._seen_queues: dict[str, frozenset[MessageQueue]] = {}
        self._polled: dict[MessageQueue, int] = {}  # everything below was handed out
        self._processed: dict[MessageQueue, int] = {}  # handed out before the latest poll
        self._paused: set[MessageQueue] = set()
        self._arrival = asyncio.Event()
        self._commit_due = 0.0
        self._uncommitted: set[MessageQueue] = set()  # queues of the next round of auto-commit
        self._committing: asyncio.Task[None] | None = None
        self._assigned = False

    @property
    def client_id(self) -> str:
        """Return this consumer's id on brokers; empty before the first start."""
        return self._instance.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the current queues."""
        return self.membership.queues

    __aenter__, __aexit__ = entered, left

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Share the topic's queues with the group. Excludes `assign`."""
        if self._assigned:
            raise ClientError(-1, "queues are assigned: subscribe to nothing")
        self.membership.subscribe(topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Release the topic's queues by a rebalance, which is requested at once."""
        self.membership.unsubscribe(topic)

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str = ALL, expression_type: str = "TAG"
    ) -> None:
        """Consume exactly these queues; to be called after `start`. Excludes `subscribe`. Raises
        ClientError if a queue's start offset is not available; earlier queues in sort order are
        assigned then."""
        if self.membership.subscriptions and not self._assigned:
            raise ClientError(-1, "topics are subscribed to: assign nothing")
        self._assigned = True
        requested = set(queues)
        version = int(time.time() * 1000)
        by_topic = {
            queue.topic: subscribe(queue.topic, expression, version, expression_type)
            for queue in requested
        }
        await self.membership.rebalancer.stop()
        self.membership.subscriptions.clear()
        self.membership.subscriptions.update(by_topic)
        for topic in by_topic:
            await self._instance.directory.route(topic)
        await self._instance.heartbeat_all()
        await self.membership.release(
            [queue for queue in self.membership.workers if queue not in requested]
        )
        for queue in sorted(requested - set(self.membership.workers)):
            if not await self.membership.take(queue, by_topic[queue.topic]):
                raise ClientError(-1, f"where to begin in {queue} could not be found out")

    async def start(self) -> None:
        """Start, without waiting for a server."""
        await self.membership.start(self._handlers.handlers())
        self._commit_due = self._now() + self.config.auto_commit_interval_ms / 1000
        if not self._assigned:
            self.membership.rebalancer.start()

    async def stop(self) -> None:
        """Auto-commit the processed messages, and leave the group."""
        if self._instance.running:
            await self.membership.stop()

    async def poll(self, timeout_ms: int = 5_000, count_max: int = 0) -> list[MessageExt]:
        """Return a queue's next messages, in turn; [] on time-out. Raises ClientClosed."""
        if not self._instance.running:
            raise ClientClosed
        deadline = self._now() + timeout_ms / 1000
        self._processed = dict(self._polled)
        if self.config.auto_commit and self._now() >= self._commit_due:
            self._auto_commit()
        count = count_max or self.config.poll_size
        while True:
            self._arrival.clear()
            for queue in list(self.membership.workers):
                worker = self.membership.workers.pop(queue, None)
                if worker is None:
                    continue
                self.membership.workers[queue] = worker  # behind the remaining queues
                batch = worker.taken(count)
                if batch is not None:
                    return batch.messages
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrival.wait()
            except TimeoutError:
                return []

    def restore(self, messages: Sequence[MessageExt]) -> None:
        """Hand out the unprocessed messages of the latest `poll` again."""
        if messages and messages[0].queue in self.membership.workers:
            queue, offset = messages[0].queue, messages[0].queue_offset
            self.membership.workers[queue].reset(offset)
            self.rewound(queue, offset)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Commit `offsets`, or everything handed out; return the confirmed offsets."""
        given = self._polled if offsets is None else offsets
        chosen = {
            queue: offset for queue, offset in given.items() if queue in self.membership.workers
        }
        self._processed.update(chosen)  # so that auto-commit does not commit less
        return await self._commit(chosen)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group (broadcasting: of this member), or None."""
        return await self.membership.offsets.committed(queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset below which all was handed out. Raises KeyError if not held."""
        return self._polled[queue]

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset`. Raises KeyError for a queue that is not held."""
        self.membership.workers[queue].reset(offset)
        self.rewound(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the queue's first message. Raises as `seek`."""
        await self.seek(queue, await min_offset(self._instance, queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with messages stored from now on. Raises as `seek`."""
        await self.seek(queue, await max_offset(self._instance, queue))

    async def offset_for(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of a queue's first message stored at or after that time, for `seek`."""
        return await offset_for(self._instance, queue, timestamp_ms)

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues in the topic's current route."""
        return (await self._instance.directory.refresh(topic)).read_queues(topic)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pull nor hand out these queues until `resume`, even after a rebalance."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.membership.workers:
                self.membership.workers[queue].pause()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume pulling and handing out these queues."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self.membership.workers:
                self.membership.workers[queue].resume()
        self._arrival.set()

    # ---- called by the queue workers

    def arrived(self, queue: MessageQueue) -> None:
        self._arrival.set()

    async def consume(self, queue: MessageQueue, batch: Batch, finish: Callable[[], None]) -> None:
        raise AssertionError("a worker without consuming tasks consumed")

    def advanced(self, queue: MessageQueue, offset: int) -> None:
        if queue in self._polled:
            self._polled[queue] = max(offset, self._polled[queue])

    def rewound(self, queue: MessageQueue, offset: int) -> None:
        self._polled[queue] = self._processed[queue] = offset
        self.membership.offsets.table.start(queue, offset)

    # ---- called by the membership

    def began(self, worker: QueueWorker, offset: int) -> None:
        self._polled[worker.queue] = self._processed[worker.queue] = offset
        if worker.queue in self._paused:
            worker.pause()

    async def released(self, queues: Sequence[MessageQueue]) -> None:
        if self.config.auto_commit:
            await self._commit({q: self._processed[q] for q in queues if q in self._processed})
        for queue in queues:
            self._polled.pop(queue, None)
            self._processed.pop(queue, None)

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        if self._seen_queues.get(topic) == frozenset(queues):
            return
        self._seen_queues[topic] = frozenset(queues)
        if self._on_queues_changed is not None:
            try:
                self._on_queues_changed(topic, queues)
            except Exception:
                logger.exception("queues_changed_callback_failed")  # must not stop the rebalance

    # ---- called on an administrator's request

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            await self.seek(queue, offset)
        await self.commit(offsets)

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        """Return, by queue, the offset below which everything counts as processed."""
        return dict(self._processed)

    # ---- inside

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _auto_commit(self) -> None:
        """Start a commit of processed messages, or continue the running task."""
        self._commit_due = self._now() + self.config.auto_commit_interval_ms / 1000
        self._record(self._processed)
        self._uncommitted.update(self._processed)
        if self._committing is None or self._committing.done():
            self._committing = self._instance.spawn(self._commit_recorded(), "auto-commit")

    async def _commit_recorded(self) -> None:
        while self._uncommitted:
            queues = list(self._uncommitted)
            self._uncommitted.clear()
            await self.membership.offsets.commit_confirmed(queues)

    async def _commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        self._record(offsets)
        return await self.membership.offsets.commit_confirmed(list(offsets))

    def _record(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Include these offsets in the next commit."""
        table = self.membership.offsets.table
        for queue, offset in offsets.items():
            if offset < table.finished().get(queue, offset):
                table.start(queue, offset)  # the user went back
            table.advance(queue, offset)
