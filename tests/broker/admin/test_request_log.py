"""What mqadmin and other tools change is in the record of what operators do, as changes by HTTP."""

import orjson

from raftmq.broker.admin.operator_log import RESERVE_BYTES
from raftmq.broker.admin.request_log import KINDS
from raftmq.remoting.acl.needs import BROKER
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.admin.test_operator_log import records, told
from tests.broker.http.client import Client
from tests.broker.test_access import ADMIN, ask, guarded, put

Code = RequestCode
# Requests that only admins make and that change nothing, or that only brokers make.
READS = {
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_BROKER_CONSUME_STATS,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_ALL_PRODUCER_INFO,
    Code.GET_BROKER_CONFIG,
    Code.GET_DEFINITIONS,
    Code.TAKE_MESSAGES,
    Code.GET_BROKER_HA_STATUS,
    Code.VIEW_BROKER_STATS_DATA,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    Code.BACKUP,
}
BEHIND_A_GROUP = {  # what tools change with the rights of a group or a topic
    Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.CLONE_GROUP_OFFSET,
    Code.WRITERS,
}


def test_every_changing_admin_request_is_recorded():
    of_admins = {Code(code) for code, needs in BROKER.items() if needs is None}
    assert of_admins - READS == {Code(code) for code in KINDS} - BEHIND_A_GROUP


async def test_operator_log_records_a_remoting_change_before_and_after_it(group, broker, client):
    await group.create_topic(broker, "T", 2)
    header = TopicHeader("T", 0, 0, 6)
    refused = await group.ask(broker, Code.UPDATE_AND_CREATE_TOPIC, header.to_ext())
    assert refused.code != ResponseCode.SUCCESS
    requested, done, again, failed = await records(client, 4)
    assert told(requested) == ("putTopic", "T", "127.0.0.1", "asked")
    assert told(done) == ("putTopic", "T", "127.0.0.1", "done")
    assert requested["id"] == done["id"] != again["id"] == failed["id"]
    assert told(failed) == ("putTopic", "T", "127.0.0.1", "failed")
    assert failed["error"] == refused.remark
    assert {record["via"] for record in (requested, done, failed)} == {"remoting"}
    assert orjson.loads(requested["detail"])["writeQueueNums"] == "2"


async def test_admin_changes_are_accepted_while_sends_are_rejected(group, broker, client):
    """Up to a bound: a flood of changes waits no more than a flood of sends may."""
    await group.create_topic(broker, "T")
    broker.sends._held_bytes = broker.sends.held_bytes_max  # as if so much waited
    assert (await group.send(broker, "T")).code == ResponseCode.SYSTEM_BUSY
    ext = TopicHeader("T", 4, 4, 4).to_ext()
    changed = await group.ask(broker, Code.UPDATE_AND_CREATE_TOPIC, ext)
    assert changed.code == ResponseCode.SUCCESS and broker.state.topics.get("T").perm == 4
    await records(client, 4)
    broker.sends._held_bytes = broker.sends.held_bytes_max + RESERVE_BYTES
    refused = await group.ask(broker, Code.UPDATE_AND_CREATE_TOPIC, ext)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    broker.sends._held_bytes = 0


async def test_operator_log_finds_names_in_request_bodies(group, broker, client):
    body = orjson.dumps({"groupConfigList": [{"groupName": "A"}, {"groupName": "B"}]})
    await group.ask(broker, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)
    body = orjson.dumps({"topic": "T", "consumerGroup": "A", "mode": "POP", "popShareQueueNum": 0})
    await group.ask(broker, Code.SET_MESSAGE_REQUEST_MODE, None, body)
    await group.ask(broker, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b"\xff no JSON")
    result = await records(client, 6)
    assert [record["target"] for record in result[::2]] == ["A, B", "A, T", ""]
    assert result[5]["outcome"] == "failed" and "no JSON" in result[5]["detail"]


async def test_operator_log_truncates_long_bodies(group, broker, client):
    groups = [{"groupName": f"G{number:03}"} for number in range(400)]
    body = orjson.dumps({"groupConfigList": groups})
    answer = await group.ask(broker, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)
    assert answer.code == ResponseCode.SUCCESS
    record = (await records(client, 2))[0]
    assert len(record["detail"]) < 5_000 and len(record["target"]) < 600


async def test_read_only_admin_requests_are_not_recorded(group, broker, client):
    await group.ask(broker, Code.CHANGE_MEMBERS, {"op": "list"})
    await group.ask(broker, Code.WRITERS, {"op": "list", "topic": "T"})
    await group.ask(broker, Code.GET_ALL_TOPIC_CONFIG)
    await group.ask(broker, Code.CHANGE_MEMBERS, {"op": "prefer", "memberId": "n0"})
    result = await records(client, 2)
    assert [told(record) for record in result] == [
        ("putPreferredLeader", "n0", "127.0.0.1", outcome) for outcome in ("asked", "done")
    ]


async def test_operator_log_has_no_secrets(group, broker, client):
    body = b"peerSecret=not-to-be-read-by-anybody\npeerSecert=misspelt-not-to-be-read\n"
    refused = await group.ask(broker, Code.UPDATE_BROKER_CONFIG, None, body)
    assert refused.code != ResponseCode.SUCCESS
    await group.ask(broker, Code.UPDATE_BROKER_CONFIG, None, b"topicsMax=1000")
    changes = {"peerSecret": "not-to-be-read-by-anybody", "peerSecert": "misspelt-not-to-be-read"}
    await client.ask("PATCH", "/api/v1/config", changes, If_Match="*")
    account = {"accessKey": "eve-adams", "secretKey": "not-to-be-read-by-anybody"}
    await group.ask(broker, Code.UPDATE_AND_CREATE_ACL_CONFIG, account)
    result = await records(client, 5)
    assert not any("not-to-be-read" in orjson.dumps(record).decode() for record in result)
    assert [told(record)[::3] for record in result[:3]] == [
        ("changeConfig", "failed"), ("changeConfig", "done"), ("changeConfig", "failed"),
    ]  # fmt: skip
    assert "topicsMax=1000" in result[1]["detail"]
    assert told(result[3])[:2] == ("putAccount", "eve-adams")


async def test_operator_log_names_the_signing_account_without_secrets(tmp_path, caplog):
    caplog.set_level("WARNING", "raftmq.broker.acl")
    async with guarded(tmp_path) as group:
        broker = await group.leading()
        code, fields = (
            Code.UPDATE_AND_CREATE_ACL_CONFIG,
            put("eve-adams", secretKey="sesame-open-4"),
        )
        assert (await ask(broker, ADMIN, code, fields)).code == ResponseCode.SUCCESS
        trusted = {"globalWhiteAddrs": "127.0.0.1"}
        await ask(broker, ADMIN, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, trusted)
        # Who need not sign may name any account.
        await ask(
            broker, None, Code.DELETE_ACL_CONFIG, {"accessKey": "eve-adams", "AccessKey": "x"}
        )
        async with Client(broker.http.address) as client:
            result = await records(client, 6)
    assert [told(record)[:3] for record in result[::2]] == [
        ("putAccount", "eve-adams", ADMIN.access_key),
        ("putWhiteAddresses", "", ADMIN.access_key),
        ("deleteAccount", "eve-adams", "127.0.0.1"),
    ]
    logged = [m.rpartition("by=")[2] for m in caplog.messages if m.startswith("acl_changed")]
    assert logged == [ADMIN.access_key, ADMIN.access_key, "127.0.0.1"]
    assert not any(
        "sesame" in record["detail"] or "Signature" in record["detail"] for record in result
    )
