"""The workload `filtered`: groups that consume through filters while brokers' settings change.

filters   a group by tags and one by SQL get everything that theirs selects, and nothing else
settings  an operator sets live ones of any replica: the one that is set changes, and no other, and
          what is wrong or not live is refused; a change that was answered lasts until a restart

A change may turn filters by SQL off for a while. What it finds is told by CheckFailed; nothing of
it is in the history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from raftmq.chaos.workloads.base import Environment, Tally, Tasks
from raftmq.chaos.workloads.consumers import consumer_config
from raftmq.chaos.workloads.messages import all_queues
from raftmq.client import (
    Admin,
    BrokerRefused,
    ClientError,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from raftmq.remoting.codes import ResponseCode
from tests.simulator.cluster.asked import FILTERS, SIZES, TAGS, Asked, GroupMembership, insist
from tests.simulator.cluster.invariants import CheckFailed

TOPIC = "Filtered"
QUEUES = 2
CHANGE_EVERY_S = 0.3
BY_SQL = "enablePropertyFilter"
CHANGES = {  # each from one to the other and back
    BY_SQL: ("false", "true"),
    "longPollingEnable": ("false", "true"),
    "shortPollingTimeMills": ("200", "1000"),
    "maxTransferCountOnMessageInMemory": ("8", "1024"),
    "maxTransferBytesOnMessageInMemory": ("4096", "262144"),
    "notifyConsumerIdsChangedEnable": ("false", "true"),
    "topicsMax": ("1", "200000"),  # what there is already stays, and is used
    "groupsMax": ("100", "100000"),  # the workloads create some at their end
}
WEIGHTS = (4, 1, 1, 1, 1, 1, 1, 1)  # the first is of what is consumed here
REFUSED = (("listenPort", "1"), ("maxTransferCountOnMessageInMemory", "0"))


class FilteredWorkload:
    """See the module's docstring, and chaos.workloads.base for the order of calls."""

    name = "filtered"
    topics = (TOPIC,)
    groups = tuple((TOPIC, f"filtered-{kind}") for _, kind, _ in FILTERS)

    def __init__(self, rate_per_s: float) -> None:
        self.tally = Tally()
        self.changes = 0  # of settings, that were looked at
        self._pause_s = 1 / rate_per_s
        self._queues: tuple[MessageQueue, ...] = ()
        self._env: Environment | None = None
        self._admin: Admin | None = None
        self._stopping = asyncio.Event()
        self._tasks = Tasks()
        self._sent: dict[str, Asked] = {}
        self._stored: dict[GroupMembership, Asked] = {}  # acknowledged
        self._delivered: dict[str, dict[GroupMembership, str]] = {}  # group → place → key
        self._open: set[tuple[str, str]] = set()  # address and setting: it may change any time
        self._booted: dict[str, str] = {}  # address → when what is there started
        self._as_started: dict[str, str] = {}  # broker.conf is the same everywhere, in these keys

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
        """Let both groups join, begin to send and to change settings."""
        env, enter = self.env, stack.enter_async_context
        self._admin = await enter(Admin(env.namesrv))
        for (expression, kind, _), (_, group) in zip(FILTERS, self.groups, strict=True):
            listen = self._listener(group)
            consumer = PushConsumer(group, env.namesrv, listen, config=consumer_config())
            consumer.subscribe(TOPIC, expression, kind)
            await enter(consumer)
        producer = await enter(Producer("filtered-producers", env.namesrv))
        stack.push_async_callback(self._tasks.cancel)
        for work in (self._send(producer), self._change()):
            self._tasks.spawn(work, "filtered")

    def stop(self) -> None:
        self._stopping.set()

    async def drain(self) -> bool:
        """Wait for all, and look at what each group got. Raises CheckFailed."""
        await self._tasks.finish()
        for (expression, _, matches), (_, group) in zip(FILTERS, self.groups, strict=True):
            await self._exactly(group, expression, matches)
        return True

    def failure(self) -> BaseException | None:
        return self._tasks.failure()

    # ---- messages

    async def _send(self, producer: Producer) -> None:
        rng = random.Random(self.env.rng.random())
        while not self._stopping.is_set():
            key = f"filtered-{len(self._sent)}"
            one = self._sent[key] = Asked(key, rng.choice(TAGS), rng.randrange(SIZES))
            message = Message(TOPIC, key.encode(), one.tag, key, {"size": str(one.size)})
            self.tally.invoked += 1
            try:
                result = await producer.send(message, 5_000, rng.choice(self._queues))
            except ClientError as error:
                self.tally.unknown += error.outcome_unknown
                self.tally.fail += not error.outcome_unknown
            else:
                self.tally.ok += 1
                self._stored[result.queue.queue_id, result.queue_offset] = one
            await asyncio.sleep(self._pause_s)

    def _listener(self, group: str) -> Callable[[list[MessageExt]], ConsumeResult]:
        delivered = self._delivered[group] = {}

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            for message in messages:
                delivered[message.queue_id, message.queue_offset] = str(message.keys)
            return ConsumeResult.SUCCESS

        return listen

    async def _exactly(self, group: str, expression: str, matches: Callable[[Asked], bool]) -> None:
        """Check that a group gets what its filter selects, and has got nothing else."""
        delivered = self._delivered[group]
        expected = {position: one.key for position, one in self._stored.items() if matches(one)}

        async def come() -> bool:
            await self._filter_by_sql()
            return delivered.keys() >= expected.keys()

        await insist(come, f"{group} does not get all of {expression}")
        for position, key in delivered.items():
            stored = self._stored.get(position, self._sent[key])
            if stored.key != key or not matches(stored):
                raise CheckFailed(
                    f"{group} got {key} at {position}, where {stored} is, {expression}"
                )

    # ---- settings

    async def _change(self) -> None:
        """Change a setting of all replicas, one by one until one does not answer; then another."""
        rng = random.Random(self.env.rng.random())
        while not self._stopping.is_set():
            await asyncio.sleep(CHANGE_EVERY_S)
            in_vain = rng.random() < 0.2
            (key,) = rng.choices(tuple(CHANGES), WEIGHTS)
            try:
                for address in rng.sample(addresses := await self._addresses(), len(addresses)):
                    if in_vain:
                        await self._change_in_vain(address, *rng.choice(REFUSED))
                    else:
                        await self._change_one(address, key)
            except ClientError:
                continue  # it does not answer

    async def _change_one(self, address: str, key: str) -> None:
        before = await self._settings(address)
        one, other = CHANGES[key]
        value = one if before[key] == other else other
        known_open = (address, key) in self._open
        self._open.add((address, key))
        await self.admin.broker.update_config(address, key, value)
        if not known_open:
            self._open.discard((address, key))
        await self._look(address, before | {key: value})

    async def _change_in_vain(self, address: str, key: str, value: str) -> None:
        before = await self._settings(address)
        try:
            await self.admin.broker.update_config(address, key, value)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.SYSTEM_ERROR:
                raise
        else:
            raise CheckFailed(f"{address} takes {key}={value}")
        await self._look(address, before)

    async def _look(self, address: str, wanted: Mapping[str, str]) -> None:
        """Check that a replica is configured so, unless it has started anew. Raises ClientError."""
        booted = self._booted[address]
        settings = await self._settings(address)
        if self._booted[address] == booted:
            self.changes += 1
            self._compare(address, settings, wanted)

    async def _settings(self, address: str) -> dict[str, str]:
        """Return how a replica is configured; nothing that was set outlives its process. Raises
        ClientError."""
        booted = (await self.admin.broker.runtime_info(address))["bootTimestamp"]
        result = await self.admin.broker.config(address)
        if (await self.admin.broker.runtime_info(address))["bootTimestamp"] != booted:
            raise ClientError(-1, "it has started anew meanwhile")
        if not self._as_started:
            self._as_started = {key: result[key] for key in CHANGES}
        if self._booted.get(address) != booted:
            self._booted[address] = booted
            self._compare(address, result, self._as_started)
        return result

    def _compare(self, address: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        wrong = {
            key: (found.get(key), value)
            for key, value in wanted.items()
            if found.get(key) != value and (address, key) not in self._open
        }
        if wrong:
            raise CheckFailed(f"{address} has other settings than it should have: {wrong}")

    async def _addresses(self) -> list[str]:
        groups = (await self.admin.cluster.info()).brokers.values()
        return sorted({each for group in groups for each in group.addresses.values()})

    async def _filter_by_sql(self) -> None:
        """Turn filters by SQL on where somebody answers, once no other change may come."""
        for address in (await self.admin.cluster.leaders_of(TOPIC)).values():
            await self.admin.broker.update_config(address, BY_SQL, "true")
