"""Messages whose consumption failed: given back (36), sent to the retry topic, dead letters."""

import aiohttp
import orjson
import pytest

from raftmq.broker.send.retry_policy import given_back, retry_or_dead_letter
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import delete_group, put_group
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.headers import SendHeader
from raftmq.store.dispatch import SCHEDULE_TOPIC
from raftmq.store.properties import decode_properties, joined
from raftmq.store.record import (
    SYS_TRANSACTION_COMMIT,
    MessageRecord,
    decode_offset_message_id,
    decode_record,
    offset_message_id,
    walk_records,
)
from tests.broker.cluster import Group
from tests.broker.delayed.test_delay_group import PATIENT, everything
from tests.broker.send.test_frame_builder import batch_body
from tests.broker.send.test_service import Bench
from tests.waiting import until

LEVELS = " ".join(["20ms"] * 6)


def stored(topic="T", times=0, properties=b"UNIQ_KEY\x01A\x02WAIT\x01true\x02", sys_flag=0):
    return MessageRecord(
        topic, b"x", properties, 2, 7, 5, 4096, sys_flag, 11, ("10.0.0.9", 4000), 12,
        ("127.0.0.1", 10911), times, 0,
    )  # fmt: skip


def back(record, level=0, times_max=16, queues=1):
    message = given_back(record, "g", queues, level, times_max, (1, 2, 3, 4, 5, 6))
    return message, decode_properties(message.properties)


def test_first_failed_consumption_is_retried_at_delay_level_3():
    message, properties = back(stored())
    assert (message.topic, message.queue_id) == (SCHEDULE_TOPIC, 2)
    assert properties == {
        "UNIQ_KEY": "A",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": properties["ORIGIN_MESSAGE_ID"],
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert decode_offset_message_id(properties["ORIGIN_MESSAGE_ID"]) == (("127.0.0.1", 10911), 4096)
    assert (message.reconsume, message.born_ms, message.flag) == (1, 11, 7)


@pytest.mark.parametrize(
    ("times", "level", "times_max", "wanted"),
    [
        (0, 0, 16, "3"),
        (2, 0, 16, "5"),
        (9, 0, 16, "6"),  # the last there is
        (0, 2, 16, "2"),
        (15, 1, 16, "1"),
        (16, 0, 16, "0"),
        (16, 1, 16, "0"),
        (0, -1, 16, "0"),
        (0, 0, 0, "0"),
        (3, 0, -1, "0"),
    ],
)
def test_retry_delay_level_or_dead_letter_by_count(times, level, times_max, wanted):
    message, properties = back(stored("%RETRY%g", times), level, times_max)
    assert properties.get("DELAY") == wanted
    assert message.reconsume == times + 1
    if wanted == "0":
        assert (message.topic, message.queue_id) == ("%DLQ%g", 0)
        assert properties["DLQ_ORIGIN_TOPIC"] == properties["RETRY_TOPIC"]
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]


def test_retry_keeps_its_first_origin_topic_and_id():
    kept = b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01ID\x02REAL_TOPIC\x01%RETRY%g\x02"
    _, properties = back(stored("%RETRY%g", 1, kept))
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("First", "ID")


def test_retry_topic_property_of_a_sender_is_overwritten():
    _, properties = back(stored("T", 0, b"RETRY_TOPIC\x01Other\x02"))
    assert properties["RETRY_TOPIC"] == "T"


def test_retries_are_spread_and_a_committed_transaction_can_be_retried():
    message, properties = back(stored(sys_flag=SYS_TRANSACTION_COMMIT), queues=3)
    assert properties["REAL_QID"] == str(4096 % 3)
    assert message.sys_flag == SYS_TRANSACTION_COMMIT


@pytest.mark.parametrize(
    ("times", "told_max", "ordered", "dead"),
    [
        ("0", None, False, False),
        ("3", None, False, False),
        ("4", None, False, True),
        ("4", "4", False, False),
        ("5", "4", False, True),
        ("4", "4", True, True),
        ("0", "4", True, True),
        ("0", None, True, False),  # sent again by an operator
        ("4", None, True, True),
    ],
)
def test_send_to_the_retry_topic_beyond_the_limit_is_a_dead_letter(times, told_max, ordered, dead):
    """Beyond the most, or from a group that holds locks: one in order sends what it gives up."""
    ext = {"b": "%RETRY%g", "e": "2", "j": times, "i": "DELAY\x013\x02A\x01b\x02"}
    if told_max is not None:
        ext["l"] = told_max
    result = retry_or_dead_letter(
        ext, SubscriptionGroup("g", retry_times_max=3), lambda group: ordered
    )
    if dead:
        properties = "DELAY\x01-1\x02A\x01b\x02"
        assert result == ext | {"b": "%DLQ%g", "e": "0", "i": properties}
    else:
        assert result is ext


def test_send_path_stores_retries_and_dead_letters():
    bench = Bench()
    bench.state.apply(1, 0, put_group(SubscriptionGroup("g", retry_times_max=2)))
    retry = {"b": "%RETRY%g", "i": "DELAY\x013\x02"}
    bench.send(**retry, j="2")  # the topic is created, then another
    bench.send(**retry, j="3")
    while bench.log.commands:
        bench.log.commit_commands(bench.sends.topic_changed)
    bench.send(**retry, j="3", l="3")
    frame = bench.log.cut(bench.sends)
    records = [decode_record(frame.data, at) for at, _ in walk_records(frame.data)]
    assert sorted((r.topic, r.queue_id, r.reconsume_times) for r in records) == [
        ("%DLQ%g", 0, 3),
        (SCHEDULE_TOPIC, 2, 2),
        (SCHEDULE_TOPIC, 2, 3),
    ]
    bench.send(batch_body((b"a", b"", 0)), code=320, b="%RETRY%g")
    bench.send(**retry, j="many")
    answers = bench.connection.answers()
    assert [a.code for a in answers] == [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR]


def test_retry_of_an_invalid_group_is_rejected():
    bench = Bench(auto_create_subscription_group=False)
    bench.send(b="%RETRY%g")
    bench.state.apply(1, 0, put_group(SubscriptionGroup("h")))
    bench.send(b="%RETRY%h")
    bench.log.commit_commands()
    bench.state.apply(9, 0, delete_group("h", offsets=False))
    bench.send(b="%RETRY%h")
    codes = [answer.code for answer in bench.connection.answers()]
    assert codes == [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST] * 2


async def give_back(group, broker, record, level=0, name="g", offset=None, **more):
    ext = {"offset": str(record.physical_offset if offset is None else offset), "group": name}
    ext |= {"delayLevel": str(level), "originTopic": record.topic, "unitMode": "false"} | more
    return await group.ask(broker, RequestCode.CONSUMER_SEND_MSG_BACK, ext)


async def one(group, broker, topic, queues=1):
    """The only message of a topic, once it is there."""
    result = []
    await until(lambda: any(broker.store.queues.end_of(topic, queue) for queue in range(queues)))
    result += await everything(group, broker, topic, queues)
    (record,) = result
    return record


async def test_message_is_retried_until_it_is_a_dead_letter(tmp_path):
    async with Group(tmp_path, messageDelayLevel=LEVELS) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await group.send(leader, "T", b"bad", 1, "UNIQ_KEY\x01A\x02TAGS\x01t\x02")
        record = await one(group, leader, "T", 4)
        for times in (1, 2):
            answer = await give_back(group, leader, record, maxReconsumeTimes="2")
            assert (answer.code, answer.body) == (0, b"")
            await until(lambda times=times: leader.store.queues.end_of("%RETRY%g", 0) == times)
            pulled = await everything(group, leader, "%RETRY%g", 1)
            assert len(pulled) == times
            record = pulled[-1]
            properties = decode_properties(record.properties)
            assert (record.reconsume_times, properties["RETRY_TOPIC"]) == (times, "T")
            assert (properties["UNIQ_KEY"], properties["DELAY"]) == ("A", str(2 + times))
        assert (await give_back(group, leader, record, maxReconsumeTimes="2")).code == 0
        dead = await one(group, leader, "%DLQ%g")
        properties = decode_properties(dead.properties)
        assert (dead.body, dead.reconsume_times) == (b"bad", 3)
        assert properties["DLQ_ORIGIN_TOPIC"] == "T"
        assert leader.state.topics.get("%DLQ%g").perm == 6
        assert leader.state.groups.get("g") is not None
        # A consumer's own way, should giving back fail: a send to the retry topic.
        for reconsumed in ("2", "3"):
            header = SendHeader(
                "CLIENT_INNER_PRODUCER", "%RETRY%g", "TBW102", 4, -1, 0, 1, 0,
                "RETRY_TOPIC\x01T\x02UNIQ_KEY\x01A\x02DELAY\x014\x02MAX_RECONSUME_TIMES\x012\x02",
            )  # fmt: skip
            ext = header.to_ext(310) | {"j": reconsumed, "l": "2"}
            answer = await group.ask(leader, RequestCode.SEND_MESSAGE_V2, ext, b"again")
            assert answer.code == 0
        await until(lambda: leader.store.queues.end_of("%RETRY%g", 0) == 3)
        assert leader.store.queues.end_of("%DLQ%g", 0) == 2


async def test_message_given_up_by_an_orderly_consumer_is_a_dead_letter(tmp_path):
    """Java's 4.x sends it when its times are just the most."""
    async with Group(tmp_path, 1) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await group.create_topic(leader, "%RETRY%g", 1)
        queue = {"topic": "T", "brokerName": "group-a", "queueId": 0}
        body = orjson.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]})
        assert (await group.ask(leader, RequestCode.LOCK_BATCH_MQ, {}, body)).code == 0
        header = SendHeader(
            "CLIENT_INNER_PRODUCER", "%RETRY%g", "TBW102", 4, -1, 0, 1, 0,
            "RETRY_TOPIC\x01T\x02UNIQ_KEY\x01A\x02DELAY\x016\x02",
        )  # fmt: skip
        ext = header.to_ext(310) | {"j": "3", "l": "3"}
        assert (await group.ask(leader, RequestCode.SEND_MESSAGE_V2, ext, b"given up")).code == 0
        dead = await one(group, leader, "%DLQ%g")
        assert (dead.body, dead.reconsume_times) == (b"given up", 3)
        assert leader.store.queues.end_of(SCHEDULE_TOPIC, 5) == 0


async def test_invalid_consumer_send_back_is_rejected(tmp_path):
    async with Group(tmp_path, autoCreateSubscriptionGroup="false") as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        assert (await group.send(leader, "T", b"x")).code == 0
        await until(lambda: leader.store.queues.end_of("T", 0) == 1)
        data = leader.store.reads.get_messages("T", 0, 0, 1, 1000).buffers[0]
        record = decode_record(data)
        unknown = await give_back(group, leader, record)
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await leader.engine.propose_command(put_group(SubscriptionGroup("g")))
        none = SubscriptionGroup("none", retry_queue_count=0)
        await leader.engine.propose_command(put_group(none))
        assert (await give_back(group, leader, record, name="none")).code == 0
        assert leader.state.topics.get("%RETRY%none") is None
        for offset in (record.physical_offset + 1, 0, -5, 1 << 40):
            answer = await give_back(group, leader, record, offset=offset)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"offset {offset}" in answer.remark
        missing = await group.ask(leader, RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g"})
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert (await give_back(group, leader, record, level=-1)).code == 0
        assert leader.store.queues.end_of("%DLQ%g", 0) == 1


async def test_each_retry_is_delivered_once_over_a_failover(tmp_path):
    """A message given back and answered comes again once, under any leader; followers take
    nothing."""
    async with Group(tmp_path, 3, messageDelayLevel="1s 1s 300ms", **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, "T")
        for number in range(12):
            properties = f"UNIQ_KEY\x01K{number}\x02"
            assert (await group.send(leader, "T", b"x", number % 4, properties)).code == 0
        records = await everything(group, leader, "T")
        follower = next(b for name, b in group.brokers.items() if name != first)
        await until(lambda: follower.state.applied_index == leader.state.applied_index)
        read = await everything(group, follower, "T")  # offsets are the same on every replica
        refused = await give_back(group, follower, read[0])
        assert (refused.code, refused.ext["leaderAddr"]) == (14, leader.address)
        for record in read:
            assert (await give_back(group, leader, record)).code == 0
        await group.kill(first)
        second = await group.leading()
        await until(lambda: second.store.queues.end_of("%RETRY%g", 0) == 12)
        retried = await everything(group, second, "%RETRY%g", 1)
        keys = sorted(decode_properties(r.properties)["UNIQ_KEY"] for r in retried)
        assert keys == sorted(decode_properties(r.properties)["UNIQ_KEY"] for r in records)
        await until(lambda: second.state.delays.get(3) == 12)
        assert second.store.queues.end_of("%RETRY%g", 0) == 12


async def test_http_resends_a_dead_letter_stored_by_this_broker(tmp_path):
    async with Group(tmp_path, messageDelayLevel=LEVELS, httpPort="0") as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        sent = "UNIQ_KEY\x01A\x02TAGS\x01t\x02K\x01b\x01c\x02"
        await group.send(leader, "T", b"bad", 0, sent)
        record = await one(group, leader, "T", 4)
        assert (await give_back(group, leader, record, maxReconsumeTimes="1")).code == 0
        record = await one(group, leader, "%RETRY%g")
        assert (await give_back(group, leader, record, level=-1)).code == 0
        dead = await one(group, leader, "%DLQ%g")
        name = offset_message_id(dead.store_host, dead.physical_offset)
        url = f"http://{leader.http.address}/api/v1/messages/{name}/resend"
        async with aiohttp.ClientSession() as session, session.post(url) as answer:
            assert answer.status == 201
            sent = await answer.json()
        assert (sent["topic"], sent["msgId"]) == ("%RETRY%g", "A")
        again = (await everything(group, leader, "%RETRY%g", 1))[-1]
        properties = decode_properties(again.properties)
        assert (again.body, again.reconsume_times) == (b"bad", 0)
        assert (properties["RETRY_TOPIC"], properties["TAGS"]) == ("T", "t")
        assert properties["K"] == "b\x01c"
        assert "DLQ_ORIGIN_TOPIC" not in properties


def test_retry_has_the_origin_group_of_its_own_group():
    record = stored(properties=joined({"ORIGIN_GROUP": "other", "UNIQ_KEY": "A"}))
    assert back(record)[1]["ORIGIN_GROUP"] == "g"
    group = SubscriptionGroup("g")
    ext = {"b": "%RETRY%g", "i": "ORIGIN_GROUP\x01other\x02A\x01b\x02"}
    sent = retry_or_dead_letter(ext, group, lambda _: False)
    assert sent == ext | {"i": "ORIGIN_GROUP\x01g\x02A\x01b\x02"}
    assert retry_or_dead_letter(sent, group, lambda _: False) is sent
    popped = ext | {"i": "1ST_POP_TIME\x017\x02A\x01b\x02"}
    assert retry_or_dead_letter(popped, group, lambda _: False) == ext | {"i": "A\x01b\x02"}
