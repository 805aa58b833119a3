"""The workload `asked`: requests that no other workload makes, and what must come of them.

batches  all messages of one are stored, one behind the other, or none
queries  by key: whoever asks for a message that was acknowledged gets it, soon
resets   a group that is moved back gets everything from there on again, soon
filters  by tags and by SQL: exactly what matches, of what is stored
deleted  a topic that is deleted and made again has no messages of before, and no group's offsets

What it finds is told by CheckFailed; nothing of it is in the history.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from raftmq.chaos.workloads.base import Environment, Tally, Tasks
from raftmq.chaos.workloads.consumers import POLL_S, consumer_config
from raftmq.chaos.workloads.messages import all_queues
from raftmq.client import (
    Admin,
    ClientError,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from tests.simulator.cluster.invariants import CheckFailed

TOPIC, GROUP = "Asked", "asked-readers"
DELETED, DELETED_GROUP = "AskedDeleted", "asked-deleted"
QUEUES = 2
TAGS = ("red", "green", "blue")
SIZES = 10
FILTERS: tuple[tuple[str, str, Callable[[Asked], bool]], ...] = (
    ("red || blue", "TAG", lambda one: one.tag != "green"),
    ("size > 6 AND TAGS <> 'red'", "SQL92", lambda one: one.size > 6 and one.tag != "red"),
)
SETTINGS = {"enablePropertyFilter": "true"}
BATCH_MAX = 4
QUERIES_AT_END = 12
AGAIN_WITHIN_S = 60.0  # of the world's faults: a lock or a member that is gone ends by itself


@dataclass(frozen=True, slots=True)
class Asked:
    """A message of a batch, as it was given."""

    key: str
    tag: str
    size: int


GroupMembership = tuple[int, int]  # queue and offset


class AskedWorkload:
    """See the module's docstring, and chaos.workloads.base for the order of calls."""

    name = "asked"
    topics = (TOPIC,)
    groups = ((TOPIC, GROUP),)

    def __init__(self, rate_per_s: float) -> None:
        self.tally = Tally()
        self._pause_s = 1 / rate_per_s
        self._queues: tuple[MessageQueue, ...] = ()
        self._env: Environment | None = None
        self._stopping = asyncio.Event()
        self._tasks = Tasks()
        self._stored: dict[GroupMembership, Asked] = {}  # acknowledged
        self._batches: dict[str, list[str]] = {}  # keys, by the first of them
        self._maybe: dict[str, Asked] = {}  # of unknown outcome, or perhaps stored twice
        self._kept: dict[int, str] = {}  # of the topic that is deleted, since then: offset → key
        self._gone: set[str] = set()  # keys of before
        self._deleted_late = False  # a deletion was not answered: it may come behind a message
        self._delivered: dict[GroupMembership, int] = defaultdict(int)  # how often
        self._admin: Admin | None = None
        self._consumer: PullConsumer | None = None

    @property
    def env(self) -> Environment:
        assert self._env is not None
        return self._env

    @property
    def admin(self) -> Admin:
        assert self._admin is not None
        return self._admin

    async def prepare(self, env: Environment) -> None:
        """Create the topic."""
        self._env = env
        async with Admin(env.namesrv) as admin:
            await admin.topic.create(TOPIC, QUEUES)
            self._queues = await all_queues(admin, TOPIC, QUEUES, env.join_timeout_s)

    async def start(self, stack: AsyncExitStack) -> None:
        """Begin to send, to ask and to reset."""
        env, enter = self.env, stack.enter_async_context
        self._admin = await enter(Admin(env.namesrv))
        self._consumer = await enter(PullConsumer("asked-filters", env.namesrv))
        producer = await enter(Producer("asked-producers", env.namesrv))
        reader = PushConsumer(GROUP, env.namesrv, self._listen, config=consumer_config())
        reader.subscribe(TOPIC)
        await enter(reader)
        stack.push_async_callback(self._tasks.cancel)
        for work in (self._send(producer), self._ask(), self._reset(), self._delete(producer)):
            self._tasks.spawn(work, "asked")

    def stop(self) -> None:
        self._stopping.set()

    async def drain(self) -> bool:
        """Wait for all, and look once more at what is stored. Raises CheckFailed."""
        await self._tasks.finish()
        await insist(self._all_delivered, "is not delivered")
        for queue in self._queues:
            self._whole(queue, await self._read(queue, "*", "TAG"))
            for expression, kind, matches in FILTERS:
                await self._filter(queue, expression, kind, matches)
        if self._kept or self._gone:
            result = await self._read(self._deleted, "*", "TAG")
            lost = {at: key for at, key in self._kept.items() if result.get(at) != key}
            if lost and not self._deleted_late:
                raise CheckFailed(f"{DELETED} has lost {lost}")
            if old := self._gone & set(result.values()):
                raise CheckFailed(f"{DELETED} was made again with {old}")
        positions = sorted(self._stored)
        for position in random.Random(1).sample(positions, min(len(positions), QUERIES_AT_END)):
            await self._query(self._stored[position])
        return True

    def failure(self) -> BaseException | None:
        return self._tasks.failure()

    # ---- sending

    async def _send(self, producer: Producer) -> None:
        rng = random.Random(self.env.rng.random())
        number = 0
        while not self._stopping.is_set():
            batch = []
            for _ in range(rng.randint(1, BATCH_MAX)):
                number += 1
                batch.append(Asked(f"asked-{number}", rng.choice(TAGS), rng.randrange(SIZES)))
            await self._send_batch(producer, batch, rng.choice(self._queues))
            await asyncio.sleep(self._pause_s)

    async def _send_batch(
        self, producer: Producer, batch: list[Asked], queue: MessageQueue
    ) -> None:
        messages = [
            Message(TOPIC, f"body of {one.key}".encode(), one.tag, one.key, {"size": str(one.size)})
            for one in batch
        ]
        self._batches[batch[0].key] = [one.key for one in batch]
        self.tally.invoked += 1
        try:
            result = await producer.send_batch(messages, 5_000, queue)
        except ClientError as error:
            if error.outcome_unknown:
                self.tally.unknown += 1
                self._maybe.update({one.key: one for one in batch})
            else:
                self.tally.fail += 1
            return
        self.tally.ok += 1
        if result.attempts > 1:
            self._maybe.update({one.key: one for one in batch})
        for offset, one in enumerate(batch, result.queue_offset):
            position = result.queue.queue_id, offset
            if position in self._stored:
                raise CheckFailed(
                    f"{one.key} and {self._stored[position].key} are both at {position}"
                )
            self._stored[position] = one

    # ---- asking

    async def _ask(self) -> None:
        rng = random.Random(self.env.rng.random())
        while not self._stopping.is_set():
            await asyncio.sleep(0.3)
            if self._stored:
                await self._query(self._stored[rng.choice(sorted(self._stored))])

    async def _query(self, one: Asked) -> None:
        """Ask for a message that was acknowledged, until it is found."""

        async def ask() -> bool:
            result = await self.admin.message.query(TOPIC, one.key)
            if any(message.keys != one.key for message in result):
                raise CheckFailed(f"a query for {one.key} finds {[m.keys for m in result]}")
            if len(result) > 1 and one.key not in self._maybe:
                raise CheckFailed(f"{one.key} is stored {len(result)} times")
            return bool(result)  # a replica that is behind may know nothing of it yet

        await insist(ask, f"a query for {one.key} finds nothing")

    async def _filter(
        self, queue: MessageQueue, expression: str, kind: str, matches: Callable[[Asked], bool]
    ) -> None:
        """Read a queue through a filter: what matches comes, and nothing else."""
        result = await self._read(queue, expression, kind)
        number = queue.queue_id
        stored = {offset: one for (q, offset), one in self._stored.items() if q == number}
        chosen = {offset: one.key for offset, one in stored.items() if matches(one)}
        allowed = {one.key for one in self._maybe.values() if matches(one)}
        wrong = [
            key
            for offset, key in result.items()
            if chosen.get(offset) != key and (offset in stored or key not in allowed)
        ]
        missing = [key for offset, key in chosen.items() if result.get(offset) != key]
        if wrong or missing:
            raise CheckFailed(f"{expression} lets {wrong} through, and keeps {missing} back")

    def _whole(self, queue: MessageQueue, found: dict[int, str]) -> None:
        """Check that every batch is there as a whole, once or again, and what was acknowledged is
        where that was said."""
        keys = [found[offset] for offset in sorted(found)]
        at = 0
        while at < len(keys):
            batch = self._batches.get(keys[at], [])
            if not batch or keys[at : at + len(batch)] != batch:
                raise CheckFailed(f"{queue} has a part of a batch: {keys[at : at + BATCH_MAX]}")
            at += len(batch)
        for (queue_id, offset), one in self._stored.items():
            if queue_id == queue.queue_id and found.get(offset) != one.key:
                raise CheckFailed(f"{one.key} is not at {offset} of {queue}: {found.get(offset)}")

    async def _read(self, queue: MessageQueue, expression: str, kind: str) -> dict[int, str]:
        """Return the keys of what a queue has for this filter, by offsets."""
        assert self._consumer is not None
        consumer, offset = self._consumer, 0
        actual: dict[int, str] = {}

        async def read() -> bool:
            nonlocal offset
            result = await consumer.pull(queue, offset, 32, expression, kind)
            actual.update({m.queue_offset: str(m.keys) for m in result.messages})
            offset = max(offset, result.next_offset)
            return offset >= result.max_offset

        await insist(read, f"{queue} is not read by {expression}")
        return actual

    # ---- resets

    def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            self._delivered[message.queue_id, message.queue_offset] += 1
        return ConsumeResult.SUCCESS

    async def _reset(self) -> None:
        """Move the group back, now and then; each time everything from there on comes again."""
        rng = random.Random(self.env.rng.random())
        while not self._stopping.is_set():
            await asyncio.sleep(1.0)
            if self._delivered:
                queue_id, offset = rng.choice(sorted(self._delivered))
                await self._reset_to(queue_id, offset)

    async def _reset_to(self, queue_id: int, offset: int) -> None:
        before: dict[GroupMembership, int] = {}

        async def ask() -> bool:
            before.update(self._delivered)
            leaders = (await self.admin.cluster.leaders_of(TOPIC)).values()
            for address in leaders:
                await self.admin.offset.reset(
                    address, GROUP, TOPIC, 0, queue_id=queue_id, offset=offset
                )
            return bool(leaders)

        async def again() -> bool:
            behind = [
                position for position in before if position[0] == queue_id and position[1] >= offset
            ]
            return all(self._delivered[position] > before[position] for position in behind)

        await insist(ask, f"a reset of queue {queue_id} to {offset} is not answered")
        await insist(again, f"what is behind {offset} in queue {queue_id} comes not again")

    # ---- deletion

    @property
    def _deleted(self) -> MessageQueue:
        return MessageQueue(DELETED, self._queues[0].broker_name, 0)

    async def _delete(self, producer: Producer) -> None:
        """Delete a topic and make it again, now and then."""
        admin, queue, numbers = self.admin, self._deleted, itertools.count()
        once: set[str] = set()  # keys
        offset = 0

        async def create() -> bool:
            await admin.topic.create(DELETED, 1)
            return True

        async def send() -> bool:
            key = f"deleted-{next(numbers)}"
            result = await producer.send(Message(DELETED, key.encode(), "", key), 5_000)
            self._kept[result.queue_offset] = key
            if result.attempts == 1:  # no other copy may come late
                once.add(key)
            return True

        async def commit() -> bool:
            await admin.offset.commit(DELETED_GROUP, queue, max(self._kept))
            return True

        async def delete() -> bool:
            leaders = (await admin.cluster.leaders_of(TOPIC)).values()
            for address in leaders:
                await admin.topic.delete(address, DELETED)
            return bool(leaders)

        async def poll() -> bool:
            result = await admin.offset.committed(DELETED_GROUP, queue)
            if result == offset and not again:  # it is below the end of the empty queue
                raise CheckFailed(f"{DELETED} was deleted, and its group still has {result}")
            return True

        await insist(create, f"{DELETED} is not created")
        while not self._stopping.is_set():
            await insist(send, f"{DELETED} takes no message")
            # A commit that was not answered may come late, and is one of the new topic then.
            again = await insist(commit, f"{DELETED} takes no offset")
            offset = max(self._kept)
            if await insist(delete, f"{DELETED} is not deleted"):
                self._deleted_late = True
            self._gone |= once & set(self._kept.values())
            self._kept.clear()
            await insist(create, f"{DELETED} is not created again")
            await insist(poll, f"{DELETED} does not tell its group's offset")
            await asyncio.sleep(1.0)

    # ---- all

    async def _all_delivered(self) -> bool:
        return all(position in self._delivered for position in self._stored)


async def insist(act: Callable[[], Awaitable[bool]], complaint: str) -> int:
    """Try until it succeeds; return how often it did not. Raises CheckFailed if that takes too
    long."""
    deadline_s, failures, error = time.monotonic() + AGAIN_WITHIN_S, 0, ""
    while True:
        try:
            if await act():
                return failures
        except ClientError as refused:
            error = f": {refused}"
        failures += 1
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"{complaint}, after {AGAIN_WITHIN_S:g} s{error}")
        await asyncio.sleep(POLL_S)
