"""A group of one voter, end to end over loopback."""

import asyncio

import orjson
import pytest

from raftmq.broker.errors import StateError
from raftmq.broker.tables.snapshot import FILES
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import (
    PullHeader,
    PullResponseHeader,
    SendHeader,
    SendResponseHeader,
)
from raftmq.store.disk import DiskUsage
from raftmq.store.errors import StoreError
from raftmq.store.record import decode_record, walk_records
from raftmq.store.retention import Expired
from tests.broker.cluster import Group
from tests.broker.tables.test_tables import checksum_of
from tests.waiting import until


def records(body):
    return [decode_record(body, at) for at, _ in walk_records(body)]


async def test_create_topic_send_and_pull(group):
    broker = await group.leading()
    assert (await group.create_topic(broker, "T")).code == 0
    for number in range(5):
        response = await group.send(broker, "T", b"m%d" % number, queue=1)
        assert response.code == 0
        header = SendResponseHeader.parse(response.ext)
        assert (header.queue_id, header.queue_offset) == (1, number)
    pulled = await group.pull(broker, "T", 2, queue=1)
    assert (pulled.code, pulled.remark) == (0, "FOUND")
    found = PullResponseHeader.parse(pulled.ext)
    assert (found.next_offset, found.offset_min, found.offset_max) == (5, 0, 5)
    result = records(pulled.body)
    assert [record.body for record in result] == [b"m2", b"m3", b"m4"]
    viewed = await group.ask(
        broker, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(result[0].physical_offset)}
    )
    assert decode_record(viewed.body).body == b"m2"
    for code, answer in ((RequestCode.GET_MAX_OFFSET, "5"), (RequestCode.GET_MIN_OFFSET, "0")):
        response = await group.ask(broker, code, {"topic": "T", "queueId": "1"})
        assert response.ext["offset"] == answer
    ext = {"topic": "T", "queueId": "1", "timestamp": "0"}
    assert (await group.ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext[
        "offset"
    ] == "0"
    ext["timestamp"] = str(result[-1].store_timestamp_ms + 1)
    assert (await group.ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext[
        "offset"
    ] == "5"
    for boundary, result_code, offset in (
        ("upper", 0, "4"),
        ("LOWER", 0, "5"),
        ("MIDDLE", 1, None),
    ):
        ext["boundaryType"] = boundary
        answer = await group.ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        assert (answer.code, answer.ext.get("offset")) == (result_code, offset)
    earliest = await group.ask(
        broker, RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "1"}
    )
    assert 0 < int(earliest.ext["timestamp"]) <= result[0].store_timestamp_ms


async def test_request_with_a_namespace_is_rejected(group):
    broker = await group.leading()
    assert (await group.create_topic(broker, "T")).code == 0
    assert (await group.send(broker, "T")).code == 0
    own = {"nsd": "true", "ns": "blue"}
    sent = SendHeader("pg", "T", "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "")
    pulled = PullHeader("cg", "T", 0, 0, 32, 0x4, 0, 0, "*", 0)
    queue = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
    beat = orjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "cg"}]})
    for code, ext, body in (
        (RequestCode.SEND_MESSAGE_V2, sent.to_ext(310), b"x"),
        (RequestCode.SEND_MESSAGE, sent.to_ext(10), b"x"),
        (RequestCode.PULL_MESSAGE, pulled.to_ext(), b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, queue, b""),
        (RequestCode.HEART_BEAT, {}, beat),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TopicHeader("U", 1, 1, 6).to_ext(), b""),
    ):
        answer = await group.ask(broker, code, ext | own, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER, code
        assert "namespaceV2 'blue' separates nothing" in answer.remark
        assert (await group.ask(broker, code, ext | {"ns": ""}, body)).code == 0, code
    assert (await group.pull(broker, "T", 0)).ext["maxOffset"] == "3"


async def test_automatically_created_topic_and_concurrent_sends(group):
    broker = await group.leading()
    responses = await asyncio.gather(*(group.send(broker, "New", b"x", queue=2) for _ in range(50)))
    offsets = sorted(SendResponseHeader.parse(r.ext).queue_offset for r in responses)
    assert offsets == list(range(50))
    topic = await group.ask(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": "New"})
    assert orjson.loads(topic.body)["writeQueueNums"] == 4


async def test_pull_statuses(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await group.send(broker, "T", properties="TAGS\x01a\x02")
    for offset, code, remark, following in (
        (1, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 1),
    ):
        response = await group.pull(broker, "T", offset)
        assert (response.code, response.remark) == (code, remark)
        assert PullResponseHeader.parse(response.ext).next_offset == following
    assert (await group.pull(broker, "T", 0, tags="b")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (await group.pull(broker, "T", 0, tags="b || a")).code == 0
    assert (await group.pull(broker, "T", 0, queue=3)).code == ResponseCode.PULL_NOT_FOUND
    assert (await group.pull(broker, "T", 5, queue=3)).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await group.pull(broker, "T", 0, queue=4)).code == ResponseCode.SYSTEM_ERROR
    assert (await group.pull(broker, "None", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    no_group = await group.pull(broker, "T", 0, flags=0)
    assert no_group.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_long_polling_wakes_only_for_its_tag_and_times_out(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    held = asyncio.ensure_future(group.pull(broker, "T", 0, flags=0x6, tags="wanted"))
    await until(lambda: broker.pulls.holds.count == 1)
    await group.send(broker, "T", properties="TAGS\x01other\x02")
    assert broker.pulls.holds.count == 1
    await group.send(broker, "T", b"this", properties="TAGS\x01wanted\x02")
    response = await held
    assert [record.body for record in records(response.body)] == [b"this"]
    short = await group.pull(broker, "T", 2, flags=0x6, wait_ms=30)
    assert short.code == ResponseCode.PULL_NOT_FOUND
    assert broker.pulls.holds.count == 0


async def test_offset_commits_are_answered_after_commit(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    assert (await group.commit(broker, "T", 0, 7)).code == 0
    assert broker.state.offsets.get("T", "cg", 0) == 7
    connection = await group.client.connect(broker.address)
    for offset in (8, 9):
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        connection.invoke_oneway(command)
    assert (await group.committed(broker, "T", 0)).ext["offset"] == "9"


async def test_new_group_starts_at_offset_zero_of_a_complete_hot_queue(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await group.send(broker, "T")
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    assert (await group.ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"] == "0"
    ext["setZeroIfNotFound"] = "false"  # as Java's clients of 5.x, which ask for the end next
    for name in ("T", "None"):
        ext["topic"] = name
        unset = await group.ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        assert unset.code == ResponseCode.QUERY_NOT_FOUND


async def test_limits_and_unsupported_requests(tmp_path):
    async with Group(tmp_path, maxMessageSize=2048, waitingBytesMax=16384) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        assert (await group.send(broker, "T", b"x" * 2048)).code == 0
        big = await group.send(broker, "T", b"x" * 2049)
        assert big.code == ResponseCode.MESSAGE_ILLEGAL
        never = await group.send(broker, "T", properties="TIMER_DELAY_SEC\x01soon\x02")
        assert never.code == ResponseCode.MESSAGE_ILLEGAL
        sends = await asyncio.gather(*(group.send(broker, "T", b"x" * 1500) for _ in range(40)))
        codes = {response.code for response in sends}
        assert codes == {0, ResponseCode.SYSTEM_BUSY}
        busy = next(r for r in sends if r.code)
        assert busy.remark.startswith("[BUSY]")
        unknown = await group.ask(broker, 299_999, {})
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_topic_and_group_administration(group):
    broker = await group.leading()
    await group.create_topic(broker, "T", 2)
    await group.send(broker, "T", queue=1)
    await group.commit(broker, "T", 1, 1)
    table = orjson.loads((await group.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert table["topicConfigTable"]["T"]["readQueueNums"] == 2
    assert table["topicConfigTable"]["TBW102"]["perm"] == 7
    body = orjson.dumps({"groupName": "g", "retryMaxTimes": 3, "consumeTimeoutMinute": 5})
    response = await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert response.code == 0
    groups = orjson.loads(
        (await group.ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
    )["subscriptionGroupTable"]
    assert (groups["g"]["retryMaxTimes"], groups["g"]["consumeTimeoutMinute"]) == (3, 5)
    info = orjson.loads((await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    table = info["table"]
    assert (table["raftSelfId"], table["raftRole"], table["raftLeader"]) == ("n0", "leader", "n0")
    assert table["raftLeaderReady"] == "true"
    assert int(table["raftCommitIndex"]) == int(table["raftAppliedIndex"]) > 0
    await until(lambda: group.recorded(broker) == 4)  # of the topic, and of the group
    assert int(table["msgPutTotalTodayNow"]) in (4, 5)
    config = await group.ask(broker, RequestCode.GET_BROKER_CONFIG)
    assert b"brokerName=group-a\n" in config.body
    response = await group.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert response.code == 0
    assert broker.state.topics.get("T") is None
    assert broker.state.offsets.get("T", "cg", 1) is None


async def test_heartbeats_create_groups_and_notify_members(group):
    broker = await group.leading()
    reported = []
    other = type(group.client)(
        {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED): lambda _, c: reported.append(c.ext)}
    )
    try:
        for client, name in ((other, "c1"), (group.client, "c2")):
            body = orjson.dumps(
                {
                    "clientID": name,
                    "producerDataSet": [{"groupName": "pg"}],
                    "consumerDataSet": [
                        {
                            "groupName": "cg2",
                            "consumeType": "CONSUME_PASSIVELY",
                            "messageModel": "CLUSTERING",
                            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                            "subscriptionDataSet": [
                                {"topic": "T", "subString": "a", "codeSet": [], "subVersion": 1}
                            ],
                        }
                    ],
                }
            )
            command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
            assert (await client.invoke(broker.address, command, 60_000)).code == 0
        await until(lambda: len(reported) >= 2)
        assert reported[-1] == {"consumerGroup": "cg2"}
        ext = {"consumerGroup": "cg2"}
        listed = await group.ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
        assert orjson.loads(listed.body) == {"consumerIdList": ["c1", "c2"]}
        # Two commands, of which the group's is the later one, maybe in another frame.
        await until(lambda: broker.state.groups.get("cg2") is not None)
        assert broker.state.topics.get("%RETRY%cg2") is not None
        assert broker.clients.subscription("cg2", "T").codes == frozenset({97})
        connections = await group.ask(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
        assert len(orjson.loads(connections.body)["connectionSet"]) == 2
    finally:
        await other.close()
    await until(lambda: broker.clients.client_ids("cg2") == ["c2"])


async def test_restart_with_and_without_config_files(tmp_path):
    group = Group(tmp_path)
    async with group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        for number in range(20):
            await group.send(broker, "T", b"m%d" % number)
        await group.commit(broker, "T", 0, 11)
        await group.stop("n0")
        store = tmp_path / "n0"
        assert not (store / "abort").exists()
        saved = orjson.loads((store / "config" / "consumerOffset.json").read_bytes())
        assert saved["offsetTable"] == {"T@cg": {"0": 11}}
        for remove in (False, True):
            if remove:
                for path in (store / "config").iterdir():
                    path.unlink()
            await group.start("n0")
            broker = await group.leading()
            assert (await group.committed(broker, "T", 0)).ext["offset"] == "11"
            pulled = await group.pull(broker, "T", 0)
            assert [r.body for r in records(pulled.body)] == [b"m%d" % n for n in range(20)]
            await group.stop("n0")
        await group.start("n0")
        broker = await group.leading()
        response = await group.send(broker, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 20
        await group.kill("n0")
        assert (store / "abort").exists()
        await group.start("n0")
        broker = await group.leading()
        response = await group.send(broker, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 21


async def test_replay_starts_after_the_snapshot(tmp_path):
    async with Group(tmp_path, flushDiskType="SYNC_FLUSH") as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        await group.send(broker, "T")
        await until(lambda: broker.state.group.value)  # nothing more is applied by itself
        await broker.keeper.write_snapshot()
        covered = broker.state.applied_index
        await group.commit(broker, "T", 0, 1)
        await group.kill("n0")
        broker = await group.start("n0")
        assert broker.application.recovered_index == covered
        await group.leading()
        assert broker.state.offsets.get("T", "cg", 0) == 1


async def test_failed_snapshot_is_reported_once(tmp_path, monkeypatch, caplog):
    """Until one is written again."""
    monkeypatch.setattr("raftmq.broker.checkpointer.DURABLE_WAIT_MS", 0)
    async with Group(tmp_path, flushDiskType="SYNC_FLUSH") as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        await until(lambda: broker.state.group.value)  # nothing more is applied by itself
        for reported in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(broker.engine.log, "durable_index", 0)
                for _ in range(3):
                    await broker.keeper.write_snapshot()
            assert caplog.text.count("snapshot_skipped") == reported
            before = broker.keeper.covered_index
            await broker.keeper.write_snapshot()
            assert broker.keeper.covered_index > before
            await group.send(broker, "T")


async def test_retention_needs_no_new_frame_after_a_restart(tmp_path):
    """A disk that is full refuses sends; what it waits for must not be one of them."""
    settings = {"mappedFileSizeCommitLog": 196_608, "maxMessageSize": 32_768}
    async with Group(tmp_path, flushDiskType="SYNC_FLUSH", **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        for _ in range(30):
            await group.send(broker, "T", b"x" * 30_000)
        await until(lambda: broker.state.group.value)  # nothing more is applied by itself
        await group.stop("n0")
        broker = await group.start("n0")
        await group.leading()
        keeper, log = broker.keeper, broker.store.commitlog
        await until(lambda: broker.state.applied_index == broker.engine.log.last_index)
        broker.store.expiry.expired = lambda *_, **__: Expired(log.max_offset, log.max_offset)
        for _ in range(2):
            await keeper.write_snapshot()
        assert keeper.fallback_index == keeper.covered_index == broker.state.applied_index
        table = tmp_path / "n0" / "config" / "topics.json"
        written = table.stat().st_ino
        await keeper.write_snapshot()
        assert table.stat().st_ino == written, "written without a reason"
        await keeper.retain()
        assert log.min_offset > 0


async def test_retention_deletes_only_segments_covered_by_a_durable_snapshot(tmp_path):
    settings = {"mappedFileSizeCommitLog": 196_608, "maxMessageSize": 32_768}
    async with Group(tmp_path, flushDiskType="SYNC_FLUSH", **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        for _ in range(30):
            await group.send(broker, "T", b"x" * 30_000)
        await group.commit(broker, "T", 0, 7)
        log = broker.store.commitlog
        broker.store.expiry.expired = lambda *_, **__: Expired(log.max_offset, log.max_offset)
        await broker.keeper.retain()
        assert broker.store.commitlog.min_offset == 0
        await broker.keeper.write_snapshot()
        await broker.keeper.retain()
        assert broker.store.commitlog.min_offset == 0, "the .bak files do not reach so far"
        await group.send(broker, "T")
        await broker.keeper.write_snapshot()
        await broker.keeper.retain()
        minimum = broker.store.commitlog.min_offset
        assert minimum > 0
        ext = {"topic": "T", "queueId": "0"}
        low = await group.ask(broker, RequestCode.GET_MIN_OFFSET, ext)
        assert int(low.ext["offset"]) > 0
        early = await group.pull(broker, "T", 0)
        assert early.code == ResponseCode.PULL_OFFSET_MOVED
        assert early.ext["nextBeginOffset"] == low.ext["offset"]
        await group.kill("n0")
        await group.start("n0")
        broker = await group.leading()
        assert broker.store.commitlog.min_offset == minimum
        assert broker.state.topics.get("T") is not None
        assert (await group.committed(broker, "T", 0)).ext["offset"] == "7"
        response = await group.send(broker, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 31


async def test_failed_start_can_be_stopped_and_reports_its_reason(tmp_path):
    async with Group(tmp_path) as group:
        await group.leading()
        await group.stop("n0")
        stray = tmp_path / "n0" / "commitlog" / "stray"
        stray.write_bytes(b"")
        with pytest.raises(StoreError, match="not a segment"):
            await group.start("n0")
        stray.unlink()
        # A lost vote file is no such reason: the replica recovers.
        for path in (tmp_path / "n0" / "raft").glob("hardstate*"):
            path.unlink()
        await group.start("n0")
        await group.leading()


async def test_tables_ahead_of_the_log_are_rejected(tmp_path):
    async with Group(tmp_path) as group:
        await group.create_topic(await group.leading(), "T")
        await group.stop("n0")
        path = tmp_path / "n0" / "config" / "topics.json"
        for name in FILES:
            path = tmp_path / "n0" / "config" / name
            saved = orjson.loads(path.read_bytes())
            del saved["raftChecksum"]
            saved["raftAppliedIndex"] = 1_000
            path.write_bytes(orjson.dumps({**saved, "raftChecksum": checksum_of(saved)}))
        with pytest.raises(StateError, match="the log ends at"):
            await group.start("n0")
        await group.stop("n0")


async def test_full_disk_rejects_sends_and_serves_reads(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        await group.send(broker, "T")
        broker.disk.usage = lambda: DiskUsage(100, 0)
        broker.reliever.poll()
        refused = await group.send(broker, "T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark.startswith("[DISK_FULL]")
        assert (await group.pull(broker, "T", 0)).code == 0
        broker.disk.usage = lambda: DiskUsage(50, 50)
        broker.reliever.poll()
        assert (await group.send(broker, "T")).code == 0
