"""The workload `metadata`: topics and subscription groups created, changed and read back.

An object's version is the number of a topic's queues, or a group's retryMaxTimes. Every write uses
a version that the object never had. Some objects have a single writer, so their versions rise; the
rest have all writers. An operation is a single request to the registered leader, never repeated, so
its outcome is exactly the broker's answer (ok, rejected, or none). A read first requests a consumer
offset, which only a proven leader answers (a classic master always), so the topics read afterwards
are at least as new. Nothing is deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import orjson

from raftmq.client import Admin, BrokerRefused, ClientError
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.headers import ConsumerOffsetHeader

from ..cluster.credentials import signing
from ..history.events import Outcome
from ..history.files import HistoryWriter
from .base import Environment, Tally, Tasks, is_set_within, leader_of, outcome_of

PREFIX = "ChaosMeta"
RATE_PER_S = 20.0
VERSION_MAX = 1_000  # per object; a topic's version is a number of queues
TIMEOUT_MS = 2_000
PERM_READ_WRITE = 6
NO_TOPIC = "ChaosMetaNone"  # topic of the offset asked for; it need not exist
OUTCOME_UNKNOWN = "[OUTCOME_UNKNOWN]"


@dataclass(slots=True)
class MetaObject:
    """A topic or group of a broker group; `version` is the last tried version."""

    broker: str
    what: str  # "topic" or "group"
    name: str
    version: int = 0
    writer: int | None = None  # its only writer; None for all


class MetadataWorkload:
    """The workload of metadata: `rate_per_s` operations a second, half of them reads."""

    name = "metadata"

    def __init__(self, objects: int = 4, rate_per_s: float = RATE_PER_S, writers: int = 2) -> None:
        """`objects` topics and as many groups, for each broker group. Of `writers` + 1 objects each
        writer owns one, and the last is shared."""
        self._objects_each = objects
        self._writers = writers
        self._pause_s = writers / rate_per_s
        self._objects: list[MetaObject] = []
        self._env: Environment | None = None
        self._admin: Admin | None = None
        self.tally = Tally()
        self._tasks = Tasks()
        self._stopping = asyncio.Event()

    @property
    def topics(self) -> tuple[str, ...]:
        return ()  # it sends nothing

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def prepare(self, env: Environment) -> None:
        """Find out which broker groups there are; the load itself creates the objects."""
        self._env = env
        async with Admin(env.namesrv, instance_config=signing()) as admin:
            brokers = (await admin.cluster.info()).brokers
        writers = [*range(self._writers), None]
        self._objects = [
            MetaObject(
                broker, what, f"{PREFIX}-{what}-{number}", writer=writers[number % len(writers)]
            )
            for broker in sorted(brokers)
            for what in ("topic", "group")
            for number in range(self._objects_each)
        ]

    async def start(self, stack: AsyncExitStack) -> None:
        env = self._environment
        self._admin = await stack.enter_async_context(Admin(env.namesrv, instance_config=signing()))
        stack.push_async_callback(self._tasks.cancel)
        for writer in range(self._writers):
            rng = random.Random(env.rng.random())
            self._tasks.spawn(self._operate(writer, rng), f"{self.name}-{writer}")

    def stop(self) -> None:
        self._stopping.set()

    async def drain(self) -> bool:
        """End the load, then read every object once more, retrying until the drain time-out; return
        whether all could be read."""
        await self._tasks.finish()
        deadline = asyncio.get_running_loop().time() + self._environment.drain_timeout_s
        for result in self._objects:
            while result.version and not await self._read(self.name, result):
                if asyncio.get_running_loop().time() > deadline:
                    return False
                await asyncio.sleep(self._pause_s)
        return True

    def failure(self) -> BaseException | None:
        return self._tasks.failure()

    @property
    def _environment(self) -> Environment:
        assert self._env is not None, "prepare comes first"
        return self._env

    @property
    def _history(self) -> HistoryWriter:
        return self._environment.history

    async def _operate(self, writer: int, rng: random.Random) -> None:
        process = f"{self.name}-{writer}"
        while not self._stopping.is_set():
            result = rng.choice(self._objects)
            writes = result.writer in (writer, None) and result.version < VERSION_MAX
            if rng.random() < 0.5 and writes:
                await self._write(process, result)
            else:
                await self._read(process, result)
            await is_set_within(self._stopping, self._pause_s)

    async def _write(self, process: str, entry: MetaObject) -> None:
        entry.version += 1
        version = entry.version  # a concurrent writer may raise it
        fields = {"what": entry.what, "name": entry.name, "broker": entry.broker}
        fields_now = {**fields, "version": version}
        op = self._history.next_op()
        self.tally.invoked += 1
        self._history.event("invoke", "meta_write", process, op, **fields_now)
        outcome, error = await self._send(entry, version)
        reason = {"error": error} if error else {}
        self._history.event(outcome.value, "meta_write", process, op, **fields_now, **reason)
        self.tally.count(outcome)

    async def _send(self, entry: MetaObject, version: int) -> tuple[Outcome, str]:
        """Send the write once; return its outcome, and the error if it was not done."""
        try:
            address = await self._leader(entry.broker)
        except ClientError as error:
            return Outcome.FAIL, str(error)  # nothing was sent
        code, ext, body = write_request(entry, version)
        try:
            await self._ask(address, code, ext, body)
        except BrokerRefused as error:
            vague = error.remark.startswith(OUTCOME_UNKNOWN)
            return (Outcome.UNKNOWN if vague else Outcome.FAIL), str(error)
        except ClientError as error:
            return outcome_of(error), str(error)
        return Outcome.OK, ""

    async def _read(self, process: str, entry: MetaObject) -> bool:
        """Read an object back; return whether there was an answer."""
        fields = {"what": entry.what, "name": entry.name, "broker": entry.broker}
        op = self._history.next_op()
        self.tally.invoked += 1
        self._history.event("invoke", "meta_read", process, op, **fields)
        try:
            version = await self._version(entry)
        except (ClientError, RemotingError) as error:
            self.tally.fail += 1
            self._history.event("fail", "meta_read", process, op, **fields, error=str(error))
            return False
        self.tally.ok += 1
        self._history.event("ok", "meta_read", process, op, **fields, version=version)
        return True

    async def _version(self, entry: MetaObject) -> int | None:
        address = await self._leader(entry.broker)
        await self._prove_leader(address)
        if entry.what == "topic":
            try:
                body = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": entry.name})
            except BrokerRefused as refused:
                if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                raise
            return int(loads_object(body)["writeQueueNums"])
        body = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
        group = loads_object(body)["subscriptionGroupTable"].get(entry.name)
        return None if group is None else int(group["retryMaxTimes"])

    async def _prove_leader(self, address: str) -> None:
        """Raises BrokerRefused (14) if this broker does not lead (any more)."""
        header = ConsumerOffsetHeader(PREFIX, NO_TOPIC, 0, zero_if_not_found=False)
        assert self._admin is not None
        answer = await self._admin.invoke(
            address, RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(), timeout_ms=TIMEOUT_MS
        )
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise BrokerRefused(answer.code, answer.remark or "", address)

    async def _leader(self, broker: str) -> str:
        assert self._admin is not None
        return await leader_of(self._admin, broker)

    async def _ask(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes = b""
    ) -> bytes:
        assert self._admin is not None
        answer = await self._admin.ask(address, code, ext, body, timeout_ms=TIMEOUT_MS)
        return answer.body


def write_request(entry: MetaObject, version: int) -> tuple[int, dict[str, str], bytes]:
    """Return code, ext and body of the request that gives an object this version."""
    if entry.what == "topic":
        header = TopicHeader(entry.name, version, version, PERM_READ_WRITE)
        return RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(), b""
    group: dict[str, Any] = {
        "groupName": entry.name,
        "consumeEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": version,
    }
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, orjson.dumps(group)
