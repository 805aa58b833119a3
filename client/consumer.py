"""The push consumer: joins a group, takes its share of the queues, feeds a listener.

    async def listen(messages: list[MessageExt]) -> ConsumeResult: ...

    consumer = PushConsumer("group", "127.0.0.1:9876", listen)
    consumer.subscribe("orders", "created || paid")
    async with consumer: ...

Clustering: each queue has one consumer of the group, found anew every 20 s and whenever the broker
says that the group changed. At least once: offsets are committed behind the last finished message,
every `commit_interval_ms`, when a queue is given up, and (confirmed) at the end.
The listener may be a coroutine function or a plain callable; a plain one runs on the event loop and
must not block (client.sync runs blocking listeners in threads).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from client.decode import decode_messages
from client.errors import ClientError, NameServerUnreachable, NoRoute
from client.instance import ClientInstance, InstanceConfig
from client.listen import RETRY_PREFIX, Deliverer, FailurePolicy, Listener
from client.message import MessageQueue
from client.offsets import ConsumeFrom
from client.offsetstore import OffsetStore, OnCommit
from client.processqueue import Batch
from client.pull import PullConfig, QueueWorker
from client.rebalance import allocate_averagely, assignment_change
from client.route import ReplicaGroup
from client.runninginfo import running_info
from client.subscription import ALL, Subscription, subscribe
from remoting.admin_headers import ResetOffsetHeader
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.fastjson import MessageQueue as WireQueue
from remoting.fastjson import dumps, loads_object
from store.record import RecordError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Times in milliseconds. `orderly`: one batch of a queue at a time, in order, failures block
    the queue. `confirm_commits`: periodic commits wait for the broker's answer."""

    orderly: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_from_timestamp_ms: int = 0
    rebalance_interval_ms: int = 20_000
    commit_interval_ms: int = 5_000
    confirm_commits: bool = False
    stop_grace_ms: int = 5_000
    pull: PullConfig = field(default_factory=PullConfig)
    failure: FailurePolicy = field(default_factory=FailurePolicy)


class PushConsumer:
    """See the module. One event loop; not thread-safe (client.sync is).

    `on_commit(queue, offset)` is called for every commit that a broker confirmed, and
    `on_committing(queue, offset)` before a commit that waits for that is sent.
    """

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
            config = replace(
                config,
                pull=replace(config.pull, consume_tasks=1),
                failure=replace(config.failure, send_back=False),
            )
        self.config = config
        self._listener = listener
        self._instance = ClientInstance(namesrv, instance_config)
        self._on_commit = on_commit
        self._on_committing = on_committing
        self._subscriptions: dict[str, Subscription] = {}
        self._workers: dict[MessageQueue, QueueWorker] = {}
        self._offsets: OffsetStore | None = None
        self._deliverer: Deliverer | None = None
        self._rebalance_wanted = asyncio.Event()
        self._announced: set[str] = set()  # groups that had our heartbeat since the last change
        self._started_ms = 0
        self._greeting: asyncio.Task[Any] | None = None
        self._rebalancing: asyncio.Task[Any] | None = None

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues this consumer holds now."""
        return tuple(sorted(self._workers))

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        """Finished offset of every held queue: what has been or will be committed."""
        return self._offsets.table.finished() if self._offsets else {}

    async def __aenter__(self) -> PushConsumer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def subscribe(self, topic: str, expression: str = ALL, expression_type: str = "TAG") -> None:
        """Want messages of `topic`; before or after `start`. Raises ClientError (bad expression).

        A changed expression of a topic already consumed applies from the next rebalance on."""
        version = int(time.time() * 1000)
        self._subscriptions[topic] = subscribe(topic, expression, version, expression_type)
        self._changed()

    def unsubscribe(self, topic: str) -> None:
        """Give up the topic's queues at the next rebalance, which is asked for at once."""
        self._subscriptions.pop(topic, None)
        self._changed()

    async def start(self) -> None:
        """Join the group. Does not wait for any server."""
        self._started_ms = int(time.time() * 1000)
        retry_topic = RETRY_PREFIX + self.group
        if not self.config.orderly:
            self._subscriptions[retry_topic] = subscribe(retry_topic, ALL, self._started_ms)
        await self._instance.start(
            self._heartbeat,
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_asked,
                RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info_asked,
                RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly_asked,
            },
        )
        self._instance.directory.watch_leaders(self._leader_changed)
        self._offsets = OffsetStore(
            self.group, self._instance, self._on_commit, self._on_committing
        )
        self._deliverer = Deliverer(self.group, self._listener, self._instance, self.config.failure)
        self._rebalance_wanted.set()
        self._rebalancing = self._instance.spawn(self._rebalance_forever(), "rebalance")
        self._instance.spawn(self._commit_forever(), "commit offsets")

    async def stop(self) -> None:
        """Stop pulling, let the listener finish (`stop_grace_ms`), commit (confirmed), leave."""
        if not self._instance.running:
            return
        if self._rebalancing is not None:  # it must not take queues while they are given up
            self._rebalancing.cancel()
            await asyncio.wait((self._rebalancing,))
        workers, self._workers = dict(self._workers), {}
        await asyncio.gather(*(w.stop(self.config.stop_grace_ms) for w in workers.values()))
        await self._store().commit_confirmed(list(workers))
        await self._instance.unregister(None, self.group)
        await self._instance.stop()

    async def commit(self) -> dict[MessageQueue, int]:
        """Commit now what moved since the last commit; returns what brokers confirmed."""
        return await self._store().commit_confirmed()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` in a queue that is held; cached messages are forgotten."""
        worker = self._workers[queue]
        worker.reset(offset)
        self._store().table.begin(queue, offset, told=False)

    # ---- what workers need

    async def consume(self, batch: Batch) -> None:
        assert self._deliverer is not None
        await self._deliverer.deliver(batch)

    def advanced(self, queue: MessageQueue, offset: int) -> None:
        self._store().table.advance(queue, offset)

    def rewound(self, queue: MessageQueue, offset: int) -> None:
        self._store().table.begin(queue, offset, told=False)

    async def subscription_outdated(self) -> None:
        if self._greeting is None or self._greeting.done():
            self._greeting = self._instance.spawn(self._instance.heartbeat_all(), "heartbeat")
        await asyncio.wait((self._greeting,))

    # ---- rebalance

    async def _rebalance_forever(self) -> None:
        interval = self.config.rebalance_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass  # its time has come without a sign
            self._rebalance_wanted.clear()
            settled = await self._rebalance()
            interval = self.config.rebalance_interval_ms / 1000 if settled else 0.5

    async def _rebalance(self) -> bool:
        """One pass over all topics; False if something has to be tried again soon."""
        settled = True
        for topic in {queue.topic for queue in self._workers} - set(self._subscriptions):
            await self._drop([queue for queue in self._workers if queue.topic == topic])
        for topic, subscription in list(self._subscriptions.items()):
            try:
                settled = await self._rebalance_topic(topic, subscription) and settled
            except NoRoute as error:
                if not topic.startswith(RETRY_PREFIX):  # that one appears with the first failure
                    logger.info("rebalance_without_route topic=%s error=%s", topic, error)
                    settled = False
            except (ClientError, RemotingError) as error:
                logger.warning("rebalance_failed topic=%s error=%s", topic, error)
                settled = False
        return settled

    async def _rebalance_topic(self, topic: str, subscription: Subscription) -> bool:
        route = await self._instance.directory.refresh(topic)
        queues = route.read_queues(topic)
        if not queues:
            raise NoRoute(topic, "it has no queue that may be read")
        names = sorted({queue.broker_name for queue in queues})
        unannounced = set(names) - self._announced
        if unannounced:
            await self._instance.heartbeat_all()  # nobody counts us as a member before that
            self._announced |= unannounced
        client_ids = await self._members(names)
        if self.client_id not in client_ids:
            self._announced -= set(names)
            return False
        mine = allocate_averagely(queues, client_ids, self.client_id)
        held = [q for q, w in self._workers.items() if w.subscription == subscription]
        stale = [q for q, w in self._workers.items() if q.topic == topic and q not in set(held)]
        change = assignment_change(topic, held, mine)
        await self._drop([*change.dropped, *stale])
        added = await asyncio.gather(*(self._add(queue, subscription) for queue in change.added))
        return all(added)

    async def _members(self, broker_names: Sequence[str]) -> list[str]:
        """Client ids of the group, from the first broker group that answers."""
        ext = {"consumerGroup": self.group}
        failure: ClientError | None = None
        for name in broker_names:
            try:
                response = await self._instance.invoke_leader(
                    name,
                    lambda: RemotingCommand.request(
                        RequestCode.GET_CONSUMER_LIST_BY_GROUP, dict(ext)
                    ),
                )
            except ClientError as error:
                failure = error
                continue
            if response.code == ResponseCode.SUCCESS:
                return [str(i) for i in loads_object(response.body).get("consumerIdList") or ()]
            logger.info("no_members_yet group=%s remark=%s", self.group, response.remark)
            return []
        raise failure or NameServerUnreachable("no broker group to ask for members")

    async def _add(self, queue: MessageQueue, subscription: Subscription) -> bool:
        config = self.config
        try:
            start, told = await self._store().start_offset(
                queue, config.consume_from, config.consume_from_timestamp_ms
            )
        except ClientError as error:
            logger.warning("start_offset_failed queue=%s error=%s", queue, error)
            return False
        self._store().table.begin(queue, start, told)
        worker = QueueWorker(
            queue, self.group, subscription, start, self._instance, self, config.pull
        )
        self._workers[queue] = worker
        worker.start()
        logger.info("queue_taken queue=%s offset=%d", queue, start)
        return True

    async def _drop(self, queues: Sequence[MessageQueue]) -> None:
        """Give queues up: stop, commit what is finished, forget."""
        workers = [self._workers.pop(queue) for queue in queues]
        await asyncio.gather(*(w.stop(self.config.stop_grace_ms) for w in workers))
        await self._store().commit_confirmed(queues)
        for queue in queues:
            self._store().table.drop(queue)
            logger.info("queue_given_up queue=%s", queue)

    # ---- offsets, leaders, heartbeats

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_interval_ms / 1000)
            if self.config.confirm_commits:
                await self._store().commit_confirmed()
            else:
                await self._store().commit_oneway()

    def _leader_changed(self, group: ReplicaGroup) -> None:
        self._store().table.forget_told(group.name)
        for queue, worker in self._workers.items():
            if queue.broker_name == group.name:
                worker.leader_changed()

    def _heartbeat(self) -> Mapping[str, Any]:
        return {
            "consumerDataSet": [
                {
                    "groupName": self.group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": self.config.consume_from.value,
                    "unitMode": False,
                    "subscriptionDataSet": [s.to_json() for s in self._subscriptions.values()],
                }
            ]
        }

    def _changed(self) -> None:
        self._announced.clear()
        self._rebalance_wanted.set()

    def _store(self) -> OffsetStore:
        assert self._offsets is not None, "not started"
        return self._offsets

    # ---- what brokers ask of us

    def _ids_changed(self, _connection: Connection, request: RemotingCommand) -> None:
        if (request.ext or {}).get("consumerGroup") == self.group:
            self._rebalance_wanted.set()

    async def _reset_asked(
        self, _connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """220: go on at the offsets in the body, for the queues that are held."""
        header = ResetOffsetHeader.parse(request.ext)
        count = 0
        if header.group == self.group:
            for key, offset in reset_table(request.body).items():
                if key in self._workers:
                    await self.seek(key, offset)
                    count += 1
            await self.commit()
        logger.warning("offsets_reset topic=%s queues=%d", header.topic, count)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _running_info_asked(
        self, _connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        body = running_info(
            self._instance,
            self._started_ms,
            self.config.orderly,
            list(self._subscriptions.values()),
            self._workers,
            self.offsets,
        )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, body)

    async def _consume_directly_asked(
        self, _connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """309: the listener is given the message in the body now, whatever queues are held."""
        assert self._deliverer is not None
        started_s = time.monotonic()
        try:
            name = (request.ext or {}).get("brokerName", "")
            messages = decode_messages(request.body, name)
        except (RecordError, ClientError) as error:
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
        done = await self._deliverer.offer(messages)
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if done else "CR_LATER",
            "order": self.config.orderly,
            "spentTimeMills": round((time.monotonic() - started_s) * 1000),
        }
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, dumps(result))


def reset_table(body: bytes) -> dict[MessageQueue, int]:
    """The offsets of a 220 body, in either of its two forms (section 4.3)."""
    table = loads_object(body).get("offsetTable") or {}
    if isinstance(table, list):
        return {
            MessageQueue(i["topic"], i["brokerName"], int(i["queueId"])): int(i["offset"])
            for i in table
        }
    return {
        MessageQueue(key.topic, key.broker_name, key.queue_id): int(offset)
        for key, offset in table.items()
        if isinstance(key, WireQueue)
    }
