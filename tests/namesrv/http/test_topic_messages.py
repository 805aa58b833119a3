"""Newest messages of several groups, dead letters sent again, accounts and modes, over groups that
answer or do not."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from raftmq.namesrv.http.reads import kind_of
from raftmq.remoting.registration import TopicConfig
from tests.namesrv.http.nodes import FakeCluster, replicas
from tests.namesrv.http.test_cluster_api import Caller

NEWEST = "/api/v1/topics/Orders/messages"
RESEND = "/api/v1/messages/resend"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(*replicas(), *replicas("broker-b")) as running:
        yield running


@pytest.fixture
async def call(cluster: FakeCluster) -> AsyncIterator[Caller]:
    caller = Caller(cluster)
    yield caller
    await caller.session.close()


def message(position: int, at: int) -> dict[str, Any]:
    return {"commitLogOffset": position, "storeTimestamp": at, "offsetMsgId": f"{position}"}


class Log:
    """A group's messages of one topic, newest first, answered as a broker does."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages

    def answer(self, request: web.Request, _: bytes) -> tuple[int, Any]:
        before = int(request.query.get("before", 10**9))
        limit = int(request.query["limit"])
        left = [one for one in self.messages if one["commitLogOffset"] < before]
        more = len(left) > limit
        shown = left[:limit]
        following = str(shown[-1]["commitLogOffset"]) if more else None
        return 200, {"items": shown, "next": following, "scanned": len(shown)}


async def test_newest_messages_of_all_groups_are_listed_once(
    cluster: FakeCluster, call: Caller
) -> None:
    one = Log(*(message(n * 10, n * 2) for n in range(9, 0, -1)))
    other = Log(*(message(n * 10, n * 2 + 1) for n in range(3, 0, -1)))
    cluster.nodes["n0"].answers["GET", NEWEST] = one.answer
    cluster.nodes["n3"].answers["GET", NEWEST] = other.answer
    seen = await call.times_of_all_pages("/topics/Orders/messages?limit=4&before=")
    assert seen == sorted([n * 2 for n in range(1, 10)] + [n * 2 + 1 for n in range(1, 4)])[::-1]
    assert (await call.get("/topics/Orders/messages?before=AAAA", 422))["code"] == "INVALID"


async def test_group_that_does_not_answer_is_named(cluster: FakeCluster, call: Caller) -> None:
    cluster.nodes["n0"].answers["GET", NEWEST] = Log(message(1, 1)).answer
    await cluster.nodes["n3"].stop()
    page = await call.get("/topics/Orders/messages")
    assert [item["group"] for item in page["items"]] == ["broker-a"]
    assert [error["group"] for error in page["errors"]] == ["broker-b"]
    assert (await call.get("/topics/None/messages", 503))["code"] == "UNAVAILABLE"


async def test_dead_letters_are_resent_by_the_groups_that_stored_them(
    cluster: FakeCluster, call: Caller
) -> None:
    def stored(name: str, position: int) -> str:
        host, _, port = cluster.nodes[name].address.partition(":")
        address = bytes(int(part) for part in host.split(".")).hex()
        return f"{address}{int(port):08x}{position:016x}".upper()

    def resent(request: web.Request, body: bytes) -> tuple[int, Any]:
        ids = orjson.loads(body)["messageIds"]
        return 200, {"items": [{"messageId": one, "outcome": "ok"} for one in ids], "next": None}

    cluster.nodes["n0"].answers["POST", RESEND] = resent
    cluster.nodes["n3"].answers["POST", RESEND] = (
        503, {"code": "BUSY", "status": 503, "detail": "busy"},
    )  # fmt: skip
    first, second, unknown = stored("n0", 1), stored("n3", 2), "00" * 16
    body = {"messageIds": [first, second, unknown]}
    status, value, _ = await call("POST", "/messages/resend", body)
    assert status == 200
    outcomes = {one["messageId"]: (one["outcome"], one.get("group")) for one in value["items"]}
    assert outcomes == {
        first: ("ok", "broker-a"), second: ("failed", "broker-b"), unknown: ("failed", None),
    }  # fmt: skip


async def test_accounts_are_merged_with_the_view_of_each_group(
    cluster: FakeCluster, call: Caller
) -> None:
    account = {"accessKey": "shop-0001", "admin": False, "topicPerms": ["T=PUB"]}
    for name in ("n0", "n3"):
        cluster.nodes[name].answers["GET", "/api/v1/accounts"] = (
            200, {"items": [account], "enabled": name == "n0", "whiteAddresses": ["10.*"]},
        )  # fmt: skip
        cluster.nodes[name].answers["PUT", "/api/v1/accounts/shop-0001"] = (200, account)
    listed = await call.get("/accounts")
    (item,) = listed["items"]
    assert [one["group"] for one in item["groups"]] == ["broker-a", "broker-b"]
    assert [one["enabled"] for one in listed["groups"]] == [True, False]
    body = {"secretKey": "secret-0001"}
    status, value, _ = await call("PUT", "/accounts/shop-0001", body)
    assert (status, [one["outcome"] for one in value["results"]]) == (200, ["ok", "ok"])
    assert cluster.nodes["n3"].last[2] == body
    await call("PUT", "/accounts/shop-0001?lastAdministrator=true", {"admin": False})
    assert cluster.nodes["n3"].last[1] == "/api/v1/accounts/shop-0001?lastAdministrator=true"


async def test_secret_is_not_sent_to_an_untrusted_broker(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.server.http is not None
    nodes = cluster.server.http.cluster.nodes
    monkeypatch.setattr(nodes, "distrusted", lambda address: "it is a stranger")
    body = {"secretKey": "secret-0001"}
    for path in ("accounts", "brokers/broker-a/0/accounts", "brokers/broker-a/n1/%61ccounts"):
        status, value, _ = await call("PUT", f"/{path}/shop-0001", body)
        assert (status, value["code"]) == (503, "DISTRUST")
    assert not any(
        method == "PUT" for node in cluster.nodes.values() for method, *_ in node.requested
    )
    await call("PUT", "/brokers/broker-a/0/accounts/shop-0001", {"admin": False})
    assert cluster.nodes["n0"].last[2] == {"admin": False}  # that is none


async def test_consume_mode_is_set_in_the_groups_with_the_topic(
    cluster: FakeCluster, call: Caller
) -> None:
    cluster.register(cluster.nodes["n3"], [TopicConfig("Other", 1, 1, 6)])
    path = "/api/v1/consumer-groups/G/modes/Orders"
    mode = {"group": "G", "topic": "Orders", "mode": "POP", "popShareQueueNum": 0}
    cluster.nodes["n0"].answers["PUT", path] = (200, mode)
    cluster.nodes["n0"].answers["GET", "/api/v1/consumer-groups/G/modes"] = (200, {"items": [mode]})
    status, value, _ = await call("PUT", "/consumer-groups/G/modes/Orders", {"mode": "POP"})
    assert (status, [one["group"] for one in value["results"]]) == (200, ["broker-a"])
    listed = await call.get("/consumer-groups/G/modes")
    assert listed["items"] == [{**mode, "brokerGroup": "broker-a"}]


async def test_topics_are_listed_by_kind(cluster: FakeCluster, call: Caller) -> None:
    names = ["Orders", "%RETRY%G", "%DLQ%G", "SCHEDULE_TOPIC_XXXX", "C_REPLY_TOPIC", "C"]
    cluster.register(cluster.nodes["n0"], [TopicConfig(name, 1, 1, 6) for name in names])
    for kind, expected in (
        ("own", ["Orders"]),
        ("retry", ["%RETRY%G"]),
        ("dead", ["%DLQ%G"]),
        ("system", ["C", "C_REPLY_TOPIC", "SCHEDULE_TOPIC_XXXX"]),
    ):
        page = await call.get(f"/topics?kind={kind}")
        assert [item["topic"] for item in page["items"]] == expected
        assert {item["kind"] for item in page["items"]} == {kind}
    assert kind_of("rmq_sys_wheel_timer") == "system"
