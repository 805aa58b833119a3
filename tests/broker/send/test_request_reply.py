"""Request and reply: pushed to the requester, stored, refused, and passed on after a hand-over."""

import orjson
import pytest

from raftmq.broker.clients import ClientTable
from raftmq.broker.config import change_live
from raftmq.remoting.admin_headers import ReplyPushHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendHeader, SendResponseHeader
from raftmq.remoting.memory_limits import Allowance
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record
from tests.broker.cluster import Group
from tests.broker.doubles import FakeConnection
from tests.waiting import until

TOPIC = "TestCluster_REPLY_TOPIC"


class Requester:
    """A producer that waits for replies."""

    def __init__(self, name="10.0.0.1@r", answer=ResponseCode.SUCCESS):
        self.name = name
        self.answer = answer
        self.taken = []
        self.client = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.take})

    def take(self, _connection, request):
        self.taken.append(request)
        if self.answer is None:
            return None
        return RemotingCommand.response_to(request, self.answer, "so be it")

    async def beat(self, broker, *groups):
        producers = [{"groupName": group} for group in groups or ("pg",)]
        body = orjson.dumps({"clientID": self.name, "producerDataSet": producers})
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
        assert (await self.client.invoke(broker.address, command, 60_000)).code == 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.client.close()


async def reply(group, broker, to="10.0.0.1@r", code=325, topic=TOPIC, body=b"answer", **more):
    marks = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "60000"} | more
    if to is not None:
        marks["REPLY_TO_CLIENT"] = to
    text = "".join(f"{name}\x01{value}\x02" for name, value in marks.items())
    header = SendHeader("rp", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, text)
    return await group.ask(broker, code, header.to_ext(code), body)


@pytest.mark.parametrize("code", [324, 325])
async def test_reply_reaches_its_requester_and_is_stored(group, code):
    broker = await group.leading()
    async with Requester() as requester:
        await requester.beat(broker)
        answer = await reply(group, broker, code=code)
        assert answer.code == 0, answer.remark
        header = SendResponseHeader.parse(answer.ext)
        assert (header.queue_id, header.queue_offset) == (0, 0)
        (pushed,) = requester.taken
        reported = ReplyPushHeader.parse(pushed.ext)
        assert pushed.body == b"answer"
        assert reported.send.topic == TOPIC
        assert reported.store_host == broker.address
        assert reported.born_host.startswith("127.0.0.1:")
        marks = decode_properties(reported.send.properties)
        assert marks["CORRELATION_ID"] == "c-1"
        assert marks["REPLY_TO_CLIENT"] == "10.0.0.1@r"
        assert int(marks["PUSH_REPLY_TIME"]) == reported.store_timestamp_ms
        result = await group.pull(broker, TOPIC, 0)
        record = decode_record(result.body)
        assert record.body == b"answer"
        assert decode_properties(record.properties)["CORRELATION_ID"] == "c-1"
        change_live(broker.config, {"storeReplyMessageEnable": False})
        answer = await reply(group, broker, code=code)
        assert (answer.code, answer.ext["msgId"]) == (0, "0")
        assert broker.store.queues.end_of(TOPIC, 0) == 1
        assert len(requester.taken) == 2


async def test_reply_to_a_missing_or_silent_requester_gets_an_error(group):
    broker = await group.leading()
    missing = await reply(group, broker)
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert missing.remark == "push reply message fail, channel of <10.0.0.1@r> not found."
    assert broker.store.queues.end_of(TOPIC, 0) == 1, "stored all the same, as Apache's broker does"
    nobody = await reply(group, broker, to=None)
    assert nobody.code == ResponseCode.SYSTEM_ERROR
    assert nobody.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    async with Requester(answer=ResponseCode.SYSTEM_ERROR) as requester:
        await requester.beat(broker)
        refused = await reply(group, broker)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == "push reply message to 10.0.0.1@r fail: so be it"
    async with Requester("10.0.0.1@deaf", answer=None) as requester:
        await requester.beat(broker)
        late = await reply(group, broker, to="10.0.0.1@deaf", TTL="50")
        assert late.code == ResponseCode.SYSTEM_ERROR
        assert late.remark.startswith("push reply message to 10.0.0.1@deaf fail: ")


async def test_reply_to_an_unknown_topic_or_above_limits_is_rejected(group, monkeypatch):
    broker = await group.leading()
    unknown = await reply(group, broker, topic="Nothing")
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    long = await reply(group, broker, body=b"x" * (broker.config.max_message_size + 1))
    assert long.code == ResponseCode.MESSAGE_ILLEGAL
    monkeypatch.setattr("raftmq.broker.send.request_reply.PUSHES_MAX", 0)
    busy = await reply(group, broker)
    assert (busy.code, busy.remark[:6]) == (ResponseCode.SYSTEM_ERROR, "[BUSY]")


async def test_requester_is_known_by_its_request(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    async with Requester() as requester:
        for code in (310, 10):
            for topic, kind, known in (
                ("%RETRY%cg", "", False),
                ("T", "MSG_TYPE\x01reply\x02", False),
                ("T", "", True),
            ):
                text = f"REPLY_TO_CLIENT\x01{requester.name}{code}\x02{kind}"
                ext = SendHeader("pg", topic, "TBW102", 1, 0, 0, 1, 0, text).to_ext(code)
                command = RemotingCommand.request(code, ext, b"request")
                assert (await requester.client.invoke(broker.address, command, 60_000)).code == 0
                producer_connection = broker.clients.producer_connection(f"{requester.name}{code}")
                assert (producer_connection is not None) is known, (code, topic)
        answer = await reply(group, broker, to=requester.name + "10")
        assert answer.code == 0, answer.remark
        assert len(requester.taken) == 1
    await until(
        lambda: (
            not any(
                broker.clients.producer_connection(f"{requester.name}{code}") for code in (310, 10)
            )
        )
    )


def test_requesters_are_limited_and_removed_with_their_connection(monkeypatch):
    monkeypatch.setattr("raftmq.broker.clients.REQUESTERS_MAX", 2)
    clients = table()
    first, second = FakeConnection(), FakeConnection()

    def ask(connection, name):
        clients.requester(connection, {"b": "T", "i": f"REPLY_TO_CLIENT\x01{name}\x02"})

    for name in "abc":
        ask(first, name)
    assert clients.producer_connection("b") is first
    assert clients.producer_connection("c") is None
    ask(second, "b")
    assert clients.producer_connection("b") is second
    clients.closed(first)
    assert clients.producer_connection("a") is None
    assert clients.producer_connection("b") is second
    ask(first, "c")
    assert clients.producer_connection("c") is first


async def test_reply_after_a_transfer_is_forwarded_to_the_former_leader(tmp_path):
    slow = {"electionTimeoutMinMs": 2_000, "electionTimeoutMaxMs": 4_000}  # nobody else stands
    async with Group(tmp_path, 3, **slow) as group:
        first = await group.leading()
        async with Requester() as requester:
            await requester.beat(first)
            target = next(n for n, b in group.brokers.items() if b is not first)
            assert (await group.transfer(first, target)).code == 0
            second = group.brokers[target]
            await until(lambda: second.roles.leading and not first.roles.leading)
            await until(lambda: len(second.state.addresses) == 2)
            refused = await reply(group, first)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert refused.remark.startswith("[NOT_LEADER]")
            answer = await reply(group, second)
            assert answer.code == 0, answer.remark
            (pushed,) = requester.taken
            assert pushed.ext["storeHost"] == first.address
            assert second.store.queues.end_of(TOPIC, 0) == 1
            unknown = await reply(group, second, to="nobody")
            assert unknown.remark == "push reply message fail, channel of <nobody> not found."
            assert len(requester.taken) == 1


def table():
    return ClientTable(
        clients_max=10,
        kept=Allowance(1 << 20),
        expiry_ms=100,
        notify_enabled=lambda _: True,
        on_consumer_group=lambda _: None,
    )


def test_producers_are_found_by_their_client_id():
    def beat(clients, connection, now_ms, *groups):
        fields = {"clientID": "c", "producerDataSet": [{"groupName": g} for g in groups]}
        clients.heartbeat(connection, fields, 0, 0, now_ms)

    clients = table()
    assert clients.producer_connection("c") is None
    first, second = FakeConnection(), FakeConnection()
    beat(clients, first, 10, "g", "h")
    beat(clients, second, 20, "i")
    assert clients.producer_connection("c") is second
    second.is_open = False
    assert clients.producer_connection("c") is first
    clients.unregister(first, "c", "g", None)
    assert clients.producer_connection("c") is first
    clients.closed(first)
    assert clients.producer_connection("c") is None
    clients.expire(200)
    assert clients.count == 0
    second.is_open = True
    assert clients.producer_connection("c") is None
