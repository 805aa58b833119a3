"""Rebalancing, which joins a group and computes the queues of this consumer.

It runs every `interval_ms`, when a broker announces a group change (40), and on request. In
clustering a strategy allocates the queues among the members on the broker; in broadcasting every
member has all. The owner takes and releases the queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from raftmq.remoting.allocation import AllocationStrategy
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object

from ..errors import ClientError, NameServerUnreachable, NoRoute
from ..instance import ClientInstance
from ..message import RETRY_PREFIX, MessageQueue
from ..subscription import Subscription

logger = logging.getLogger(__name__)

UNROUTED_S = 10.0  # a topic may be created by its first send
UNSETTLED_PAUSE_S = 0.5  # before a failed rebalance is repeated


class QueueHolder(Protocol):
    """The methods of a consumer that a rebalancer calls."""

    def held(self) -> Mapping[MessageQueue, Subscription]:
        """Return the held queues, each with its subscription."""

    async def take(self, queue: MessageQueue, subscription: Subscription) -> bool:
        """Take a queue; return False for a soon repetition."""

    async def release(self, queues: Sequence[MessageQueue]) -> None:
        """Release queues, after a commit of everything finished."""

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """The allocation of `topic` was computed; `queues` are all its queues."""


class Rebalancer:
    """Computes a consumer's queues. `strategy` None means broadcasting."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        owner: QueueHolder,
        strategy: AllocationStrategy | None,
        interval_ms: int,
    ) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self._group = group
        self._instance = instance
        self._owner = owner
        self._strategy = strategy
        self._interval_ms = interval_ms
        self._requested = asyncio.Event()
        self._announced: set[str] = set()  # broker groups with our heartbeat since the last change
        # topic → start of its time without a route (loop time, s)
        self._unrouted: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._requested.set()
        self._task = self._instance.spawn(self._run(), "rebalance")

    async def stop(self) -> None:
        """Stop taking queues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def ask(self) -> None:
        self._requested.set()

    def ids_changed(self, request: RemotingCommand) -> None:
        """Handle 40 (one-way), a change of a group's members."""
        if (request.ext or {}).get("consumerGroup") == self._group:
            self._requested.set()

    def subscription_changed(self) -> None:
        """Rebalance after heartbeats, since brokers need the new subscription first."""
        self._announced.clear()
        self._requested.set()

    async def _run(self) -> None:
        interval = self._interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._requested.wait()
            except TimeoutError:
                pass  # the regular interval is over
            self._requested.clear()
            settled = await self._once()
            interval = self._interval_ms / 1000 if settled else UNSETTLED_PAUSE_S

    async def _once(self) -> bool:
        """Process all topics; return False if any has to be repeated soon."""
        held = {queue.topic for queue in self._owner.held()}
        topics = [*(held - self.subscriptions.keys()), *self.subscriptions]
        return all([await self._settled(topic) for topic in topics])

    async def _settled(self, topic: str) -> bool:
        """Process a topic; return False if it has to be repeated soon. Errors do not affect the
        remaining topics or the next round."""
        try:
            return await self._topic(topic)
        except NoRoute as error:
            if topic.startswith(RETRY_PREFIX):  # created by the first failure
                return True
            self._without_route(topic, error)
        except (ClientError, RemotingError) as error:
            logger.warning("rebalance_failed group=%s topic=%s error=%s", self._group, topic, error)
        except Exception:  # ring boundary, as the strategy may be the user's
            logger.exception("rebalance_failed group=%s topic=%s", self._group, topic)
        return False

    def _without_route(self, topic: str, error: NoRoute) -> None:
        """Log a lasting failure once per minute: a misspelt or forbidden topic, perhaps."""
        now = asyncio.get_running_loop().time()
        lasts = now - self._unrouted.setdefault(topic, now) >= UNROUTED_S
        if lasts and self._instance.log_limit.due((topic, error.message)) is not None:
            text = " ".join(str(error).splitlines())
            logger.warning("rebalance_without_route topic=%s error=%s", topic, text)

    async def _topic(self, topic: str) -> bool:
        subscription = self.subscriptions.get(topic)
        if subscription is None:
            self._unrouted.pop(topic, None)
            await self._owner.release([q for q in self._owner.held() if q.topic == topic])
            return True
        route = await self._instance.directory.refresh(topic)
        self._unrouted.pop(topic, None)
        queues = route.read_queues(topic)
        if not queues:
            raise NoRoute(topic, "it has no queue that may be read")
        names = sorted({queue.broker_name for queue in queues})
        if set(names) - self._announced:
            await self._instance.heartbeat_all()  # makes us a member on these brokers
            self._announced.update(names)
        if self._strategy is None:
            mine: tuple[MessageQueue, ...] = queues
        else:
            client_id = self._instance.client_id
            client_ids = await self._members(names)
            if client_id not in client_ids:
                self._announced -= set(names)
                return False
            mine = self._strategy(queues, client_ids, client_id)
        self._owner.queues_changed(topic, queues)
        held = {q: by for q, by in self._owner.held().items() if q.topic == topic}
        kept = {queue for queue in mine if held.get(queue) == subscription}
        if held.keys() - kept:  # allocated elsewhere now, or pulled with an old subscription
            await self._owner.release(sorted(held.keys() - kept))
        taking = (self._owner.take(queue, subscription) for queue in sorted(set(mine) - kept))
        return all(await asyncio.gather(*taking))

    async def _members(self, broker_names: Sequence[str]) -> list[str]:
        """Return the group's client ids from the first broker group that answers."""
        ext = {"consumerGroup": self._group}
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
            logger.info("no_members_yet group=%s remark=%s", self._group, response.remark)
            return []
        raise failure or NameServerUnreachable("no broker group to ask for members")
