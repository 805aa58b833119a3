"""Broker groups of one cluster share their definitions (joinCluster)."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest

from raftmq.broker.cluster import definitions, sharing
from raftmq.broker.cluster.other_groups import OtherGroups
from raftmq.client.decode import decode_messages
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import BodyError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.pop_headers import INIT_MAX, PopHeader
from raftmq.remoting.server import RemotingServer
from tests.broker.cluster import Group
from tests.instances import instances_of
from tests.waiting import until

ACCOUNTS = """
accounts:
- accessKey: inner-node
  secretKey: inner-secret
  admin: true
"""
ADDED = "- {accessKey: added-key, secretKey: added-secret, admin: false}\n"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(sharing, "PERIOD_S", 0.1)


@asynccontextmanager
async def name_server():
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        yield server


def group(tmp_path, letter, server, count=1, **settings):
    settings = {"brokerName": f"broker-{letter}", "namesrvAddr": server.address} | settings
    return Group(tmp_path / letter, count, **settings)


def has_master(server, name):
    return any(broker.broker_id == 0 for broker in server.table.brokers(name))


async def make_topic(group, name, queues=4, attributes=""):
    broker = await group.leading()
    header = TopicHeader(name, queues, queues, 6)._replace(attributes=attributes)
    answer = await group.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def make_consumer_group(group, name, **settings):
    body = orjson.dumps({"groupName": name, **settings})
    broker = await group.leading()
    answer = await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_peer_broker_group_is_reached_at_a_mapped_address(tmp_path, monkeypatch):
    """As in containers, where the address for clients is not reachable, or is another broker's."""
    settings = {"brokerIP1": "127.0.0.9", "bindAddress": "127.0.0.1"}
    async with name_server() as server, group(tmp_path, "a", server, **settings) as old:
        broker = await old.leading()
        port = broker.address.rpartition(":")[2]
        await old.client.close()
        old.client = RemotingClient(reached_at={broker.address: f"127.0.0.1:{port}"})
        await make_topic(old, "orders")
        await until(lambda: has_master(server, "broker-a"))
        mapped = f"{broker.address}=127.0.0.1:{port}"
        made = instances_of(monkeypatch, OtherGroups)
        async with group(tmp_path, "b", server, brokerAddressMap=mapped) as new:
            leader = await new.leading()
            await until(lambda: leader.state.topics.get("orders") is not None)
            with pytest.raises(BodyError, match=r"127.0.0.9:\d+ is 'broker-a': brokerAddressMap"):
                await made[0].definitions("broker-z", broker.address, None)


async def test_new_group_registers_with_the_definitions_of_its_cluster(tmp_path):
    async with name_server() as server, group(tmp_path, "a", server) as old:
        await make_topic(old, "orders", 6)
        await make_topic(old, "ordered", attributes="+message.type=FIFO")
        await make_consumer_group(old, "billing", retryMaxTimes=3)
        mode = {"topic": "orders", "consumerGroup": "billing", "mode": "POP"}
        broker = await old.leading()
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        assert (await old.ask(broker, code, {}, orjson.dumps(mode))).code == 0
        await until(lambda: has_master(server, "broker-a"))
        async with group(tmp_path, "b", server, 3) as new:
            leader = await new.leading()
            await until(lambda: has_master(server, "broker-b"))
            # Whoever finds the group in a route finds everything there.
            state = leader.state
            assert state.topics.get("orders").write_queue_count == 6
            assert "ordered" not in state.topics.entries
            assert state.groups.get("billing").retry_times_max == 3
            assert state.pops.modes["orders", "billing"] == ("POP", 0)
            for replica in new.brokers.values():
                await until(lambda one=replica: "orders" in one.state.topics.entries)


@pytest.mark.parametrize("pops", [False, True])
async def test_new_groups_first_messages_reach_existing_consumer_groups(tmp_path, pops):
    """They are stored before a consumer comes, which asks for the last offset. A consumer group
    that has never read the topic gets that."""
    async with name_server() as server, group(tmp_path, "a", server) as old:
        await make_topic(old, "orders", 2)
        for name in ("billing", "idle"):
            await make_consumer_group(old, name)
        broker = await old.leading()
        if pops:
            await old.ask(broker, RequestCode.POP_MESSAGE, pop("billing"))
        else:
            await old.commit(broker, "orders", 0, 0, "billing")
        await until(lambda: has_master(server, "broker-a"))
        cold = {"accessMessageInMemoryMaxRatio": "0"}  # as if the messages were old
        async with group(tmp_path, "b", server, **cold) as new:
            leader = await new.leading()
            await until(lambda: has_master(server, "broker-b"))
            for number in range(6):
                await new.send(leader, "orders", queue=number % 2)
            if pops:
                answers = [
                    await new.ask(leader, RequestCode.POP_MESSAGE, pop(name))
                    for name in ("billing", "idle")
                ]
                assert [len(decode_messages(one.body, "broker-b")) for one in answers] == [6, 2]
            else:
                answer = await new.committed(leader, "orders", 1, "billing")
                assert answer.ext["offset"] == "0"
                answer = await new.committed(leader, "orders", 1, "idle")
                assert answer.code == ResponseCode.QUERY_NOT_FOUND


def pop(name):
    header = PopHeader(name, "orders", -1, 32, 60_000, 0, 0, INIT_MAX, "TAG", "*")
    return header.to_ext()


async def test_new_group_leads_at_its_preferred_replica_before_it_registers(tmp_path):
    """Clients that ask for routes every 30 s would send to the former leader otherwise."""
    async with name_server() as server, group(tmp_path, "a", server) as old:
        await make_topic(old, "orders")
        await until(lambda: has_master(server, "broker-a"))
        for name in ("n1", "n2"):
            prefers = {"brokerName": f"broker-{name}", "preferredLeaderId": name}
            async with group(tmp_path, name, server, 3, **prefers) as new:
                await until(lambda: has_master(server, f"broker-{name}"))  # noqa: B023
                leader = await new.leading()
                assert leader is new.brokers[name]
                assert "orders" in leader.state.topics.entries


async def test_creations_spread_and_a_deleted_topic_does_not_return(tmp_path):
    async with name_server() as server, group(tmp_path, "a", server) as one:
        async with group(tmp_path, "b", server) as two:
            topics = [(await each.leading()).state.topics for each in (one, two)]
            await make_topic(one, "orders")
            await make_topic(two, "payments")
            await until(lambda: all({"orders", "payments"} <= t.entries.keys() for t in topics))
            await two.stop("n0")  # it has the topic while the rest of the cluster deletes it
            broker = await one.leading()
            answer = await one.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
            assert answer.code == 0
            await make_topic(one, "refunds")
            returned = (await two.start("n0")).state.topics
            await until(lambda: "refunds" in returned.entries)
            await make_topic(two, "last")
            await until(lambda: "last" in topics[0].entries)  # read after the return
            assert "orders" in returned.entries  # deletions stay local
            assert "orders" not in topics[0].entries
            await make_topic(one, "orders", 2)
            assert returned.get("orders").write_queue_count == 4


async def test_definitions_deleted_during_a_join_are_absent_in_the_new_group(tmp_path, monkeypatch):
    async with name_server() as server, group(tmp_path, "a", server) as old:
        for name in ("orders", "again", "kept"):
            await make_topic(old, name)
        for name in ("billing", "audit"):
            await make_consumer_group(old, name)
        broker = await old.leading()
        await until(lambda: has_master(server, "broker-a"))
        definitions = OtherGroups.definitions

        async def adopted_late(self, name, *args, **options):
            """Everything is read, and some of it is deleted before it is adopted."""
            read = await definitions(self, name, *args, **options)
            if name == "broker-a" and "orders" in broker.state.topics.entries:
                for topic in ("orders", "again"):
                    ext = {"topic": topic}
                    await old.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
                ext = {"groupName": "billing"}
                await old.ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
                await make_topic(old, "again")
            return read

        monkeypatch.setattr(OtherGroups, "definitions", adopted_late)
        async with group(tmp_path, "b", server) as new:
            state = (await new.leading()).state
            await until(lambda: has_master(server, "broker-b"))
            assert {"again", "kept"} <= state.topics.entries.keys()
            assert "orders" not in state.topics.entries
            assert "audit" in state.groups.entries and "billing" not in state.groups.entries


async def test_group_with_joining_disabled_stays_empty(tmp_path):
    async with name_server() as server, group(tmp_path, "a", server) as old:
        await make_topic(old, "orders")
        async with group(tmp_path, "b", server, joinCluster="false") as new:
            leader = await new.leading()
            await until(lambda: has_master(server, "broker-b"))
            await asyncio.sleep(0.3)
            assert "orders" not in leader.state.topics.entries


async def test_new_leader_completes_a_join_that_its_predecessor_started(tmp_path):
    """Only a part was adopted: the group does not register before the rest."""
    async with name_server() as server, group(tmp_path, "a", server) as old:
        await make_topic(old, "orders")
        async with group(tmp_path, "b", server, joinCluster="false") as new:
            leader = await new.leading()
            part: dict = {"op": "adopt", "topics": [], "groups": [], "deletedTopics": {}}
            part |= {"deletedGroups": {}, "readers": [], "versions": {}, "more": True}
            await leader.log.propose(orjson.dumps(part))
            await new.stop("n0")
            new.settings["joinCluster"] = "true"
            again = await new.start("n0")
            await until(lambda: again.registrar.registered)
            await until(lambda: has_master(server, "broker-b"))
            assert "orders" in again.state.topics.entries
            assert not again.state.group.joining


async def test_adopted_accounts_precede_the_own_file(tmp_path):
    files = {letter: tmp_path / f"{letter}.yml" for letter in "ab"}
    files["a"].write_text(ACCOUNTS + ADDED)
    files["b"].write_text(ACCOUNTS)
    inner = '{"accessKey":"inner-node","secretKey":"inner-secret"}'
    settings = {
        letter: {
            "aclEnable": "true",
            "aclFile": str(file),
            "innerClientAuthenticationCredentials": inner,
            "bindAddress": "127.0.0.1",
        }
        for letter, file in files.items()
    }
    async with name_server() as server, group(tmp_path, "a", server, **settings["a"]) as old:
        first = await old.leading()
        await until(lambda: first.state.acl.accounts is not None)
        await until(lambda: has_master(server, "broker-a"))
        async with group(tmp_path, "b", server, **settings["b"]) as new:
            leader = await new.leading()
            await until(lambda: leader.state.acl.accounts is not None)
            assert leader.state.acl.accounts.by_key.keys() == {"inner-node", "added-key"}


async def test_definitions_of_apaches_brokers_are_read_by_their_requests(tmp_path):
    """A broker without 30009 answers 21, 201 and 402."""
    topic = {"topicName": "orders", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 7}
    bodies = {
        21: {"dataVersion": version, "topicConfigTable": {"orders": topic}},
        201: {
            "dataVersion": version,
            "subscriptionGroupTable": {"billing": {"groupName": "billing", "retryMaxTimes": 2}},
        },
        402: {"messageRequestModeMap": {}},
    }

    def answer(_, request):
        return RemotingCommand.response_to(request, body=orjson.dumps(bodies[request.code]))

    apaches = RemotingServer(dict.fromkeys(bodies, answer))
    await apaches.start("127.0.0.1", 0)
    try:
        info = {
            "brokerAddrTable": {
                "broker-a": {
                    "brokerName": "broker-a",
                    "cluster": "TestCluster",
                    "brokerAddrs": {"0": f"127.0.0.1:{apaches.port}"},
                }
            },
            "clusterAddrTable": {"TestCluster": ["broker-a"]},
        }
        registered = []

        def register(_, request):
            registered.append(request)
            return RemotingCommand.response_to(request)

        names = RemotingServer(
            {
                103: register,
                104: lambda _, c: RemotingCommand.response_to(c),
                106: lambda _, c: RemotingCommand.response_to(c, body=orjson.dumps(info)),
            }
        )
        await names.start("127.0.0.1", 0)
        try:
            settings = {"brokerName": "broker-b", "namesrvAddr": f"127.0.0.1:{names.port}"}
            async with Group(tmp_path, **settings) as new:
                leader = await new.leading()
                await until(lambda: leader.state.topics.get("orders") is not None)
                assert leader.state.topics.get("orders").read_queue_count == 3
                assert leader.state.groups.get("billing").retry_times_max == 2
                await until(lambda: any(c.ext["brokerId"] == "0" for c in registered))
        finally:
            await names.stop()
    finally:
        await apaches.stop()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topics":1}', b'{"topics":{"after":""}}'])
async def test_definitions_request_without_a_position_is_rejected(tmp_path, body):
    async with Group(tmp_path) as one:
        broker = await one.leading()
        answer = await one.ask(broker, RequestCode.GET_DEFINITIONS, {}, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        table = await one.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        assert "createdMs" not in loads_object(table.body)  # Apache's answer stays Apache's


async def test_definitions_of_several_pages_are_read_with_the_modes(tmp_path, monkeypatch):
    """The modes are on the first page, and topics and consumer groups have different last pages."""
    monkeypatch.setattr(definitions, "PAGE_ENTRIES", 2)
    async with name_server() as server, group(tmp_path, "a", server) as old:
        for number in range(5):
            await make_topic(old, f"topic-{number}")
        await make_consumer_group(old, "billing")
        mode = {"topic": "topic-0", "consumerGroup": "billing", "mode": "POP"}
        broker = await old.leading()
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        assert (await old.ask(broker, code, {}, orjson.dumps(mode))).code == 0
        await until(lambda: has_master(server, "broker-a"))
        async with group(tmp_path, "b", server) as new:
            leader = await new.leading()
            await until(lambda: has_master(server, "broker-b"))
            names = {f"topic-{number}" for number in range(5)}
            assert names <= leader.state.topics.entries.keys()
            assert leader.state.pops.modes["topic-0", "billing"] == ("POP", 0)
