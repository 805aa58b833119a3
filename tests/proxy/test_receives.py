"""What was popped, and reaches nobody, is given back."""

import asyncio
from types import SimpleNamespace

import pytest

from raftmq.proxy.brokers import GroupSettings
from raftmq.proxy.caller import Caller
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.receives import Receives
from raftmq.proxy.tasks import Tasks
from raftmq.remoting.codes import LanguageCode, RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.popheaders import PopResponseHeader
from tests.client.fakes import SharedLog


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

    async def ask(self, _caller, _name, code, *_, **__):
        if code == RequestCode.POP_MESSAGE:
            return await self.answer
        assert code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
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


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancel_near_the_answer_loses_no_message(tasks, turns):
    """Whichever turn of the loop it falls in: the message was written, or is given back."""
    brokers, written = OneBroker(), []
    clients = SimpleNamespace(used=lambda *_: None)
    receives = Receives(ProxyConfig(), brokers, clients, tasks.spawn, asyncio.Event())
    request = pb.ReceiveMessageRequest(group={"name": "cg"}, batch_size=1)
    request.message_queue.topic.name = "T"
    request.message_queue.broker.name = "g0"
    request.invisible_duration.FromSeconds(30)
    end_s = asyncio.get_running_loop().time() + 60
    caller = Caller("c1", "", LanguageCode.PYTHON, "127.0.0.1", end_s)

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
