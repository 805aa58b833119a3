"""Clients that ask for the same queue locks, give them up, and write down every answer.

They are no consumers, because their group only has locks. chaos.checks.locks judges work under
locks; the responses to these clients show the owner from the broker's view. An operation is a
single request to the registered leader, never repeated. Any error after it was sent leaves its
outcome unknown, because a leader may reject a request that was decided already. A client with an
unknown outcome unlocks everything and continues under a new name, because a late request only
affects its own client.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

from raftmq.client import Admin, ClientError, MessageQueue
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps, loads_object

from ..cluster.credentials import signing
from ..history.files import HistoryWriter
from .base import Environment, Tasks, is_set_within, leader_of

TIMEOUT_MS = 2_000
GIVE_UP_SHARE = 0.6  # of the requests for a lock that the client has; the rest renew it


class Contention:
    """`clients` that contend for the locks of `queues` queues. Once started, it runs to `stop`."""

    def __init__(self, clients: int = 3, queues: int = 2, pause_s: float = 0.1) -> None:
        """`pause_s` is a client's average pause between two requests."""
        self._clients = clients
        self._queue_count = queues
        self._pause_s = pause_s
        self._stopping = asyncio.Event()

    async def start(
        self,
        stack: AsyncExitStack,
        tasks: Tasks,
        name: str,
        env: Environment,
        queues: Sequence[MessageQueue],
    ) -> None:
        """Start among `tasks`, for the workload `name`. Raises ClientError."""
        some = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
        for number in range(self._clients):
            admin = await stack.enter_async_context(Admin(env.namesrv, instance_config=signing()))
            client = Contender(admin, env.history, f"{name}-contender-{number}", f"{name}-contest")
            rng = random.Random(env.rng.random())
            work = self._contend(client, some[: self._queue_count], rng)
            tasks.spawn(work, client.name)

    def stop(self) -> None:
        self._stopping.set()

    async def _contend(
        self, client: Contender, queues: Sequence[MessageQueue], rng: random.Random
    ) -> None:
        while not self._stopping.is_set():
            queue = rng.choice(queues)
            if client.doubtful:
                await client.retire()
            else:
                unlock = queue in client.held and rng.random() < GIVE_UP_SHARE
                await client.ask(queue, unlock=unlock)
            await is_set_within(self._stopping, rng.uniform(0, 2 * self._pause_s))
        await client.retire()


class Contender:
    """A client at a time, under changing names. `held` are the locks that it may have; `doubtful`
    means that an earlier request may still be decided."""

    def __init__(self, admin: Admin, history: HistoryWriter, name: str, group: str) -> None:
        self.name = name
        self.held: set[MessageQueue] = set()
        self.doubtful = False
        self._names = (f"{name}.{number}" for number in itertools.count(1))
        self._admin = admin
        self._history = history
        self._group = group

    async def ask(self, queue: MessageQueue, *, unlock: bool) -> None:
        op = self._history.next_op()
        queue_of = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        fields = {"group": self._group, **queue_of, "unlock": unlock}
        self._history.event("invoke", "lock", self.name, op, **fields)
        outcome, result = await self._send(queue, unlock)
        self._history.event(outcome, "lock", self.name, op, **fields, **result)
        self.doubtful = self.doubtful or outcome == "unknown"

    async def retire(self) -> None:
        """Unlock everything, and continue under a new name if that was answered."""
        for queue in sorted(self.held):
            await self.ask(queue, unlock=True)
        if not self.held:
            self.name = next(self._names)
            self.doubtful = False

    async def _send(self, queue: MessageQueue, unlock: bool) -> tuple[str, dict[str, bool | str]]:
        """Send a request; return its outcome and details."""
        try:
            address = await leader_of(self._admin, queue.broker_name)
        except ClientError as error:
            return "fail", {"error": str(error)}  # nothing was sent
        body = dumps(
            {
                "clientId": self.name,
                "consumerGroup": self._group,
                "mqSet": [queue.as_fields()],
                "onlyThisBroker": False,
            }
        )
        code = RequestCode.UNLOCK_BATCH_MQ if unlock else RequestCode.LOCK_BATCH_MQ
        if not unlock:
            self.held.add(queue)  # perhaps, whatever becomes of the request
        try:
            answer = await self._admin.ask(address, code, {}, body, TIMEOUT_MS)
            granted = not unlock and bool(loads_object(answer.body)["lockOKMQSet"])
        except (ClientError, RemotingError, KeyError) as error:
            return "unknown", {"error": str(error)}
        if not granted:
            self.held.discard(queue)
        return "ok", {"granted": granted}
