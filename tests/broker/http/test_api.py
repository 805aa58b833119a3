"""The node API of a running broker, next to what the wire says of the same things."""

import base64

import orjson
import pytest

from raftmq.broker.tables.state import put_topic
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import RequestCode
from tests.waiting import until


async def made(client, topic, queues=2):
    body = {"readQueueNums": queues, "writeQueueNums": queues}
    answer = await client.put(f"/api/v1/topics/{topic}", body, If_None_Match="*")
    assert answer.status == 200, answer.body
    return answer


async def sent(client, topic, body, **more):
    answer = await client.post("/api/v1/messages", {"topic": topic, "body": body, **more})
    assert answer.status == 201, answer.body
    return answer.json


async def test_health_and_node_status_over_http(client, broker):
    assert (await client.get("/health/live")).json == {"status": "live"}
    assert (await client.get("/health/ready")).json == {
        "status": "ready",
        "role": "leader",
        "warnings": [],
    }
    node = (await client.get("/api/v1/node")).json
    assert (node["name"], node["mode"], node["role"], node["leader"]) == (
        "n0", "raft", "leader", "n0",
    )  # fmt: skip
    assert node["leaderReady"] and node["recovered"] is True
    assert node["address"] == broker.address
    assert node["httpAddress"] == node["leaderHttpAddress"] == broker.http.address
    assert node["appliedIndex"] <= node["commitIndex"] <= node["lastIndex"]
    assert 0 < node["commitLog"]["maxOffset"] <= broker.store.commitlog.max_offset
    assert 0 <= node["disk"]["freeBytes"] <= node["disk"]["totalBytes"]
    metrics = await client.get("/metrics")
    assert metrics.status == 200 and b"rocketmq_" in metrics.body


async def test_http_topics_equal_the_topics_over_remoting(client, group, broker):
    created = await made(client, "T", 3)
    answer = await group.ask(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    assert b'"writeQueueNums":3' in answer.body
    await group.create_topic(broker, "T", 5)
    read = await client.get("/api/v1/topics/T")
    assert read.json["readQueueNums"] == 5
    assert read.headers["ETag"] != created.headers["ETag"]
    assert read.headers["ETag"] == f'"{read.json["version"]}"'
    page = (await client.get("/api/v1/topics", limit=1)).json
    assert [topic["topic"] for topic in page["items"]] == ["T"] and page["next"] is None
    queues = (await client.get("/api/v1/topics/T/queues", limit=4)).json
    assert [queue["queueId"] for queue in queues["items"]] == [0, 1, 2, 3]
    rest = (await client.get("/api/v1/topics/T/queues", cursor=queues["next"])).json
    assert rest["items"] == [
        {"queueId": 4, "minOffset": 0, "maxOffset": 0, "lastStoreTimeMs": None}
    ]


async def test_http_empties_a_topic_and_keeps_messages_of_a_deleted_one_if_asked(client):
    path, table = "/api/v1/topics/T", "/api/v1/topics/T/queues"
    await made(client, "T", 1)

    async def stored():
        (queue,) = (await client.get(table)).json["items"]
        return queue["maxOffset"] - queue["minOffset"]

    for body in ("1", "2"):
        await sent(client, "T", body)
    emptied = await client.post(f"{path}/empty")
    assert emptied.json == {"messages": 2, "groups": []} and await stored() == 0
    await sent(client, "T", "3")
    assert (await client.delete(path, If_Match="*")).status == 204
    await made(client, "T", 1)
    assert await stored() == 0
    assert (await client.delete(path, If_Match="*")).status == 204
    kept = {"readQueueNums": 1, "writeQueueNums": 1, "keepMessages": True}
    assert (await client.put(path, kept, If_None_Match="*")).status == 200
    assert await stored() > 0
    assert (await client.post("/api/v1/topics/None/empty")).status == 404


async def test_many_topics_are_sorted_off_the_event_loop(client, broker):
    names = [f"t{number:04}" for number in range(2_500)]
    for number, name in enumerate(reversed(names)):
        command = put_topic(TopicConfig(name, 1, 1))
        broker.state.apply(broker.state.applied_index + 1, number, command)
    first = (await client.get("/api/v1/topics", limit=1_000)).json
    second = (await client.get("/api/v1/topics", limit=1_000, cursor=first["next"])).json
    assert [t["topic"] for t in first["items"] + second["items"]] == names[:2_000]


async def test_second_of_two_concurrent_http_writers_gets_a_conflict(client):
    version = (await made(client, "T")).headers["ETag"]
    path, four, six = "/api/v1/topics/T", {"readQueueNums": 4}, {"readQueueNums": 6}
    assert (await client.put(path, four)).status == 428
    assert (await client.put(path, four, If_None_Match="*")).status == 412
    changed = await client.put(path, four, If_Match=version)
    assert changed.status == 200
    late = await client.put(path, six, If_Match=version)
    assert (late.status, late.code) == (412, "VERSION_MISMATCH")
    assert late.headers["ETag"] == changed.headers["ETag"]
    assert (await client.put(path, six, If_Match="*")).status == 200
    assert (await client.delete(path, If_Match=version)).status == 412
    assert (await client.delete(path, If_Match="*")).status == 204
    assert (await client.get(path)).code == "NOT_FOUND"
    assert (await client.put("/api/v1/topics/U", four, If_Match="*")).status == 412


async def test_http_subscription_groups_are_created_paused_and_deleted(client, group, broker):
    path = "/api/v1/subscription-groups/G"
    made_ = await client.put(path, {"retryMaxTimes": 3}, If_None_Match="*")
    assert made_.json["retryMaxTimes"] == 3
    stopped = await client.post("/api/v1/consumer-groups/G/pause")
    assert stopped.json == {"name": "G", "consumeEnable": False}
    answer = await group.ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert b'"consumeEnable":false' in answer.body
    assert (await client.post("/api/v1/consumer-groups/G/resume")).json["consumeEnable"]
    read = await client.get(path)
    assert read.headers["ETag"] == made_.headers["ETag"], "a version says what the resource says"
    assert (await client.post("/api/v1/consumer-groups/H/pause")).status == 404
    assert (await client.delete(path, If_Match=read.headers["ETag"])).status == 204
    assert (await client.get("/api/v1/subscription-groups")).json["items"] == []


async def test_http_messages_by_id_key_time_and_offset(client):
    await made(client, "T")
    first = await sent(client, "T", "äöü", queueId=0, keys="order-1", tags="A")
    raw = base64.b64encode(b"\xff\x00").decode()
    answer = await client.post("/api/v1/messages", {"topic": "T", "bodyBase64": raw, "queueId": 1})
    second = answer.json
    one = (await client.get(f"/api/v1/messages/{first['offsetMsgId']}")).json
    assert (one["text"], one["keys"], one["tags"]) == ("äöü", "order-1", "A")
    assert one["msgId"] == first["msgId"] and one["queueOffset"] == 0
    other = (await client.get(f"/api/v1/messages/{second['offsetMsgId'].lower()}")).json
    assert (other["text"], other["body"], other["bodySize"]) == (None, raw, 2)
    wrong = first["offsetMsgId"][:-1] + ("0" if first["offsetMsgId"][-1] != "0" else "1")
    assert (await client.get(f"/api/v1/messages/{wrong}")).status == 404
    for query in ({"key": "order-1"}, {"uniqueKey": first["msgId"]}):
        result = (await client.get("/api/v1/messages", topic="T", **query)).json["items"]
        assert [m["offsetMsgId"] for m in result] == [first["offsetMsgId"]]
    assert (await client.get("/api/v1/messages", topic="T", key="none")).json["items"] == []
    both = (await client.get("/api/v1/messages", topic="T", startMs=one["storeTimestamp"])).json
    assert [m["msgId"] for m in both["items"]] == [first["msgId"], second["msgId"]]
    past = await client.get("/api/v1/messages", topic="T", endMs=one["storeTimestamp"] - 1)
    assert past.json["items"] == []
    queue = "/api/v1/topics/T/queues/0/messages"
    assert len((await client.get(queue)).json["items"]) == 1
    behind = (await client.get(queue, offset=1)).json
    assert (behind["items"], behind["next"], behind["maxOffset"]) == ([], None, 1)
    assert (await client.get("/api/v1/topics/T/queues/9/messages")).status == 404


async def test_http_queue_messages_are_read_in_pages(client):
    await made(client, "T", 1)
    for number in range(5):
        await sent(client, "T", f"m{number}")
    texts, offset = [], "0"
    while offset is not None:
        page = (await client.get("/api/v1/topics/T/queues/0/messages", offset=offset, limit=2)).json
        texts += [message["text"] for message in page["items"]]
        offset = page["next"]
    assert texts == [f"m{number}" for number in range(5)]


async def test_http_send_rejects_malformed_messages(client):
    await made(client, "T", 1)
    for body, status in (
        ({"topic": "U", "body": "x"}, 404),
        ({"topic": "T"}, 422),
        ({"topic": "T", "body": "x", "bodyBase64": "eA=="}, 422),
        ({"topic": "T", "bodyBase64": "?"}, 422),
        ({"topic": "T", "body": "x", "queueId": 1}, 422),
        ({"topic": "T", "body": "x", "properties": {"a": "\x01"}}, 422),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "body": "x"}, 409),
    ):
        answer = await client.post("/api/v1/messages", body)
        assert answer.status == status, (body, answer.body)
    assert (await client.get("/api/v1/topics/T/queues")).json["items"][0]["maxOffset"] == 0


@pytest.mark.parametrize(("subscribed", "lag"), [(["U"], 0), (["T", "U"], 1), ([], 1)])
async def test_http_topic_that_the_groups_clients_unsubscribed_has_no_lag(
    client, group, broker, subscribed, lag
):
    await made(client, "T", 1)
    for _ in range(2):
        await sent(client, "T", "x")
    await group.commit(broker, "T", 0, 1, group="G")
    subscriptions = [{"topic": t, "subString": "*", "subVersion": 1} for t in subscribed]
    member = {"groupName": "G", "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}
    body = orjson.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [member]})
    assert (await group.ask(broker, RequestCode.HEART_BEAT, None, body)).code == 0
    view = (await client.get("/api/v1/consumer-groups/G")).json
    (queue,) = (queue for queue in view["queues"] if queue["topic"] == "T")
    assert (queue["consumerOffset"], queue["brokerOffset"]) == (1, 2)
    assert (queue["lag"], view["lag"]) == (lag, lag)
    (item,) = (await client.get("/api/v1/consumer-groups")).json["items"]
    assert (item["lag"], item["topics"]) == (lag, ["T"])


async def test_http_offset_reset_and_lag(client, group, broker):
    await made(client, "T", 2)
    for number in range(4):
        await sent(client, "T", str(number), queueId=number % 2)
    await group.commit(broker, "T", 0, 1, group="G")
    await until(lambda: broker.state.offsets.get("T", "G", 0) == 1)
    view = (await client.get("/api/v1/consumer-groups/G")).json
    queue = view["queues"][0]
    assert (queue["consumerOffset"], queue["brokerOffset"], queue["lag"]) == (1, 2, 1)
    assert queue["lastTimeMs"] > 0
    assert (await client.get("/api/v1/consumer-groups")).json["items"][0]["lag"] == 1
    reset = "/api/v1/consumer-groups/G/reset"
    done = await client.post(reset, {"topic": "T", "to": {"position": "latest"}})
    assert [(one["queueId"], one["before"], one["offset"]) for one in done.json["queues"]] == [
        (0, 1, 2),
        (1, None, 2),
    ]
    assert broker.state.offsets.get("T", "G", 1) == 2
    done = await client.post(reset, {"topic": "T", "queueIds": [1], "to": {"timeMs": 0}})
    (queue,) = done.json["queues"]
    assert (queue["queueId"], queue["before"], queue["offset"]) == (1, 2, 0)
    assert (await client.post(reset, {"topic": "T", "to": {}})).status == 422
    unknown = reset.replace("/G/", "/H/")
    assert (await client.post(unknown, {"topic": "T", "to": {"offset": 0}})).status == 404
    assert (
        await client.post(reset, {"topic": "T", "queueIds": [2], "to": {"offset": 0}})
    ).status == 422
    assert (await client.post(reset, {"topic": "U", "to": {"offset": 0}})).status == 404


async def test_http_resends_a_dead_letter_to_its_groups_retry_topic(client):
    await made(client, "%25DLQ%25G", 1)
    dead = await sent(client, "%DLQ%G", "again", properties={"RETRY_TOPIC": "T"}, tags="A")
    path = f"/api/v1/messages/{dead['offsetMsgId']}/resend"
    assert (await client.post(path)).status == 404
    await made(client, "%25RETRY%25G", 1)
    again = (await client.post(path)).json
    assert again["topic"] == "%RETRY%G" and again["msgId"] == dead["msgId"]
    result = (await client.get(f"/api/v1/messages/{again['offsetMsgId']}")).json
    assert (result["text"], result["tags"]) == ("again", "A")
    assert result["properties"]["RETRY_TOPIC"] == "T"
    refused = await client.post(f"/api/v1/messages/{again['offsetMsgId']}/resend")
    assert (refused.status, refused.code) == (409, "NO_DEAD_LETTER")


async def test_http_changes_live_configuration_completely_or_not_at_all(client, broker):
    read = await client.get("/api/v1/config")
    by_key = {item["key"]: item for item in read.json["items"]}
    assert by_key["topicsMax"]["live"] and not by_key["listenPort"]["live"]
    path, tag = "/api/v1/config", read.headers["ETag"]
    changes = {"metricsSeriesMax": 7, "listenPort": 1, "shortPollingTimeMills": 2_000}
    assert (await client.ask("PATCH", path, json=changes)).status == 428
    done = await client.ask("PATCH", path, json=changes, If_Match=tag)
    assert done.json == {
        "applied": {"metricsSeriesMax": 7, "shortPollingTimeMills": 2_000},
        "needsRestart": ["listenPort"],
    }
    assert (broker.config.metrics_series_max, broker.config.listen_port) == (7, 0)
    assert (await client.ask("PATCH", path, json=changes, If_Match=tag)).status == 412
    for wrong in (
        {"metricsSeriesMax": 999_999},
        {"nope": 1},
        {"topicsMax": "5"},
        {"topicsMax": 5, "metricsSeriesMax": -1},
    ):
        assert (await client.ask("PATCH", path, json=wrong, If_Match="*")).status == 422
    assert broker.config.topics_max != 5, "all of them or none"


async def test_http_log_levels_and_statistics(client):
    levels = (await client.get("/api/v1/log-levels")).json["levels"]
    assert "raftmq.broker.send" in levels
    path = "/api/v1/log-levels/raftmq.broker.send"
    assert (await client.put(path, {"level": "ERROR"})).json["level"] == "ERROR"
    assert (await client.get("/api/v1/log-levels")).json["levels"]["raftmq.broker.send"] == "ERROR"
    await client.put(path, {"level": levels["raftmq.broker.send"]})
    assert (await client.put("/api/v1/log-levels/nobody.here", {"level": "INFO"})).status == 404
    figures = (await client.get("/api/v1/statistics")).json
    assert figures["runtime"]["raftRole"] == "leader"


async def test_http_connections_and_runtime_info(client, group, broker):
    assert (await client.get("/api/v1/connections")).json == {
        "producers": [], "consumers": [], "leftOut": 0,
    }  # fmt: skip
    answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert f'"httpAddress":"{broker.http.address}"'.encode() in answer.body
    assert b'"brokerZone":""' in answer.body
    assert (await client.get("/api/v1/consumer-groups/G")).status == 404


async def test_http_requests_a_planned_stop(client, broker):
    assert (await client.post("/api/v1/node/stop")).status == 202
    assert broker.life.stop_requested.is_set()
