"""Rights hold by what is touched: every code of real brokers and a real name server is asked, with
made-up fields, by an account that may nothing; and by one that may something, for what is not its.
"""

import asyncio
import contextlib
import os
import random
from typing import Any, cast

import orjson
import pytest

from raftmq.broker.http.messageviews import record_id
from raftmq.broker.messages.send_request import Outgoing
from raftmq.broker.send.callbacks import Completion
from raftmq.broker.transactions.service import _needs_of
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.remoting.acl import Credentials
from raftmq.remoting.acl.needs import BROKER, NAME_SERVER, NAME_SERVER_READS, NOTHING
from raftmq.remoting.admin_headers import ConsumeDirectlyHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import EndTransactionHeader, PullHeader, SendHeader
from raftmq.remoting.names import TRACE_TOPIC
from raftmq.store.record import decode_record, offset_message_id
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until

ADMIN = Credentials("administrator", "sesame-open-1")
NOBODY = Credentials("may-nothing", "sesame-open-2")
OWNER = Credentials("owns-one-topic", "sesame-open-3")
PLAIN_ACL = """
accounts:
  - {accessKey: administrator, secretKey: sesame-open-1, admin: true}
  - {accessKey: may-nothing, secretKey: sesame-open-2}
  - {accessKey: owns-one-topic, secretKey: sesame-open-3, topicPerms: [Own=PUB|SUB],
     groupPerms: [own=SUB]}
"""
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
OWN = orjson.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}).decode()
ROUNDS = 12  # made-up requests of a code
# What an account without any right is answered, and why that does no harm. All else is refused.
HARMLESS = {
    10: "its traces: every account may write RMQ_SYS_TRACE_TOPIC",
    310: "the same",
    320: "the same",
    28: "figures and role of the broker: what health checks ask",
    33: "there is no message at that place",
    34: "it says that it is a producer; what is sent to producers is judged by topic",
    35: "it ends its own producer, or one that is not there",
    37: "it decides nothing, or there is no half message at that place",
    46: "it asks about nobody's topic and group whether a filter can be understood",
    52: "a number and a time",
}
PLANTED = ("TopSecret", "secret-group", "secret-body", "secret-client", "secret-producer")


@contextlib.asynccontextmanager
async def secured(tmp_path, mode):
    """A leader or master with access control, which keeps something of everything."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    keys = {
        "aclEnable": "true", "aclFile": path, "innerClientAuthenticationCredentials": OWN,
        "transactionTimeOut": "1h", "storeReplyMessageEnable": "true",
    }  # fmt: skip
    made = Group(tmp_path, **keys) if mode == "raft" else Classic(tmp_path, slaves=0, **keys)
    async with made as group:
        await group.client.close()
        group.client = RemotingClient(credentials=ADMIN)
        broker = await group.leading() if mode == "raft" else group.master
        await plant(group, broker)
        yield group, broker


async def plant(group, broker):
    """A message in a topic, a half message, and one that waits for longer than a test takes; a
    client in a group, and an offset."""
    for topic in ("TopSecret", "Own"):
        assert (await group.create_topic(broker, topic)).code == 0
    broker.where = {}
    kinds = {"plain": "KEYS\x01secret-key\x02", "parked": "DELAY\x0118\x02",
             "half": "TRAN_MSG\x01true\x02PGROUP\x01secret-producer\x02"}  # fmt: skip
    for kind, properties in kinds.items():
        answer = await group.ask(broker, 310, send_ext("TopSecret", properties), b"secret-body")
        broker.where[kind] = int(answer.ext["msgId"][-16:], 16)
    assert (await group.ask(broker, 34, None, beat("secret-client", "secret-group"))).code == 0
    commit = {"consumerGroup": "secret-group", "topic": "TopSecret", "queueId": "0"}
    assert (await group.ask(broker, 15, {**commit, "commitOffset": "1"})).code == 0
    # Offsets are committed a moment after their answer.
    await until(lambda: broker.state.offsets.get("TopSecret", "secret-group", 0) == 1)
    assert "secret-group" in broker.state.groups.entries


def beat(client_id, group=None, producer="secret-producer", topic="TopSecret"):
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumers = [{"groupName": group, "subscriptionDataSet": [subscription]}] if group else []
    body = {"clientID": client_id, "consumerDataSet": consumers}
    return orjson.dumps(body | {"producerDataSet": [{"groupName": producer}]})


def send_ext(topic, properties="", code=310):
    header = SendHeader("pg", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, properties)
    return header.to_ext(code)


@contextlib.asynccontextmanager
async def speaking(broker, who):
    client = RemotingClient(credentials=who)

    async def ask(code: int, ext: Any = None, body: bytes = b"") -> RemotingCommand:
        command = RemotingCommand.request(code, ext and dict(ext), body)
        return await client.invoke(broker.address, command, 60_000)

    cast(Any, ask).client = client
    try:
        yield ask
    finally:
        await client.close()


# ---- every code ----------------------------------------------------------------------------


def made_up(rng, where):
    """Fields and body of a request of any code."""
    topics = ["TopSecret", "%RETRY%secret-group", "SCHEDULE_TOPIC_XXXX", "TestCluster_REPLY_TOPIC",
              "RMQ_SYS_TRANS_HALF_TOPIC", "New", "RMQ_SYS_TRACE_TOPIC", ""]  # fmt: skip
    groups = ["secret-group", "fresh-group", "secret-producer", ""]
    offsets = [str(offset) for offset in (*where.values(), 0, 1, -1, 10**9, 1 << 63)]
    host = ("127.0.0.1", 10911)
    ids = [offset_message_id(host, position) for position in where.values()] + ["", "zz"]
    numbers = [str(number) for number in (-1, 0, 1, 2, 16, 1 << 31)] + ["x", "true"]
    clients = ["secret-client", "nobody-client", ""]
    choices = {
        **dict.fromkeys(("topic", "originTopic"), topics),
        **dict.fromkeys(("group", "groupName", "consumerGroup", "producerGroup", "srcGroup",
                         "destGroup"), groups),
        **dict.fromkeys(("offset", "commitLogOffset", "queueOffset", "commitOffset", "index",
                         "tranStateTableOffset", "timestamp", "beginTimestamp"), offsets),
        **dict.fromkeys(("msgId", "originMsgId"), ids),
        **dict.fromkeys(("clientID", "clientId", "clientAddr"), clients),
        **dict.fromkeys(("queueId", "maxNum", "count", "maxMsgNums", "delayLevel", "sysFlag",
                         "readQueueNums", "writeQueueNums", "perm", "subVersion", "version",
                         "suspendTimeoutMillis", "isForce", "maxReconsumeTimes"), numbers),
        "endTimestamp": [str(1 << 62)], "key": ["secret-key"], "commitOrRollback": ["8", "12", "0"],
        "subscription": ["*", "a || b"], "defaultTopic": ["TBW102"],
        "topicFilterType": ["SINGLE_TAG"],
        "accessKey": ["administrator", "may-nothing"], "secretKey": ["sesame-open-9"],
        "admin": ["true"], "globalWhiteAddrs": ["*"], "op": ["list", "remove", "begin", "read"],
        "recallHandle": ["djEgVG9wU2VjcmV0IGdyb3VwLWEgOTk5OTk5OTk5OTk5OSBr"],
        "raftmqForwardedFrom": ["1.2.3.4:5"], "target": ["", "n0"], "statsName": ["TOPIC_PUT_NUMS"],
        "statsKey": ["TopSecret"], "brokerName": ["group-a"], "clusterName": ["TestCluster"],
        "namespace": ["ORDER_TOPIC_CONFIG"], "value": ["x:1"], "cluster": ["TestCluster"],
    }  # fmt: skip
    ext = {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.85}
    ext.pop("raftmqForwardedFrom" if rng.random() < 0.7 else "", None)
    if rng.random() < 0.8:
        short = send_ext(rng.choice(topics[:-1]), f"REPLY_TO_CLIENT\x01{rng.choice(clients)}\x02")
        ext |= short | SendHeader.parse(short, 310).to_ext(10)
        ext["topic"] = short["b"]
    queue = {"topic": rng.choice(topics), "brokerName": "group-a", "queueId": 0}
    bodies = [
        b"", b"x", b"{}", b"secret", beat("secret-client", rng.choice(groups)),
        beat("new-client"),
        orjson.dumps({"consumerGroup": rng.choice(groups), "clientId": "c", "mqSet": [queue]}),
        orjson.dumps({"groupName": "fresh-group", "retryQueueNums": 1}),
        orjson.dumps({"group": rng.choice(groups), "subscriptionData": {"topic": "TopSecret"}}),
        b"logLevel=DEBUG", b"flushDiskType=SYNC_FLUSH",
    ]  # fmt: skip
    return ext, rng.choice(bodies)


def fingerprint(broker):
    """All that a request may change, but what HARMLESS allows."""
    state, queues = broker.state, broker.store.queues
    ends = {
        (topic, queue_id): (queue.min_offset, queue.max_offset)
        for topic, queue_ids in queues.topics().items()
        for queue_id in queue_ids
        if topic != TRACE_TOPIC and (queue := queues.queue(topic, queue_id))
    }
    clients = broker.clients
    members = {g: {m: id(c.connection) for m, c in one.members.items()}
               for g, one in clients.consumers.items()}  # fmt: skip
    producer = clients.producers["secret-producer"]["secret-client"]
    topics = {name: one for name, one in state.topics.entries.items() if name != TRACE_TOPIC}
    return (
        ends, topics, dict(state.groups.entries), state.offsets.to_json(),
        broker.access.book.current(), broker.config, members, id(producer.connection),
        broker.roles.term, broker.roles.leading, id(clients.producer_connection("secret-client")),
    )  # fmt: skip


async def ask_everything(broker, codes, seed, rounds=ROUNDS):
    """Send every request; return what was wrong, [] if each was refused or harmless."""
    rng = random.Random(seed)
    before = fingerprint(broker)
    wrong: list[Any] = []

    async with speaking(broker, NOBODY) as ask:
        for code in codes:
            for number in range(rounds):
                ext, body = made_up(rng, broker.where)
                given = repr(ext) + repr(body)
                answer = await ask(code, ext, body)
                refused = (answer.remark or "").startswith(EXCEPTION)
                if not refused and code not in HARMLESS:
                    wrong.append((code, number, "answered", answer.code, answer.remark))
                reported = f"{answer.remark} {answer.ext} {answer.body!r}"
                wrong += [(code, number, "handed out", word) for word in PLANTED
                          if word in reported and word not in given]  # fmt: skip
                if fingerprint(broker) != before:
                    wrong.append((code, number, "changed something"))
                    return wrong
    return wrong


@pytest.mark.parametrize("mode", ["raft", "classic"])
async def test_every_request_code_is_rejected_without_rights_or_harmless(tmp_path, mode):
    seed = int(os.environ.get("RIGHTS_SEED", random.randrange(1 << 32)))
    print(f"RIGHTS_SEED={seed}")
    async with secured(tmp_path, mode) as (_, broker):
        served = broker.processor.handlers
        assert set(served) == set(BROKER), "the table has exactly the codes that are served"
        assert await ask_everything(broker, sorted(served), seed) == []


@pytest.mark.parametrize("code", [11, 17, 21, 26, 43, 203, 321, 343])
async def test_removed_right_is_detected(tmp_path, monkeypatch, code):
    monkeypatch.setitem(BROKER, code, NOTHING)
    async with secured(tmp_path, "raft") as (_, broker):
        assert await ask_everything(broker, [code], 1, rounds=60)


async def test_every_name_server_request_code_has_a_right(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    config = NameServerConfig(
        "127.0.0.1", 0, http_enable=False, acl_enable=True, acl_file=str(path)
    )
    rng = random.Random(7)
    async with NameServer(config) as server:
        assert server.processor is not None
        served = server.processor.handlers()
        assert set(served) == set(NAME_SERVER)
        async with speaking(server, NOBODY) as ask:
            for code in sorted(set(served) - NAME_SERVER_READS):
                for _ in range(ROUNDS):
                    answer = await ask(code, *made_up(rng, {"a": 0}))
                    assert (answer.remark or "").startswith(EXCEPTION), code
            await asyncio.gather(
                *(ask(code, *made_up(rng, {"a": 0})) for code in NAME_SERVER_READS for _ in "abc")
            )
        assert server.table.broker_count == server.table.topic_count == 0
        assert server.processor.kv.namespace("ORDER_TOPIC_CONFIG") is None


# ---- what is found at a place in the log ------------------------------------------------------


@pytest.mark.parametrize("mode", ["raft", "classic"])
async def test_log_position_is_readable_only_with_rights_to_its_topic(tmp_path, mode):
    async with secured(tmp_path, mode) as (group, broker):
        stored = await group.ask(broker, 310, send_ext("Own"), b"mine")
        own = int(stored.ext["msgId"][-16:], 16)
        async with speaking(broker, OWNER) as ask:
            assert (await ask(34, None, beat("own-client", "own", "own", "Own"))).code == 0
            given = []

            async def consume(_, request):
                given.append((request.body, request.ext))
                return RemotingCommand.response_to(request, body=b"{}")

            ask.client.register(309, consume)
            for position in (*broker.where.values(), own):
                back = {"offset": str(position), "group": "own", "delayLevel": "0"}
                message_id = offset_message_id(("127.0.0.1", 1), position)
                direct = ConsumeDirectlyHeader("own", "own-client", message_id).to_ext()
                answers = [
                    await ask(code, ext) for code, ext in ((33, back), (36, back), (309, direct))
                ]
                for answer in answers:
                    reported = f"{answer.remark} {answer.ext} {answer.body!r}"
                    assert position == own or not any(word in reported for word in PLANTED)
                    assert (answer.code == 0) == (position == own), (position, answer)
            assert len(given) == 1 and b"mine" in given[0][0]
            assert not {"AccessKey", "Signature"} & set(given[0][1])
            ends = [
                broker.store.queues.end_of("%RETRY%own", 0),
                broker.store.queues.end_of("SCHEDULE_TOPIC_XXXX", 2),
            ]
            assert sum(ends) <= 2  # its own message given back, beside the one that was parked
        assert broker.access.refused_count == 3 * len(broker.where)


async def test_rejected_send_back_creates_no_group(tmp_path):
    async with secured(tmp_path, "raft") as (_, broker):
        async with speaking(broker, OWNER) as ask:
            back = {"offset": str(broker.where["plain"]), "group": "own", "delayLevel": "0"}
            assert (await ask(36, back)).remark.startswith(EXCEPTION)
        assert "own" not in broker.state.groups.entries
        assert broker.state.topics.get("%RETRY%own") is None


async def test_transaction_end_needs_the_right_to_send_to_its_topic(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        end = EndTransactionHeader("secret-producer", 0, broker.where["half"], 12, "x").to_ext()
        async with speaking(broker, OWNER) as ask:
            for ext in (end, end | {"topic": "Own"}, end | {"producerGroup": "wrong"}):
                answer = await ask(37, ext)
                assert answer.remark.startswith(EXCEPTION) and "secret" not in answer.remark
        await until(lambda: broker.halves.open_count == 1)
        assert (await group.ask(broker, 37, end)).code == 0
        assert broker.halves.open_count == 0


async def test_offset_clone_needs_read_rights_to_its_topics(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        await group.ask(broker, 15, {"consumerGroup": "own", "topic": "TopSecret", "queueId": "0",
                                     "commitOffset": "1"})  # fmt: skip
        async with speaking(broker, OWNER) as ask:
            clone = {"srcGroup": "own", "destGroup": "own"}
            assert (await ask(314, clone)).remark.startswith(EXCEPTION)
            assert (await ask(314, clone | {"topic": "Own"})).code == 0


# ---- what a broker sends by itself ---------------------------------------------------------------


async def test_half_message_is_checked_only_at_producers_with_its_rights(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        needs = _needs_of(broker.transactions._record_at(broker.where["half"]))
        asked_of = broker.transactions._producer_of
        async with speaking(broker, OWNER) as ask:
            assert (await ask(34, None, beat("a-stranger"))).code == 0
            for _ in range(4):  # they take turns
                result = asked_of("secret-producer", needs)
                assert (
                    result
                    is broker.clients.producers["secret-producer"]["secret-client"].connection
                )
            await group.client.close()  # the real one leaves
            await until(lambda: "secret-client" not in broker.clients.producers["secret-producer"])
            assert asked_of("secret-producer", needs) is None
            # Nor to who sent a half of its own in that group last.
            half = "TRAN_MSG\x01true\x02PGROUP\x01secret-producer\x02"
            in_its_name = send_ext("Own", half) | {"a": "secret-producer"}  # its producerGroup
            assert (await ask(310, in_its_name, b"own half")).code == 0
            assert broker.halves.senders["secret-producer"].is_open
            assert asked_of("secret-producer", needs) is None
        group.client = RemotingClient(credentials=ADMIN)


async def test_client_id_is_used_and_removed_only_by_its_own_account(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        before = broker.clients.producer_connection("secret-client")
        async with speaking(broker, OWNER) as ask:
            assert (await ask(34, None, beat("secret-client"))).code == 16
            left = {"clientID": "secret-client", "producerGroup": "secret-producer"}
            assert (await ask(35, left)).code == 16
            # Nor are replies to it had by a request in its name.
            wants = "REPLY_TO_CLIENT\x01asking-client\x02CORRELATION_ID\x01c\x02"
            assert (await group.ask(broker, 310, send_ext("Own", wants), b"?")).code == 0
            asking = broker.clients.producer_connection("asking-client")
            assert (await ask(310, send_ext("Own", wants), b"?")).code == 0
            assert broker.clients.producer_connection("asking-client") is asking is not None
            assert broker.clients.producer_connection("secret-client") is before
            # Its own account may: a client that connects anew, before the old end is noticed.
            async with speaking(broker, OWNER) as again:
                assert (await ask(34, None, beat("mine"))).code == 0
                assert (await again(34, None, beat("mine"))).code == 0
                assert (await ask(35, left | {"clientID": "mine"})).code == 0
            assert "mine" not in broker.clients.producers["secret-producer"]
        assert not {c for c in broker.access._speakers if not c.is_open}


async def test_reply_needs_the_right_to_send_to_its_topic(tmp_path):
    async with secured(tmp_path, "raft") as (_, broker):
        topic = "TestCluster_REPLY_TOPIC"
        properties = "REPLY_TO_CLIENT\x01secret-client\x02"
        async with speaking(broker, OWNER) as ask:
            for code, name in ((324, "TopSecret"), (325, "TopSecret"), (324, topic), (325, topic)):
                answer = await ask(code, send_ext(name, properties, code), b"reply")
                assert answer.remark.startswith(EXCEPTION), answer
        assert (
            broker.store.queues.end_of(topic, 0) == 0
            and broker.store.queues.end_of("TopSecret", 0) == 1
        )


async def test_http_api_reads_with_its_own_rights(tmp_path):
    """Its tokens were looked at; an account has nothing to say there."""
    async with secured(tmp_path, "raft") as (_, broker):
        record = decode_record(broker.store.reads.message_at(broker.where["plain"]))
        async with Client(broker.http.address) as client:
            answer = await client.get(f"/api/v1/messages/{record_id(record)}")
        assert answer.status == 200 and "secret-body" in answer.json["text"]


async def test_pull_of_internal_topics_needs_more_than_default_rights(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        fields = {"accessKey": "reads-all", "secretKey": "sesame-open-7", "admin": "false",
                  "defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB",
                  "topicPerms": "TopSecret=DENY"}  # fmt: skip
        assert (await group.ask(broker, 50, fields)).code == 0
        async with speaking(broker, Credentials("reads-all", "sesame-open-7")) as ask:
            for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TopSecret"):
                header = PullHeader("g", topic, 0, 0, 32, 0x4, 0, 0, "*", 0)
                assert (await ask(11, header.to_ext())).remark.startswith(EXCEPTION)
            for position in broker.where.values():
                assert (await ask(33, {"offset": str(position)})).remark.startswith(EXCEPTION)


async def test_retry_of_a_pop_needs_the_rights_of_its_group(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        topic = "%RETRY%secret-group_TopSecret"
        popped = Outgoing(
            topic, 0, b"x", b"ORIGIN_GROUP\x01secret-group\x02", 1, bytes(8), force=True
        )
        ended = Completion()
        broker.sends.store([popped], b"", ended)
        broker.sends.wake()
        await ended.stored()
        messages = broker.store.reads.get_messages(topic, 0, 0, 1, 4096).buffers[0]
        position = {"offset": str(decode_record(messages).physical_offset)}
        for name, code in (("secret-group", 0), ("secret-group_TopSecret", 1)):
            who = Credentials("reads-retries", "sesame-open-9")
            fields = {"accessKey": who.access_key, "secretKey": who.secret_key,
                      "admin": "false", "groupPerms": f"{name}=SUB"}  # fmt: skip
            assert (await group.ask(broker, 50, fields)).code == 0
            async with speaking(broker, who) as ask:
                assert (await ask(33, position)).code == code


async def test_undelivered_message_needs_rights_to_its_destination(tmp_path):
    async with secured(tmp_path, "raft") as (group, broker):
        who = Credentials("reads-delayed", "sesame-open-8")
        fields = {"accessKey": who.access_key, "secretKey": who.secret_key, "admin": "false",
                  "topicPerms": "SCHEDULE_TOPIC_XXXX=SUB,RMQ_SYS_TRANS_HALF_TOPIC=SUB"}  # fmt: skip
        assert (await group.ask(broker, 50, fields)).code == 0
        async with speaking(broker, who) as ask:
            for kind in ("parked", "half"):
                answer = await ask(33, {"offset": str(broker.where[kind])})
                assert answer.remark.startswith(EXCEPTION), kind
