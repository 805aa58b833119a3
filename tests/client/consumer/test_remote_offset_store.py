"""Commits of consumer offsets: in order, and told again now and then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from raftmq.client.consumer.offsets import ConsumeFrom
from raftmq.client.consumer.remote_offset_store import (
    CONFIRMED_AT_ONCE_MAX,
    REPEAT_S,
    OffsetStore,
    starting_offset,
)
from raftmq.client.errors import BrokerUnreachable
from raftmq.client.instance import ClientInstance
from raftmq.client.message import MessageQueue
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from tests.client.fakes import queue
from tests.simulator.cluster.loop import SimLoop


class Leader:
    """Stands for a ClientInstance: answers each request when it is let."""

    client_id = "c1"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.clients: list[str | None] = []  # whose commits
        self._let: list[asyncio.Event] = []

    async def invoke_leader(self, _: str, command: Any, **__: Any) -> RemotingCommand:
        ext = command().ext
        self.asked.append(int(ext["commitOffset"]))
        self.clients.append(ext.get("clientId"))
        self._let.append(asyncio.Event())
        await self._let[-1].wait()
        return RemotingCommand(code=0)

    def answer(self) -> None:
        self._let.pop(0).set()


def store_of(leader: Leader) -> OffsetStore:
    return OffsetStore("g", cast(ClientInstance, leader))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_commit_waits_for_an_older_one_of_its_queue() -> None:
    """Else the older one, repeated until a leader answers, could set the offset back."""
    leader = Leader()
    store = store_of(leader)
    one, other = queue(0), queue(1)
    for each in (one, other):
        store.table.start(each, 0)
        store.table.advance(each, 81)
    first = asyncio.ensure_future(store.commit_confirmed([one]))
    await turns()
    store.table.advance(one, 105)
    second = asyncio.ensure_future(store.commit_confirmed([one]))
    third = asyncio.ensure_future(store.commit_confirmed([other]))
    await turns()
    assert leader.asked == [81, 81]  # of both queues, and nothing else
    leader.answer()
    leader.answer()
    await turns()
    assert leader.asked == [81, 81, 105]
    leader.answer()
    assert (await first, await second, await third) == ({one: 81}, {one: 105}, {other: 81})
    assert store.table.dirty() == {}


@pytest.mark.parametrize(("consumes", "client"), [(True, "c1"), (False, None)])
async def test_commits_of_consumers_have_their_client_id(
    consumes: bool, client: str | None
) -> None:
    """Brokers take a commit without one for an administrator's, which replaces a reset."""
    leader = Leader()
    store = OffsetStore("g", cast(ClientInstance, leader), consumes=consumes)
    writing = asyncio.ensure_future(store.write(queue(0), 5))
    await turns()
    leader.answer()
    await writing
    assert leader.clients == [client]


def test_unchanged_offsets_are_committed_again_periodically() -> None:
    """Somebody else's late request may have set them back."""
    loop = SimLoop()

    async def commits() -> list[int]:
        leader = Leader()
        store = store_of(leader)
        one = queue(0)
        store.table.start(one, 7)
        store.table.sent(one, 7)
        for _ in range(3):
            committing = asyncio.ensure_future(store.commit_confirmed())
            await turns()
            if leader.asked:
                leader.answer()
            await committing
            await asyncio.sleep(REPEAT_S / 2)
        return leader.asked

    requested = loop.run_until_complete(commits())
    loop.close()
    assert requested == [7]


class Repeating:
    """Stands for a ClientInstance that has to ask three times before a leader answers."""

    client_id = "c1"

    async def invoke_leader(self, _: str, command: Any, **__: Any) -> RemotingCommand:
        for _number in range(3):
            command()
        return RemotingCommand(code=0)


async def test_each_request_of_a_commit_is_announced() -> None:
    """One that got no answer may still be carried out when a repeated one has been."""
    said: list[tuple[str, int]] = []
    store = OffsetStore(
        "g",
        cast(ClientInstance, Repeating()),
        on_commit=lambda _, offset: said.append(("commit", offset)),
        on_committing=lambda _, offset: said.append(("committing", offset)),
    )
    store.table.start(queue(0), 0)
    store.table.advance(queue(0), 5)
    assert await store.commit_confirmed() == {queue(0): 5}
    assert said == [*[("committing", 5)] * 3, ("commit", 5)]


class Frozen:
    """Stands for a ClientInstance that finds the leader of group g1 only."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def invoke_leader(self, name: str, _: Any, **__: Any) -> RemotingCommand:
        self.asked.append(name)
        await asyncio.sleep(5)
        if name == "g0":
            raise BrokerUnreachable("g0 is silent")
        return RemotingCommand(code=0)


def test_commit_waits_once_for_a_broker_group_without_a_leader() -> None:
    """Consumers stop with such a commit. Nor do the queues of the others wait behind."""
    loop = SimLoop()
    instance = Frozen()

    async def commit() -> float:
        store = OffsetStore("g", cast(ClientInstance, instance))
        for name in ("g0", "g1"):
            for number in range(CONFIRMED_AT_ONCE_MAX * 3 if name == "g0" else 10):
                store.table.start(queue(number, name), 0)
                store.table.advance(queue(number, name), 5)
        began = loop.time()
        reported = await store.commit_confirmed()
        assert reported == {queue(number, "g1"): 5 for number in range(10)}
        return loop.time() - began

    assert loop.run_until_complete(commit()) == pytest.approx(5)
    loop.close()
    assert instance.asked.count("g0") == CONFIRMED_AT_ONCE_MAX


async def test_raising_commit_callback_stops_no_commit(caplog: pytest.LogCaptureFixture) -> None:
    def bad(_queue: MessageQueue, _offset: int) -> None:
        raise ValueError("user bug")

    instance = cast(ClientInstance, Repeating())
    store = OffsetStore("g", instance, on_commit=bad, on_committing=bad)
    for number in range(2):
        store.table.start(queue(number), 0)
        store.table.advance(queue(number), 5)
    assert await store.commit_confirmed() == {queue(0): 5, queue(1): 5}
    assert store.table.dirty() == {}
    assert caplog.text.count("commit_callback_failed") == 2 * (3 + 1)


class Growing:
    """Stands for a ClientInstance at one queue, which receives a message behind answer `moment`.
    `decides`: 14 is answered with the end of an empty queue, as brokers here do."""

    client_id = "c1"

    def __init__(self, count: int, decides: bool, moment: int, committed: int | None) -> None:
        self.count, self.decides, self.committed = count, decides, committed
        self._moments = iter(range(9))
        self._moment = moment

    async def invoke_leader(self, _: str, command: Any, **__: Any) -> RemotingCommand:
        code = command().code
        offset = {RequestCode.GET_MAX_OFFSET: self.count, RequestCode.GET_MIN_OFFSET: 0}.get(code)
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = 0 if self.decides and not self.count else self.committed
        if next(self._moments) == self._moment:
            self.count += 1
        if offset is None:
            return RemotingCommand(code=ResponseCode.QUERY_NOT_FOUND)
        return RemotingCommand(code=0, ext={"offset": str(offset)})


@pytest.mark.parametrize("committed", [None, 2])
@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("there", [0, 3])
@pytest.mark.parametrize("moment", range(3))
async def test_starting_offset_includes_messages_stored_during_the_query(
    there: int, decides: bool, moment: int, committed: int | None
) -> None:
    committed = committed if there else None
    for first, expected in ((ConsumeFrom.LAST_OFFSET, there), (ConsumeFrom.FIRST_OFFSET, 0)):
        instance = cast(ClientInstance, Growing(there, decides, moment, committed))
        store = OffsetStore("g", instance)
        start = await starting_offset(store, instance, queue(0), first, 0)
        assert start == (expected if committed is None else committed)
