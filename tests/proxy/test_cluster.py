"""A topic's type and a group's settings are had from any broker group that answers in time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client.errors import BrokerUnreachable
from raftmq.client.route import BrokerData, ReplicaGroup, TopicRouteData
from raftmq.proxy import cluster as module
from raftmq.proxy.access import Access
from raftmq.proxy.caller import Caller
from raftmq.proxy.cluster import Brokers, GroupSettings
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import Tasks
from raftmq.proxy.status_codes import StatusError
from raftmq.remoting.codes import LanguageCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.pop_headers import PopHeader

ORDERLY = GroupSettings(orderly=True)


class Instance:
    """Broker groups with what each does when it is asked: a body, a code, or None for silence."""

    def __init__(self, **groups):
        self.groups = groups
        self.asked = []
        self.open = 0
        result = tuple(BrokerData("c", name, {0: "127.0.0.1:1"}) for name in groups)
        route = TopicRouteData((), result)
        self.directory = SimpleNamespace(route_if_known=lambda _: route)

    async def ask_leader_once(self, name, command, timeout_ms, **_):
        self.asked.append(name)
        does = self.groups[name]
        self.open += 1
        try:
            if does is None:
                await asyncio.sleep(timeout_ms / 1000)
                raise BrokerUnreachable(f"{name}: no answer")
        finally:
            self.open -= 1
        if isinstance(does, bytes):
            return RemotingCommand.response_to(command, ResponseCode.SUCCESS, body=does)
        return RemotingCommand.response_to(command, does)


@pytest.fixture
async def tasks():
    tasks = Tasks()
    yield tasks
    await tasks.stop()


def caller(limit_s=5.0):
    end_s = asyncio.get_running_loop().time() + limit_s
    return Caller("c1", "", LanguageCode.PYTHON, "127.0.0.1", end_s)


async def timed(work):
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    return await work, loop.time() - began_s


YES, ABSENT = b'{"consumeMessageOrderly":true}', ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "groups, limit_s, expected",
    [
        ({"a": YES, "b": None}, 0.2, ORDERLY),
        ({"a": None, "b": YES}, 0.8, ORDERLY),
        ({"a": None, "b": None, "c": YES}, 0.8, ORDERLY),
        ({"a": ResponseCode.FLOW_CONTROL, "b": YES}, 0.2, ORDERLY),
        ({"a": ABSENT, "b": YES}, 0.2, ORDERLY),
        ({"a": ABSENT, "b": ABSENT}, 0.2, GroupSettings()),
        ({"a": ABSENT, "b": None}, 1.5, GroupSettings()),
        ({"a": None, "b": ABSENT}, 1.8, GroupSettings()),
    ],
)
async def test_silent_broker_group_does_not_delay_an_answer(tasks, groups, limit_s, expected):
    instance: Any = Instance(**groups)
    brokers = Brokers(instance, Access(enabled=False, path=""), tasks.spawn)
    result, took_s = await timed(brokers.group_settings(caller(), "T", "cg"))
    assert result == expected and took_s < limit_s
    assert instance.open == 0  # nobody is asked any more


async def test_broker_group_of_the_receive_is_asked_first(tasks):
    instance: Any = Instance(a=None, b=YES, c=YES)
    brokers = Brokers(instance, Access(enabled=False, path=""), tasks.spawn)
    assert await brokers.group_settings(caller(), "T", "cg", "b") == ORDERLY
    assert instance.asked == ["b"]


async def test_error_names_a_broker_group_that_did_not_answer(tasks):
    instance: Any = Instance(a=None)
    brokers = Brokers(instance, Access(enabled=False, path=""), tasks.spawn)
    with pytest.raises(StatusError, match="a") as error:
        await brokers.group_settings(caller(0.5), "T", "cg")
    assert error.value.code == pb.Code.PROXY_TIMEOUT
    assert instance.open == 0


async def test_cancelled_request_leaves_no_pending_question(tasks):
    instance: Any = Instance(a=None, b=None)
    brokers = Brokers(instance, Access(enabled=False, path=""), tasks.spawn)
    asking = asyncio.create_task(brokers.group_settings(caller(), "T", "cg"))
    await asyncio.sleep(2 * module.PATIENCE_S)
    assert instance.open == 2
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert instance.open == 0


async def test_pop_is_not_repeated_after_the_call_ended(tasks):
    """Nobody would wait for it, and what is given back counts as delivered once more."""

    class Hung(Instance):
        async def ask_leader_once(self, name, command, timeout_ms, **_):
            self.asked.append(name)
            await asyncio.sleep(0.2)
            raise BrokerUnreachable(f"{name} leads no more", outcome_unknown=True)

    instance: Any = Hung(a=None)
    instance.directory.group = ReplicaGroup
    instance.directory.doubt = lambda *_: None
    brokers = Brokers(instance, Access(enabled=False, path=""), tasks.spawn)
    header = PopHeader("g", "T", -1, 32, 60_000, 50, init_mode=1)
    with pytest.raises(StatusError):
        await brokers.pop(caller(0.1), "a", header)
    assert instance.asked == ["a"]
