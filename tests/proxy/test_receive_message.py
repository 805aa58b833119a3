"""Messages that the proxy popped for a client that is gone are given back to their broker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.proxy import server
from raftmq.proxy.caller import Caller as CallClient
from raftmq.proxy.cluster import GroupSettings
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.receive_message import ReceiveHandlers, Waits
from raftmq.proxy.server import ProxyServer, Tasks
from raftmq.remoting.codes import LanguageCode, RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.pop_headers import PopHeader, PopResponseHeader
from tests.client.fakes import FakeCluster, SharedLog
from tests.proxy.world import PROXY, WAITS, Caller
from tests.waiting import until

POP, CHANGE = RequestCode.POP_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME


class OneBroker:
    """A broker group whose pops are answered when the test says so; `given_back`: messages."""

    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()
        self.given_back = 0

    def permit(self, *_):
        pass

    async def check_broker(self, *_):
        pass

    async def group_settings(self, *_):
        return GroupSettings()

    async def pop(self, *_):
        return await self.answer

    async def ask(self, _caller, _name, code, *_, **__):
        assert code == CHANGE
        self.given_back += 1
        ext = {"popTime": "1", "invisibleTime": "0", "reviveQid": "0"}
        return RemotingCommand(0, ext=ext)


def one_message():
    """The answer to a pop."""
    log = SharedLog()
    log.append("T", 0, b"body")
    ext = PopResponseHeader(5, 30_000, 0, 0, "0 0 0", "0 0 0").to_ext()
    return RemotingCommand(0, ext=ext, body=log.records["T", 0][0])


@pytest.fixture
async def tasks():
    tasks = Tasks()
    yield tasks
    await tasks.stop()


@pytest.fixture
async def cluster():
    async with FakeCluster({"g0": 2}) as cluster:
        yield cluster


@pytest.fixture
async def caller(cluster, monkeypatch):
    monkeypatch.setattr(server, "ROUTE_MS", 1000)
    proxy = ProxyServer(ProxyConfig(**(PROXY | {"namesrv": cluster.namesrv})), WAITS)
    await proxy.start()
    try:
        async with Caller(proxy) as caller:
            yield caller
    finally:
        await proxy.stop()


@pytest.mark.parametrize("turns", range(8))
async def test_cancel_near_the_answer_loses_no_message(tasks, turns):
    """Whichever turn of the loop it falls in: the message was written, or is given back."""
    brokers: Any = OneBroker()
    written: list[Any] = []
    clients: Any = SimpleNamespace(add_topic=lambda *_: None)
    receives = ReceiveHandlers(Waits(), brokers, clients, tasks.spawn, asyncio.Event())
    request = pb.ReceiveMessageRequest(group={"name": "cg"}, batch_size=1)
    request.message_queue.topic.name = "T"
    request.message_queue.broker.name = "g0"
    request.invisible_duration.FromSeconds(30)
    end_s = asyncio.get_running_loop().time() + 60
    caller = CallClient("c1", "", LanguageCode.PYTHON, "127.0.0.1", end_s)

    async def write(response):
        if response.HasField("message"):
            written.append(response.message)

    receiving = asyncio.create_task(receives.receive(caller, request, write))
    await asyncio.sleep(0.01)
    brokers.answer.set_result(one_message())
    for _ in range(turns):
        await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert len(written) + brokers.given_back == 1


async def test_repeated_pop_waits_only_for_the_remaining_time(cluster, caller):
    leader = cluster.brokers["g0"][0]
    receiving = asyncio.create_task(caller.receive("T", poll_ms=1500))
    await until(lambda: leader.count(POP))
    await asyncio.sleep(0.7)
    for connection in list(leader.server.connections):
        connection.abort("scripted")
    assert (await receiving).code == pb.Code.MESSAGE_NOT_FOUND
    first, *again = (PopHeader.parse(one.ext).poll_ms for one in leader.received(POP))
    assert first > 1400 and again and max(again) <= 800


async def test_receive_without_a_wait_leaves_time_for_the_answer(cluster, caller):
    """Java's clients up to 5.0.3 name none: their call is over with their own wait for it."""
    leader = cluster.brokers["g0"][0]
    await caller.receive("T", poll_ms=None, timeout_s=4)
    (requested,) = (PopHeader.parse(one.ext).poll_ms for one in leader.received(POP))
    assert 1000 < requested <= 2500


async def test_answer_after_the_calls_deadline_is_returned_to_the_broker(cluster, caller):
    leader = cluster.brokers["g0"][0]
    cluster.logs["g0"].append("T", 0, b"late")
    leader.scripts[POP].append("late")
    assert (await caller.receive("T", timeout_s=0.8)).code == pb.Code.PROXY_TIMEOUT
    assert leader.count(POP) == 1 and not leader.count(CHANGE)
    leader.late.set()
    await until(lambda: leader.count(CHANGE) == 1)


async def test_slow_pop_answer_is_delivered_within_the_calls_time(cluster, caller):
    """It is not asked for again: the messages of the first answer would be lost."""
    leader = cluster.brokers["g0"][0]
    cluster.logs["g0"].append("T", 0, b"slow")
    leader.scripts[POP].append("late")
    asyncio.get_running_loop().call_later(1.5, leader.late.set)
    (one,) = await caller.receive("T")
    assert one.body == b"slow" and leader.count(POP) == 1


async def test_receive_leaves_a_frozen_leader_when_another_leads(cluster, caller):
    frozen, next_leader = cluster.brokers["g0"]
    frozen.scripts[POP].append("late")
    receiving = asyncio.create_task(caller.receive("T", poll_ms=20_000, timeout_s=23))
    await until(lambda: frozen.count(POP))
    cluster.logs["g0"].append("T", 0, b"new")
    cluster.lead("g0", 1, tell_route=True)
    async with asyncio.timeout(10):
        (one,) = await receiving
    assert one.body == b"new" and next_leader.count(POP)


async def test_leader_that_does_not_answer_a_pop_is_doubted(cluster, caller):
    """Without name servers, only that leads to another one."""
    frozen, next_leader = cluster.brokers["g0"]
    await caller.receive("T")
    frozen.scripts[POP] += ["late", "late"]
    receiving = asyncio.create_task(caller.receive("T"))
    await until(lambda: frozen.count(POP) == 2)
    cluster.name_server.silent = True
    cluster.logs["g0"].append("T", 0, b"new")
    cluster.lead("g0", 1, tell_route=False)
    await asyncio.sleep(1.2)
    async with asyncio.timeout(5):
        (one,) = await caller.receive("T")
    assert one.body == b"new" and next_leader.count(POP)
    receiving.cancel()
