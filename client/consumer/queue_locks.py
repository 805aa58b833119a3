"""Queue locks for orderly consumption.

A broker group's leader locks a queue for a client of a consumer group (41) for 60 s, and extends
the lock at each request of that client. The client requests it every 20 s and uses a lock for 30 s
from the request, so that no two clients use it at the same time. Brokers may keep locks in memory
only. When a group's leader changes, its locks are invalid until the new leader has granted them
again, which the client requests at once. If the new leader refuses, a different client held the
lock and continued from the committed offset; the cached messages are useless then, and
`lost(queue)` is called.

A lock belongs to the client, and the broker grants it to the same client at once. A released queue
that a thread still uses is therefore not requested before that thread has finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps, loads_object

from ..errors import ClientError
from ..instance import ClientInstance
from ..message import MessageQueue
from ..retry import RetryPolicy

logger = logging.getLogger(__name__)

UNLOCK = RetryPolicy(20, 100, 2, 20, time_ms_max=1000)


@dataclass(frozen=True, slots=True)
class LockConfig:
    """Times of locks, in milliseconds. Brokers expire a lock 60 s after its last request."""

    renew_interval_ms: int = 20_000
    age_max_ms: int = 30_000
    retry_ms: int = 200  # pause before the next request of a lock of a different client


class QueueLocks:
    """The locks of a consumer."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        config: LockConfig,
        lost: Callable[[MessageQueue], None],
    ) -> None:
        self._group = group
        self._lost = lost
        self._instance = instance
        self._config = config
        self._requested_at: dict[
            MessageQueue, float
        ] = {}  # loop time of the granted request, in seconds
        self._held: set[MessageQueue] = set()  # to be renewed
        # Locks that a broker may have granted, valid or not. A new leader has them in its log, and
        # no other client gets them for a minute unless they are released.
        self._perhaps: set[MessageQueue] = set()
        # released without an unlock, and never unlocked later
        self._at_work: set[MessageQueue] = set()
        self._working: dict[Future[Any], MessageQueue] = {}  # running threads by queue
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._instance.spawn(self._renew_forever(), "renew locks")

    def valid(self, queue: MessageQueue) -> bool:
        """Return whether the lock is granted and recent enough for use."""
        requested_at = self._requested_at.get(queue)
        return requested_at is not None and _now() - requested_at < self._config.age_max_ms / 1000

    def held(self, queue: MessageQueue) -> bool:
        """Return whether the lock was acquired, and not lost or released since."""
        return queue in self._held

    def age_ms(self, queue: MessageQueue) -> float | None:
        """Return the time since the last granted request, or None."""
        requested_at = self._requested_at.get(queue)
        return None if requested_at is None else (_now() - requested_at) * 1000

    async def acquire(self, queue: MessageQueue) -> bool:
        """Request a lock; if granted, it is renewed from now on. Raises ClientError."""
        working = list(self._working.items())  # finished threads remove theirs
        if any(other == queue and not work.done() for work, other in working):
            logger.info("queue_still_worked_on queue=%s", queue)
            return False
        self._at_work.discard(queue)
        await self._ask(queue.broker_name, [queue])
        if self.valid(queue):
            self._held.add(queue)
            return True
        logger.info("queue_locked_by_another queue=%s", queue)
        return False

    def worked_on(self, queue: MessageQueue, work: Future[Any]) -> None:
        """Record that a thread does `work` on a held queue, which cannot be stopped."""
        self._working[work] = queue
        work.add_done_callback(self._working.pop)

    async def hold(self, queue: MessageQueue) -> None:
        """Return once the lock is valid, with repeated requests until then. The callee of `lost`
        has to cancel this."""
        while not self.valid(queue):
            try:
                await self._ask(queue.broker_name, [queue])
            except ClientError as error:
                logger.info("lock_not_asked queue=%s error=%s", queue, error)
            if not self.valid(queue):
                await asyncio.sleep(self._config.retry_ms / 1000)

    async def release(self, queues: Iterable[MessageQueue], notify: bool = True) -> None:
        """Release locks. With `notify` False they are not unlocked at the broker, because work
        under them may continue; they expire there."""
        by_group: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            self._held.discard(queue)
            self._requested_at.pop(queue, None)
            if queue in self._perhaps and notify:
                by_group.setdefault(queue.broker_name, []).append(queue)
            self._perhaps.discard(queue)
            if not notify:
                self._at_work.add(queue)
        for name, items in by_group.items():
            body = self._body(items)
            try:
                await self._instance.invoke_leader(name, partial(_unlock, body), policy=UNLOCK)
            except ClientError as error:
                logger.info("unlock_failed group=%s error=%s", name, error)

    async def release_all(self) -> None:
        """Unlock everything that a broker may have granted, also with a lost answer."""
        await self.release(sorted(self._perhaps - self._at_work))

    def leader_changed(self, broker_name: str) -> None:
        """Invalidate the group's locks until granted again: a new leader may not have them."""
        for queue in [queue for queue in self._requested_at if queue.broker_name == broker_name]:
            del self._requested_at[queue]
        self._changed.set()

    async def _renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._config.renew_interval_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the regular round
            self._changed.clear()
            names = sorted({queue.broker_name for queue in self._held})
            await asyncio.gather(*(self._renew(name) for name in names))

    async def _renew(self, name: str) -> None:
        try:
            await self._ask(name, sorted(q for q in self._held if q.broker_name == name))
        except ClientError as error:
            logger.info("locks_not_renewed group=%s error=%s", name, error)

    async def _ask(self, name: str, queues: Sequence[MessageQueue]) -> None:
        """Request `queues` from the leader of a group, and record the grants. A released queue is
        in no further attempt, which might arrive after its unlock and lock it again for no holder.
        """
        requested_at = 0.0
        requested: list[MessageQueue] = []

        def command() -> RemotingCommand:
            nonlocal requested_at, requested
            requested_at = _now()  # the last attempt is the answered attempt
            requested = [queue for queue in queues if queue in self._perhaps]
            return RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, {}, self._body(requested))

        self._perhaps.update(queues)
        response = await self._instance.invoke_leader(name, command, leader_only=True)
        if response.code != ResponseCode.SUCCESS:
            logger.warning("lock_refused code=%d remark=%s", response.code, response.remark)
            return
        try:
            wires = loads_object(response.body)["lockOKMQSet"]
            granted = {MessageQueue.from_fields(wire) for wire in wires}
        except (KeyError, TypeError, RemotingError) as error:
            logger.error("lock_answer_broken error=%r", error)
            return
        for queue in requested:
            if queue not in self._perhaps:
                continue  # released, and the unlock arrived after this attempt
            if queue in granted:
                self._requested_at[queue] = requested_at
                continue
            self._requested_at.pop(queue, None)
            self._perhaps.discard(queue)
            if queue in self._held:
                logger.warning("lock_lost queue=%s", queue)
                self._held.discard(queue)
                self._lost(queue)

    def _body(self, queues: Sequence[MessageQueue]) -> bytes:
        return dumps(
            {
                "clientId": self._instance.client_id,
                "consumerGroup": self._group,
                "mqSet": [queue.as_fields() for queue in queues],
                "onlyThisBroker": False,
            }
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unlock(body: bytes) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, {}, body)
