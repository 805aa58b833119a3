"""Topics and groups as Apache's tools put them: attributes, several at a time, the system's own;
and what a topic's kind means for sends."""

import asyncio

import orjson
import pytest

from raftmq.broker.admin import topics_and_groups as catalog
from raftmq.broker.admin.pass_on import PASSED_ON
from raftmq.broker.tables.state import BrokerState, put_topic
from raftmq.broker.tables.topics import TopicConfig, topic_from_json
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until

PUT = RequestCode.UPDATE_AND_CREATE_TOPIC
FIFO = "+message.type=FIFO"
KEYED = "__SHARDINGKEY\x01k\x02"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"


async def put(group, broker, topic="T", attributes="", queues=4, perm=6):
    header = TopicHeader(topic, queues, queues, perm, attributes=attributes)
    return await group.ask(broker, PUT, header.to_ext())


async def attributes_of(group, broker, topic="T"):
    answer = await group.ask(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return loads_object(answer.body)["attributes"]


async def test_topic_attributes_are_kept_until_they_are_changed(group):
    broker = await group.leading()
    assert (await put(group, broker)).code == 0
    assert await attributes_of(group, broker) == {}
    assert (await put(group, broker, attributes=FIFO)).code == 0
    assert (await put(group, broker, queues=8, perm=4)).code == 0
    assert await attributes_of(group, broker) == {"message.type": "FIFO"}
    listed = loads_object((await group.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert listed["topicConfigTable"]["T"]["attributes"] == {"message.type": "FIFO"}
    for text, why in (
        ("+color=red", "unsupported key"),
        ("+message.type=fifo", "not in set"),
        ("+queue.type=SimpleCQ", "unchangeable"),
        ("-reserve.time", "nonexistent"),
        ("message.type=FIFO", "format is wrong"),
        ("+message.type=MIXED", "MIXED message type is not supported."),
    ):
        refused = await put(group, broker, attributes=text)
        assert (refused.code, why in refused.remark) == (1, True), (text, refused.remark)
    assert await attributes_of(group, broker) == {"message.type": "FIFO"}
    assert (await put(group, broker, attributes="-message.type")).code == 0
    assert await attributes_of(group, broker) == {}


async def test_concurrent_topic_changes_keep_each_others_attributes(group):
    broker = await group.leading()
    await put(group, broker, attributes=FIFO)
    changes = ["+reserve.time=-1", "-message.type", "", ""]
    answers = await asyncio.gather(*(put(group, broker, attributes=text) for text in changes))
    assert {answer.code for answer in answers} == {0}
    assert await attributes_of(group, broker) == {"reserve.time": "-1"}


async def test_mixed_message_type_needs_the_setting(tmp_path):
    async with Group(tmp_path, enableMixedMessageType="true") as group:
        broker = await group.leading()
        assert (await put(group, broker, attributes="+message.type=MIXED")).code == 0
        assert await attributes_of(group, broker) == {"message.type": "MIXED"}


def test_topic_bean_with_attributes_round_trip():
    topic = TopicConfig("T", attributes=(("message.type", "FIFO"), ("of.later", "x")))
    assert topic_from_json(topic.to_json()) == topic
    assert topic.message_type == "FIFO"
    assert TopicConfig("T").message_type == "NORMAL"
    state = BrokerState()
    state.apply(1, 1, put_topic(topic))
    again = BrokerState()
    again.topics.load(state.topics.to_json(), 1)
    assert again.topics.entries == {"T": topic}


async def test_topic_list_is_created_completely_or_not_at_all(group):
    broker = await group.leading()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    await put(group, broker, "Old")

    async def ask(*beans):
        body = orjson.dumps({"topicConfigList": list(beans)})
        return await group.ask(broker, code, None, body)

    beans = (
        {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6},
        {"topicName": "Old", "readQueueNums": 4, "writeQueueNums": 4, "perm": 4},
        {"topicName": "B", "attributes": {"+message.type": "DELAY"}},
    )
    assert (await ask(*beans)).code == 0
    topics = broker.state.topics.entries
    assert (topics["A"].read_queue_count, topics["Old"].perm) == (2, 4)
    assert (topics["B"].write_queue_count, topics["B"].message_type) == (16, "DELAY")
    refused = await ask({"topicName": "C"}, {"topicName": "D", "attributes": {"+color": "red"}})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "C" not in topics
    for wrong in ([{"topicName": "TBW102"}], [{"topicName": "no good"}], [7]):
        assert (await ask(*wrong)).code == ResponseCode.SYSTEM_ERROR
    many = [{"topicName": f"M{number}"} for number in range(catalog.TOGETHER_MAX + 1)]
    assert "[TOO_LARGE]" in (await ask(*many)).remark


async def test_group_list_is_created_completely_or_not_at_all(group):
    broker = await group.leading()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST

    async def ask(*beans):
        body = orjson.dumps({"groupConfigList": list(beans)})
        return await group.ask(broker, code, None, body)

    assert (await ask({"groupName": "a", "retryMaxTimes": 3}, {"groupName": "b"})).code == 0
    groups = broker.state.groups.entries
    assert (groups["a"].retry_times_max, groups["b"].retry_times_max) == (3, 16)
    assert (await ask({"groupName": "c"}, {"groupName": "no good"})).code == 1
    assert "c" not in groups


async def test_system_topics_are_listed(group):
    broker = await group.leading()
    answer = await group.ask(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    result = set(loads_object(answer.body)["topicList"])
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "group-a"} <= result
    assert (await group.ask(broker, RequestCode.CLEAN_UNUSED_TOPIC)).code == 0


async def test_ha_status_of_a_raft_group(tmp_path):
    async with Group(tmp_path, 3) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await group.send(leader, "T")
        result = {}
        for name, broker in group.brokers.items():
            answer = await group.ask(broker, RequestCode.GET_BROKER_HA_STATUS)
            result[name] = loads_object(answer.body)
        of_leader = result.pop(next(n for n, b in group.brokers.items() if b is leader))
        end = leader.store.commitlog.max_offset
        assert (of_leader["master"], of_leader["inSyncSlaveNums"]) == (True, 2)
        assert of_leader["masterCommitLogMaxOffset"] <= end
        raft = {f"127.0.0.1:{port}" for port in group.ports.values()}
        for link in of_leader["haConnectionInfo"]:
            assert link["addr"] in raft
            assert link["diff"] == of_leader["masterCommitLogMaxOffset"] - link["slaveAckOffset"]
        for follower in result.values():
            client = follower["haClientRuntimeInfo"]
            assert (follower["master"], client["isActivated"]) == (False, True)
            assert client["masterAddr"] == leader.roles.leader_address


CHECKED = {
    ("T", ""): 0,
    ("T", "TAGS\x01a\x02"): 0,
    ("T", KEYED): 13,
    ("T", "DELAY\x011\x02"): 13,
    ("T", HALF): 13,
    ("Ordered", KEYED): 0,
    ("Ordered", ""): 13,
    ("Ordered", "TIMER_DELAY_MS\x011\x02"): 13,
    ("Late", "DELAY\x011\x02"): 0,
    ("Late", "TIMER_DELAY_MS\x0160000\x02"): 0,
    ("Late", ""): 13,
    ("Sold", HALF): 0,
    ("Sold", ""): 13,
    ("Any", KEYED): 0,
    ("Any", HALF): 0,
    ("%RETRY%cg", "DELAY\x011\x02"): 0,
    ("%DLQ%cg", ""): 0,
}


@pytest.mark.parametrize("check", ["true", "false"])
async def test_send_of_another_message_type_than_the_topics_is_rejected(tmp_path, check):
    settings = {"enableTopicMessageTypeCheck": check, "enableMixedMessageType": "true"}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        kinds = {"T": "", "Ordered": "FIFO", "Late": "DELAY", "Sold": "TRANSACTION", "Any": "MIXED"}
        for topic, kind in kinds.items():
            await put(group, broker, topic, f"+message.type={kind}" if kind else "")
        for topic in ("%RETRY%cg", "%DLQ%cg"):
            await put(group, broker, topic)
        for (topic, properties), code in CHECKED.items():
            answer = await group.send(broker, topic, properties=properties)
            expected = code if check == "true" else 0
            assert answer.code == expected, (topic, properties, answer.remark)
            if answer.code:
                assert "TopicMessageType validate failed" in answer.remark
        await put(group, broker, "Ordered", "+message.type=NORMAL")
        assert (await group.send(broker, "Ordered")).code == 0


async def test_topic_attributes_in_classic_mode(tmp_path):
    """A slave has them from its master; both have them in topics.json."""
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert (await put(pair, pair.master, attributes=FIFO)).code == 0
        assert await attributes_of(pair, pair.master) == {"message.type": "FIFO"}
        await until(lambda: "T" in pair.slave.state.topics.entries)
        assert pair.slave.state.topics.entries["T"].message_type == "FIFO"
        stored = (tmp_path / "master" / "config" / "topics.json").read_bytes()
        bean = orjson.loads(stored)["topicConfigTable"]["T"]
        assert bean["attributes"] == {"message.type": "FIFO"}


async def both(group):
    """The leader, and a follower that knows its address."""
    leader = await group.leading()
    follower = next(b for b in group.brokers.values() if b is not leader)
    await until(lambda: follower.roles.leader_address == leader.address)
    return leader, follower


async def test_definition_changes_at_a_follower_are_the_leaders(tmp_path):
    """Apache's tools send a definition to every broker of a cluster."""
    group_bean = orjson.dumps({"groupName": "cg", "retryMaxTimes": 7})
    async with Group(tmp_path, 3) as group:
        leader, follower = await both(group)
        assert (await put(group, follower, queues=6)).code == 0
        assert leader.state.topics.get("T").write_queue_count == 6
        answer = await group.ask(
            follower, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group_bean
        )
        assert answer.code == 0, answer.remark
        assert leader.state.groups.get("cg").retry_times_max == 7
        refused = await put(group, follower, attributes="+color=red")
        assert (refused.code, "unsupported key" in refused.remark) == (1, True)
        assert (
            await group.ask(follower, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        ).code == 0
        assert leader.state.topics.get("T") is None


async def test_passed_on_change_is_not_passed_on_again(tmp_path):
    async with Group(tmp_path, 3) as group:
        _, follower = await both(group)
        command = RemotingCommand.request(PUT, TopicHeader("T", 4, 4, 6).to_ext())
        command.remark = PASSED_ON
        answer = await group.client.invoke(follower.address, command, 60_000)
        assert (answer.code, answer.remark[:12]) == (14, "[NOT_LEADER]")
