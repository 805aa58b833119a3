"""What an operator does with a broker from a console: newest messages, dead letters, previews of
resets, consume modes, accounts, connections."""

import asyncio

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.broker.http.test_api import made, sent


def texts(answer):
    return [one["text"] for one in answer.json["items"]]


async def test_http_lists_the_newest_messages_of_all_queues_first(client):
    await made(client, "T", 3)
    assert (await client.get("/api/v1/topics/T/messages")).json == {
        "items": [], "next": None, "scanned": 0,
    }  # fmt: skip
    for number in range(7):
        await sent(client, "T", str(number), queueId=number * 2 % 3)
    newest = "/api/v1/topics/T/messages"
    first = await client.get(newest, limit=3)
    assert texts(first) == ["6", "5", "4"]
    second = await client.get(newest, limit=3, before=first.json["next"])
    assert texts(second) == ["3", "2", "1"]
    third = await client.get(newest, limit=3, before=second.json["next"])
    assert (texts(third), third.json["next"]) == (["0"], None)
    since = first.json["items"][1]["storeTimestamp"]
    assert {"6", "5"} <= set(texts(await client.get(newest, sinceMs=since)))
    assert (await client.get("/api/v1/topics/none/messages")).status == 404


async def test_http_messages_are_filtered_by_tag_key_property_and_text(client):
    await made(client, "T", 2)
    await sent(client, "T", "Hello World", tags="a", keys="k1 k2", properties={"colour": "red"})
    await sent(client, "T", "hello", tags="b", keys="k2", properties={"colour": "blue"})
    await sent(client, "T", "bye")
    newest = "/api/v1/topics/T/messages"
    for query, expected in (
        ({"tag": "a"}, ["Hello World"]),
        ({"key": "k2"}, ["hello", "Hello World"]),
        ({"property": "colour"}, ["hello", "Hello World"]),
        ({"property": "colour=red"}, ["Hello World"]),
        ({"text": "HELLO"}, ["hello", "Hello World"]),
        ({"text": "hello", "tag": "b"}, ["hello"]),
        ({"tag": "c"}, []),
    ):
        answer = await client.get(newest, **query)
        assert (texts(answer), answer.json["scanned"]) == (expected, 3), query


async def test_http_message_search_is_limited_and_continues(client, monkeypatch):
    monkeypatch.setattr("raftmq.broker.admin.message_query.SCANNED_MAX", 2)
    await made(client, "T", 2)
    for number in range(5):
        await sent(client, "T", "here" if number == 0 else "x")
    newest = "/api/v1/topics/T/messages"
    page = (await client.get(newest, text="here")).json
    assert (page["items"], page["scanned"]) == ([], 2)
    page = (await client.get(newest, text="here", before=page["next"])).json
    assert page["items"] == []
    page = (await client.get(newest, text="here", before=page["next"])).json
    assert ([one["text"] for one in page["items"]], page["next"]) == (["here"], None)


async def test_http_messages_by_time_are_paged_without_gaps(client):
    """A queue of large messages beside one of small ones: each page has all up to its end."""
    await made(client, "T", 2)
    large = "x" * 300_000
    stored = [
        await sent(client, "T", text, queueId=queue_id)
        for text, queue_id in [(large, 0)] * 3 + [("a", 1)] + [(large, 0)] * 2 + [("b", 1)] * 4
    ]
    ids = [one["offsetMsgId"] for one in stored]
    seen, query, pages = [], {"topic": "T", "limit": 4}, []
    while True:
        page = (await client.get("/api/v1/messages", **query)).json
        assert all(one["body"] is not None for one in page["items"])
        seen += [one["offsetMsgId"] for one in page["items"]]
        pages.append(len(page["items"]))
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == ids
    assert pages == [4, 4, 2], "1 MiB of messages, then so many"
    time_ms = (await client.get(f"/api/v1/messages/{ids[3]}")).json["storeTimestamp"]
    page = (await client.get("/api/v1/messages", topic="T", startMs=time_ms, endMs=time_ms)).json
    assert ids[3] in [one["offsetMsgId"] for one in page["items"]]
    assert {one["storeTimestamp"] for one in page["items"]} == {time_ms}
    assert page["next"] is None


async def test_http_message_larger_than_a_page_is_a_page_of_its_own(client, group, broker):
    await made(client, "T", 1)
    for body in (b"x" * 1_100_000, b"y"):
        assert (await group.send(broker, "T", body)).code == 0
    page = (await client.get("/api/v1/messages", topic="T")).json
    assert ([one["bodySize"] for one in page["items"]], page["items"][0]["body"]) == (
        [1_100_000], None,
    )  # fmt: skip
    page = (await client.get("/api/v1/messages", topic="T", cursor=page["next"])).json
    assert ([one["text"] for one in page["items"]], page["next"]) == (["y"], None)


async def test_http_resends_several_dead_letters_with_an_outcome_each(client):
    for topic in ("%DLQ%G", "%RETRY%G", "%DLQ%gone", "T"):
        await made(client, topic.replace("%", "%25"), 1)
    dead = [await sent(client, "%DLQ%G", f"dead {n}", properties={"RETRY_TOPIC": "T"})
            for n in range(3)]  # fmt: skip
    lost = await sent(client, "%DLQ%gone", "x")
    plain = await sent(client, "T", "x")
    ids = [one["offsetMsgId"] for one in (*dead, lost, plain)]
    answer = await client.post("/api/v1/messages/resend", {"messageIds": [*ids, ids[0]]})
    assert answer.status == 200
    outcomes = {one["messageId"]: one["outcome"] for one in answer.json["items"]}
    assert [outcomes[one] for one in ids] == ["ok", "ok", "ok", "failed", "failed"]
    again = await client.get("/api/v1/topics/%25RETRY%25G/messages")
    assert texts(again) == ["dead 2", "dead 1", "dead 0"]


async def test_http_previews_an_offset_reset(client, group, broker):
    await made(client, "T", 2)
    for number in range(4):
        await sent(client, "T", str(number), queueId=number % 2)
    await group.commit(broker, "T", 0, 2, group="G")
    body = {"topic": "T", "to": {"position": "earliest"}, "preview": True}
    answer = await client.post("/api/v1/consumer-groups/G/reset", body)
    assert answer.json == {
        "topic": "T", "done": False, "online": 0,
        "queues": [
            {"queueId": 0, "before": 2, "offset": 0, "minOffset": 0, "maxOffset": 2},
            {"queueId": 1, "before": None, "offset": 0, "minOffset": 0, "maxOffset": 2},
        ],
    }  # fmt: skip
    assert broker.state.offsets.get("T", "G", 0) == 2
    done = await client.post("/api/v1/consumer-groups/G/reset", body | {"preview": False})
    assert done.json["done"] and broker.state.offsets.get("T", "G", 0) == 0


async def test_http_sets_the_pop_mode_of_a_group(client):
    await made(client, "T", 1)
    modes = "/api/v1/consumer-groups/G/modes"
    assert (await client.get(modes)).json == {"items": [], "next": None}
    put = await client.put(f"{modes}/T", {"mode": "POP", "popShareQueueNum": 2})
    reported = {"group": "G", "topic": "T", "mode": "POP", "popShareQueueNum": 2}
    assert (put.status, put.json) == (200, reported)
    assert (await client.get(modes)).json["items"] == [reported]
    assert (await client.put(f"{modes}/none", {"mode": "POP"})).status == 404
    assert (await client.put(f"{modes}/T", {"mode": "PUSH"})).status == 422


async def test_http_sends_a_delayed_message(client):
    await made(client, "T", 1)
    await sent(client, "T", "later", delayLevel=1)
    assert texts(await client.get("/api/v1/topics/T/messages")) == []
    for _ in range(1200):
        if texts(await client.get("/api/v1/topics/T/messages")) == ["later"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it was never delivered")


async def test_http_shows_clients_with_the_name_of_their_version(client, group, broker):
    heartbeat = {
        "clientID": "c1",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [],
    }
    answer = await group.ask(broker, RequestCode.HEART_BEAT, {}, dumps(heartbeat))
    assert answer.code == 0
    (item,) = (await client.get("/api/v1/connections")).json["producers"]
    (shown,) = item["clients"]
    assert (shown["clientId"], shown["versionName"]) == ("c1", "V4_9_8")


async def test_http_shows_clients_with_differing_subscriptions(client, group, broker):
    other = group.asking()
    try:
        for connection, name, tags in ((group.client, "c1", "x"), (other, "c2", "y")):
            subscription = {"topic": "T", "subString": tags, "expressionType": "TAG"}
            consumer = {"groupName": "cg", "subscriptionDataSet": [subscription]}
            body = dumps({"clientID": name, "consumerDataSet": [consumer]})
            beat = RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)
            assert (await connection.invoke(broker.address, beat, 60_000)).code == 0
        shown = (await client.get("/api/v1/consumer-groups/cg")).json["clients"]
    finally:
        await other.close()
    differs = {one["clientId"]: one["differs"] for one in shown}
    assert differs == {"c1": [], "c2": [{"topic": "T", "expression": "y", "others": "x"}]}


ACCOUNTS = """accounts:
- accessKey: operator-1
  secretKey: secret-0001
  admin: true
"""


async def test_http_creates_changes_and_deletes_accounts_without_secrets(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with Group(tmp_path / "brokers", 1, aclEnable=True, aclFile=str(file)) as group:
        broker = await group.leading()
        async with Client(broker.http.address) as client:
            accounts = (await client.get("/api/v1/accounts")).json
            assert accounts["enabled"] and accounts["items"][0]["accessKey"] == "operator-1"
            one = "/api/v1/accounts/shop-0001"
            assert (await client.put(one, {"admin": False})).status == 422  # no secret yet
            put = await client.put(
                one, {"secretKey": "secret-0002", "topicPerms": ["Orders=PUB|SUB"]}
            )
            assert put.status == 200, put.body
            assert put.json["topicPerms"] == ["Orders=PUB|SUB"]
            changed = await client.put(one, {"defaultGroupPerm": "SUB"})
            assert changed.json["topicPerms"] == ["Orders=PUB|SUB"]
            assert changed.json["defaultGroupPerm"] == "SUB"
            listed = await client.get("/api/v1/accounts")
            assert b"secret" not in listed.body.lower()
            white = await client.put("/api/v1/white-addresses", {"addresses": ["10.0.0.*"]})
            assert white.json["whiteAddresses"] == ["10.0.0.*"]
            wrong = await client.put("/api/v1/white-addresses", {"addresses": ["10.0.0.x"]})
            assert wrong.status == 422
            assert (await client.delete(one)).status == 204
            assert (await client.delete(one)).status == 404


async def test_http_deletes_the_last_administrator_only_with_confirmation(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with Group(tmp_path / "brokers", 1, aclEnable=True, aclFile=str(file)) as group:
        broker = await group.leading()
        one = "/api/v1/accounts/operator-1"
        async with Client(broker.http.address) as client:
            for refused in (await client.delete(one), await client.put(one, {"admin": False})):
                assert (refused.status, refused.code) == (409, "LAST_ADMINISTRATOR")
                assert "lastAdministrator=true" in refused.body.decode()
            assert (await client.put(one, {"defaultTopicPerm": "SUB"})).status == 200
            other = {"secretKey": "secret-0002", "admin": True}
            assert (await client.put("/api/v1/accounts/operator-2", other)).status == 200
            assert (await client.put(one, {"admin": False})).status == 200
            two = "/api/v1/accounts/operator-2?lastAdministrator=true"
            assert (await client.delete(two)).status == 204


async def test_http_changes_no_accounts_without_access_control(client):
    assert (await client.get("/api/v1/accounts")).json == {
        "items": [], "next": None, "enabled": False, "whiteAddresses": [],
    }  # fmt: skip
    put = await client.put("/api/v1/accounts/shop-0001", {"secretKey": "secret-0002"})
    assert (put.status, put.code) == (409, "ACL_OFF")
