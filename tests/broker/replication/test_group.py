"""Three replicas in one process: leaders come and go, what was answered stays."""

import asyncio

import orjson
import pytest

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendResponseHeader
from raftmq.remoting.registration import RegisterBrokerHeader, decode_register_body
from raftmq.remoting.server import RemotingServer
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import Group
from tests.waiting import until


@pytest.fixture
async def group(tmp_path):
    async with Group(tmp_path, count=3) as three:
        yield three


async def applied_everywhere(group):
    """Wait until every replica has the same log, and has applied all of it.

    A leader appends entries of its own, too: the group's id, once it knows its peers.
    """

    def same():
        brokers = group.brokers.values()
        ends = {broker.store.commitlog.max_offset for broker in brokers}
        last = {broker.log.status()["last_index"] for broker in brokers}
        return len(ends) == 1 and last == {broker.state.applied_index for broker in brokers}

    await until(same)


async def test_topics_offsets_and_messages_survive_the_leaders_end(group):
    name = await group.leader()
    broker = group.brokers[name]
    await group.create_topic(broker, "T", 2)
    await group.create_topic(broker, "Other", 3)
    body = orjson.dumps({"groupName": "g", "retryMaxTimes": 3})
    await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    sent = {}
    for number in range(30):
        response = await group.send(broker, "T", b"m%d" % number, queue=number % 2)
        header = SendResponseHeader.parse(response.ext)
        sent[number % 2, header.queue_offset] = (b"m%d" % number, header.message_id)
    assert (await group.commit(broker, "T", 1, 13)).code == 0
    tables = (broker.state.topics.to_json(), broker.state.groups.to_json())
    await group.kill(name)
    survivor = await group.leader()
    assert survivor != name
    broker = group.brokers[survivor]
    assert (broker.state.topics.to_json(), broker.state.groups.to_json()) == tables
    assert (await group.committed(broker, "T", 1)).ext["offset"] == "13"
    for queue in (0, 1):
        pulled = await group.pull(broker, "T", 0, queue=queue)
        for at, _ in walk_records(pulled.body):
            record = decode_record(pulled.body, at)
            assert sent.pop((queue, record.queue_offset))[0] == record.body
    assert not sent
    response = await group.send(broker, "T", queue=0)
    assert SendResponseHeader.parse(response.ext).queue_offset == 15
    await group.start(name)
    await until(lambda: group.brokers[name].state.applied_index >= broker.state.applied_index)
    assert group.brokers[name].state.topics.to_json() == tables[0]


async def test_followers_reject_sends_and_name_the_leader(group):
    name = await group.leader()
    leader = group.brokers[name]
    await group.create_topic(leader, "T")
    await applied_everywhere(group)
    follower = next(b for n, b in group.brokers.items() if n != name)
    for response in (
        await group.send(follower, "T"),
        await group.committed(follower, "T", 0),
        await group.commit(follower, "T", 0, 1),
        await group.ask(follower, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
    ):
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert response.remark.startswith("[NOT_LEADER]")
        assert response.ext["leaderAddr"] == leader.address


async def test_followers_serve_reads_and_never_answer_offset_moved(group):
    name = await group.leader()
    leader = group.brokers[name]
    await group.create_topic(leader, "T")
    follower = next(b for n, b in group.brokers.items() if n != name)
    await applied_everywhere(group)
    beyond = await group.pull(follower, "T", 7)
    assert (beyond.code, beyond.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "7")
    held = asyncio.ensure_future(group.pull(follower, "T", 0, flags=0x6))
    await until(lambda: follower.pulls.holds.count == 1)
    await group.send(leader, "T", b"replicated")
    response = await held
    assert decode_record(response.body).body == b"replicated"
    far = await group.pull(follower, "T", 7)
    assert (far.code, far.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "7")
    assert (await group.pull(leader, "T", 7)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_replicas_have_byte_identical_logs_and_queues(group):
    leader = await group.leading()
    await group.create_topic(leader, "T")
    sends = (
        group.send(leader, "T", b"b%d" % n, n % 4, f"TAGS\x01t{n % 3}\x02") for n in range(200)
    )
    assert {response.code for response in await asyncio.gather(*sends)} == {0}
    await applied_everywhere(group)
    stores = [broker.store for broker in group.brokers.values()]
    logs = {bytes(store.commitlog.read(0, store.commitlog.max_offset)) for store in stores}
    assert len(logs) == 1
    for queue_id in range(4):
        entries = {store.queues.queue("T", queue_id).entries(0, 100) for store in stores}
        assert len(entries) == 1


async def test_clean_stop_transfers_leadership(group):
    name = await group.leader()
    await group.create_topic(group.brokers[name], "T")
    terms = {broker.roles.term for broker in group.brokers.values()}
    await group.stop(name)
    successor = await group.leading()
    assert successor.roles.term > max(terms) - 1
    assert (await group.send(successor, "T")).code == 0


async def test_leader_without_a_majority_never_answers_ok(tmp_path):
    soon = {"electionTimeoutMinMs": 800, "electionTimeoutMaxMs": 1_200}
    async with Group(tmp_path, 3, {"outcome": 500}, **soon) as group:
        name = await group.leader()
        broker = group.brokers[name]
        await group.create_topic(broker, "T")
        for other in [n for n in group.names if n != name]:
            await group.kill(other)
        response = await group.send(broker, "T")
        assert response.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
        assert "[OUTCOME_UNKNOWN]" in response.remark or "[NOT_LEADER]" in response.remark
        await until(lambda: not broker.roles.leading)
        refused = await group.send(broker, "T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_registration_follows_the_leader(tmp_path):
    heard = []

    def register(_, command):
        header = RegisterBrokerHeader.parse(command.ext)
        heard.append((header, decode_register_body(command.body, header.compressed)[1]))
        return RemotingCommand.response_to(command, ext={})

    gone = []

    def unregister(_, command):
        gone.append(command.ext)
        return RemotingCommand.response_to(command)

    server = RemotingServer({103: register, 104: unregister})
    await server.start("127.0.0.1", 0)
    dead = "127.0.0.1:1"  # a name server that is down is no obstacle
    try:
        async with Group(tmp_path, 3, namesrvAddr=f"{dead};127.0.0.1:{server.port}") as group:
            name = await group.leader()
            address = group.brokers[name].address
            await until(lambda: any(h.broker_id == 0 for h, _ in heard))
            first = next(h for h, _ in heard if h.broker_id == 0)
            assert (first.broker_address, first.raft_role) == (address, "leader")
            assert first.raft_term == group.brokers[name].roles.term
            await group.create_topic(group.brokers[name], "Fresh")
            await until(
                lambda: any("Fresh" in [t.topic for t in ts] for h, ts in heard if h.broker_id == 0)
            )
            assert "TBW102" in [t.topic for t in heard[-1][1]]
            await group.stop(name)
            await until(lambda: any(ext["brokerAddr"] == address for ext in gone))
            successor = await group.leading()
            await until(
                lambda: any(
                    h.broker_id == 0 and h.broker_address == successor.address for h, _ in heard
                )
            )
            claim = [h for h, _ in heard if h.broker_id == 0][-1]
            assert claim.raft_term is not None and first.raft_term is not None
            assert claim.raft_term > first.raft_term
            own = 1 + group.names.index(name)
            assert any(h.broker_address == address and h.broker_id == own for h, _ in heard)
    finally:
        await server.stop()


async def test_new_leader_notifies_consumers_to_rebalance(group):
    name = await group.leader()
    reported = []
    client = type(group.client)(
        {40: lambda connection, c: reported.append((connection.address, c.ext))}
    )
    try:
        body = orjson.dumps(
            {
                "clientID": "c1",
                "consumerDataSet": [{"groupName": "cg2", "subscriptionDataSet": []}],
                "producerDataSet": [],
            }
        )
        for broker in group.brokers.values():  # consumers beat to followers too
            await client.invoke(broker.address, RemotingCommand.request(34, None, body), 60_000)
        await until(lambda: len(reported) >= 3)
        reported.clear()
        await group.kill(name)
        successor = await group.leading()
        await until(lambda: (successor.address, {"consumerGroup": "cg2"}) in reported)
    finally:
        await client.close()
