"""Our own clients beside the attack, and what has to be true of what they were told.

For each group one topic, to which a producer sends and from which a consumer reads. Every message
that was acknowledged has to stand where the acknowledgement said, and the consumer has to get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from raftmq.client import (
    Admin,
    ClientError,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendResult,
)
from raftmq.remoting.errors import RemotingError
from tests.fuzz.watch import Finding, Watch
from tests.fuzz.world import GROUPS, World

PATIENCE_S = 120.0
PAUSE_S = 0.05  # between two sends to a group
READ_AT_ONCE = 32
LEFT_ALONE = ("raft0",)  # its Raft port is attacked with its own secret


class Live:
    """`async with Live(world, watch) as live:`; then `await live.verify()`."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.acknowledged: dict[MessageQueue, dict[int, bytes]] = {}
        self.refused = 0
        self._world = world
        self._watch = watch
        self._groups = [g for g in world.groups() if g not in LEFT_ALONE]
        self._consumed: set[bytes] = set()
        self._leaders: dict[str, tuple[str, str]] = {}
        self._stack = contextlib.AsyncExitStack()
        self._senders: list[asyncio.Task[None]] = []
        self._number = 0

    async def __aenter__(self) -> Live:
        self._admin = await self._stack.enter_async_context(Admin(self._world.namesrv))
        await self._ready()
        self._producer = await self._stack.enter_async_context(
            Producer("innocent", self._world.namesrv)
        )
        config = ConsumerConfig(
            consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=1_000,
            commit_interval_ms=1_000,
        )  # fmt: skip
        consumer = PushConsumer("innocents", self._world.namesrv, self._listen, config=config)
        for group in self._groups:
            await self._until_done(self._admin.topic.create, _topic(group), 2, broker_name=group)
            consumer.subscribe(_topic(group))
            self._leaders[group] = await self._leader(group)
        await self._until_done(self._admin.topic.create, "Fuzzed", 4)
        await self._stack.enter_async_context(consumer)
        for group in self._groups:
            await self.fresh(group)
            self._senders.append(asyncio.create_task(self._send_on(group)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        await self._stack.aclose()

    async def fresh(self, group: str) -> None:
        """A send that is acknowledged, however many tries it takes."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._send(group):  # noqa: ASYNC110 (servers set no event)
                await asyncio.sleep(0.1)

    async def verify(self) -> int:
        """After the attack: sends work, nothing acknowledged is missing, nobody else leads. Returns
        how many messages were looked at. Raises Finding."""
        await self._stop()
        for group in self._groups:
            try:
                await self.fresh(group)
            except TimeoutError:
                raise Finding("refused", group, "no send was acknowledged any more") from None
        await self._routes()
        count = 0
        for queue, sent in self.acknowledged.items():
            await self._read_back(queue, sent)
            count += len(sent)
        await self._all_consumed()
        for group, before in self._leaders.items():
            now = await self._leader(group)
            if now != before and self._watch.late_s < 1.0:  # else the machine stood still
                raise Finding("leader", group, f"{before} led at the beginning, {now} at the end")
        return count

    async def _stop(self) -> None:
        for lane in self._senders:
            lane.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        self._senders.clear()

    async def _send_on(self, group: str) -> None:
        while True:
            await self._send(group)
            await asyncio.sleep(PAUSE_S)

    async def _send(self, group: str) -> bool:
        self._number += 1
        body = b"%s %d" % (group.encode(), self._number)
        try:
            result: SendResult = await self._producer.send(Message(_topic(group), body))
        except (ClientError, RemotingError):
            self.refused += 1  # that is allowed: it was not acknowledged
            return False
        assert result.queue is not None
        self.acknowledged.setdefault(result.queue, {})[result.queue_offset] = body
        return True

    async def _listen(self, messages: list[Any]) -> ConsumeResult:
        self._consumed.update(message.body for message in messages)
        return ConsumeResult.SUCCESS

    async def _read_back(self, queue: MessageQueue, sent: dict[int, bytes]) -> None:
        offset, end = min(sent), max(sent)
        while offset <= end:
            pull = self._admin.message.pull
            messages, after = await self._until_done(pull, queue, offset, READ_AT_ONCE)
            result = {message.queue_offset: message.body for message in messages}
            after = max(after, offset + 1)
            for at in range(offset, min(after, end + 1)):
                if at in sent and result.get(at) != sent[at]:
                    raise Finding("lost", queue.broker_name,
                                  f"{sent[at]!r} was acknowledged at {queue} offset {at}, where "
                                  f"{result.get(at)!r} stands")  # fmt: skip
            offset = after

    async def _all_consumed(self) -> None:
        expected = {body for sent in self.acknowledged.values() for body in sent.values()}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not expected <= self._consumed:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            missing = sorted(expected - self._consumed)
            raise Finding("lost", "consumer", f"{len(missing)} messages that were acknowledged did "
                          f"not come, {missing[0]!r} first") from None  # fmt: skip

    async def _routes(self) -> None:
        """The name server knows every group's leader by its true address, once attackers are gone
        and registrations have come round again."""
        for group in self._groups:
            addresses = {self._world.address(name) for name in GROUPS[group]}
            result = ""
            try:
                async with asyncio.timeout(PATIENCE_S / 2):
                    while result not in addresses:
                        brokers = (await self._until_done(self._admin.cluster.info)).brokers
                        result = brokers[group].leader if group in brokers else ""
                        await asyncio.sleep(0.1)
            except TimeoutError:
                raise Finding("route", "names", f"it says that {result!r} leads {group}, "
                              f"one of {sorted(addresses)} does") from None  # fmt: skip

    async def _leader(self, group: str) -> tuple[str, str]:
        """(who leads, in which term)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for name in GROUPS[group]:
                    with contextlib.suppress(ClientError, RemotingError):
                        info = await self._admin.broker.runtime_info(self._world.address(name))
                        if info.get("raftLeaderReady") == "true" or name == "master":
                            return name, info.get("raftTerm", "")
                await asyncio.sleep(0.1)

    async def _ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ClientError, RemotingError):
                    brokers = (await self._admin.cluster.info()).brokers
                    if all(g in brokers and brokers[g].leader for g in self._groups):
                        return
                for node in self._world.nodes.values():
                    assert node.process is not None
                    if node.process.poll() is not None:
                        raise self._watch.died(node)
                await asyncio.sleep(0.1)

    async def _until_done(self, call: Any, *arguments: Any, **named: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await call(*arguments, **named)
            except (ClientError, RemotingError) as error:
                self._watch.check()
                if time.monotonic() > deadline:
                    raise Finding("refused", "clients", f"{call.__name__}: {error}") from None
                await asyncio.sleep(0.1)


def _topic(group: str) -> str:
    return f"Innocent-{group}"
