"""The cluster API over brokers that answer, hang, refuse and lie; the proxy; tokens; events."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from raftmq.namesrv.http.broker_events import events_of
from raftmq.namesrv.http.broker_http import Answer, Nodes
from raftmq.namesrv.http.cluster import ClusterView
from raftmq.remoting.registration import TopicConfig
from tests.namesrv.http.nodes import FakeCluster, FakeNode, replicas
from tests.waiting import until

PATIENCE_S = 120.0


class Caller:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.session = aiohttp.ClientSession()

    async def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.cluster.url}/api/v1{path}"
        async with self.session.request(method, url, json=body, headers=sent) as answer:
            data = await answer.read()
            return answer.status, orjson.loads(data) if data else None, answer.headers

    async def get(self, path: str, expected: int = 200, **headers: str) -> Any:
        status, value, _ = await self("GET", path, **headers)
        assert status == expected, value
        return value

    async def times_of_all_pages(self, path: str) -> list[int]:
        """Return the store times of the messages on all pages; `path` ends where a cursor goes."""
        times: list[int] = []
        cursor = ""
        while True:
            page = await self.get(f"{path}{cursor}")
            times += [item["storeTimestamp"] for item in page["items"]]
            if page["next"] is None:
                return times
            cursor = page["next"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(*replicas(), *replicas("broker-b")) as running:
        yield running


@pytest.fixture
async def call(cluster: FakeCluster) -> AsyncIterator[Caller]:
    caller = Caller(cluster)
    yield caller
    await caller.session.close()


def impatient_with(hanging: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are waited for briefly, those of the others as long as they take."""
    ask = Nodes.ask

    async def asked(nodes: Nodes, http_address: str, method: str, path: str, **more: Any) -> Answer:
        more["timeout_s"] = 0.2 if http_address == hanging.http else PATIENCE_S
        return await ask(nodes, http_address, method, path, **more)

    monkeypatch.setattr(Nodes, "ask", asked)


async def test_cluster_api_shows_replica_views_side_by_side(
    cluster: FakeCluster, call: Caller
) -> None:
    seen = await call.get("/cluster")
    assert [group["name"] for group in seen["groups"]] == ["broker-a", "broker-b"]
    group = seen["groups"][0]
    assert (group["leader"], group["term"], group["cluster"]) == ("n0", 3, "C")
    assert [broker["node"]["name"] for broker in group["brokers"]] == ["n0", "n1", "n2"]
    assert seen["differences"] == []
    cluster.nodes["n1"].view["term"] = 9
    cluster.nodes["n5"].view["disk"] = {"state": "failed", "reason": "I/O error"}
    assert (await call.get("/cluster"))["differences"] == [
        "broker-a: replicas are in different terms (n0 and n2 3, n1 9)",
        "broker-b: the disk of n5 is failed: I/O error",
    ]
    assert (await call.get("/groups/broker-b"))["leader"] == "n3"
    assert (await call.get("/groups/nope", 404))["code"] == "NOT_FOUND"
    first = await call.get("/groups?limit=1")
    assert [group["name"] for group in first["items"]] == ["broker-a"]
    second = await call.get(f"/groups?limit=1&cursor={first['next']}")
    assert ([g["name"] for g in second["items"]], second["next"]) == (["broker-b"], None)


async def test_silent_broker_does_not_fail_a_cluster_page(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call.get("/cluster")
    dead, hanging, wrong = (cluster.nodes[name] for name in ("n0", "n1", "n2"))
    await dead.stop()
    cluster.server.table.unregister(dead.address, "broker-a", 0)  # as when its connection ends
    hanging.hang.clear()
    impatient_with(hanging, monkeypatch)
    wrong.view = []  # type: ignore[assignment]
    seen = await call.get("/cluster")
    brokers = {broker["name"]: broker for broker in seen["groups"][0]["brokers"]}
    assert all(broker["node"] is None for broker in brokers.values())
    assert not brokers["n0"]["registered"]
    assert brokers["n0"]["error"].startswith("no connection")
    assert brokers["n1"]["error"].startswith("no answer within")
    assert brokers["n2"]["error"].startswith("the answer (200) has other parts than a broker's")
    assert seen["groups"][1]["leader"] == "n3"
    status, _, _ = await call("DELETE", f"/brokers/broker-a/{dead.address}")
    assert status == 204
    assert len((await call.get("/cluster"))["groups"][0]["brokers"]) == 2
    status, _, _ = await call("DELETE", f"/brokers/broker-a/{hanging.address}")
    assert status == 404  # it is registered


@pytest.mark.parametrize("address", ["[x]:1", "a:b:1", "::1:2"])
async def test_malformed_http_address_does_not_fail_a_cluster_page(
    cluster: FakeCluster, call: Caller, address: str
) -> None:
    node = FakeNode("n7", "broker-x", role="leader")
    node.http, node.address = address, "127.0.0.1:1"
    cluster.register(node)
    seen = await call.get("/cluster")
    reported = seen["groups"][2]["brokers"][0]
    assert (reported["node"], reported["error"]) == (None, f"{address} is no HTTP address")
    assert (await call.get("/brokers/broker-x/0/node", 503))["code"] == "NODE_SILENT"
    assert (await call.get("/brokers/broker-x/0/events", 503))["code"] == "NODE_SILENT"
    body = {"secretKey": "0123456789"}
    status, value, _ = await call("PUT", "/accounts/shop-0001?group=broker-x", body)
    assert (status, value["code"]) == (503, "DISTRUST")


async def test_concurrent_cluster_views_share_one_refresh(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[ClusterView] = []
    look = ClusterView.refresh

    async def counted(view: ClusterView) -> Any:
        requested.append(view)
        return await look(view)

    monkeypatch.setattr(ClusterView, "refresh", counted)
    node = cluster.nodes["n0"]
    node.hang.clear()
    checks = [asyncio.create_task(call.get("/cluster")) for _ in range(8)]
    await until(lambda: len(requested) == len(checks))
    node.hang.set()
    await asyncio.gather(*checks)
    assert sum(path == "/api/v1/node" for _, path, _, _ in node.requested) <= 2


async def test_cluster_topics_equal_the_topics_of_routes(
    cluster: FakeCluster, call: Caller
) -> None:
    many = [TopicConfig(f"t{number:04}", 8, 8, 6) for number in range(30)]
    cluster.register(cluster.nodes["n0"], many)
    page = await call.get("/topics?limit=20")
    assert [item["topic"] for item in page["items"][:2]] == ["Orders", "t0000"]
    rest = await call.get(f"/topics?limit=20&cursor={page['next']}")
    assert (len(rest["items"]), rest["next"]) == (11, None)
    result = await call.get("/topics?q=T001&group=broker-a")
    assert len(result["items"]) == 10
    assert result["items"][0]["groups"] == [
        {
            "group": "broker-a",
            "readQueueNums": 8,
            "writeQueueNums": 8,
            "perm": 6,
            "messageType": None,
        }
    ]
    assert (await call.get("/topics?group=x", 404))["code"] == "NOT_FOUND"
    assert (await call.get("/topics?limit=0", 422))["errors"][0]["field"] == "limit"


async def test_cluster_topic_is_read_and_changed_in_every_group(
    cluster: FakeCluster, call: Caller
) -> None:
    first, second = cluster.nodes["n0"], cluster.nodes["n3"]
    path = ("GET", "/api/v1/topics/Orders")
    first.answers[path] = (200, {"topic": "Orders", "perm": 6}, {"ETag": '"11"'})
    second.answers[path] = (200, {"topic": "Orders", "perm": 4}, {"ETag": '"22"'})
    status, value, headers = await call("GET", "/topics/Orders")
    assert (status, headers["ETag"]) == (200, '"broker-a=11;broker-b=22"')
    assert [item["perm"] for item in value["groups"]] == [6, 4]
    put = ("PUT", "/api/v1/topics/Orders")
    for node in (first, second):
        node.answers[put] = (200, {"topic": "Orders"})
    body = {"readQueueNums": 2}
    status, value, _ = await call("PUT", "/topics/Orders", body, If_Match=headers["ETag"])
    assert (status, [r["outcome"] for r in value["results"]]) == (200, ["ok", "ok"])
    assert first.last[2] == body
    assert first.last[3]["If-Match"] == '"11"'
    assert second.last[3]["If-Match"] == '"22"'
    assert (await call("PUT", "/topics/Orders", body))[0] == 428

    second.answers[put] = (412, {"status": 412, "code": "VERSION_MISMATCH", "detail": "not that"})
    status, value, _ = await call("PUT", "/topics/Orders", body, If_Match="*")
    assert (status, [r["outcome"] for r in value["results"]]) == (207, ["ok", "failed"])
    assert value["results"][1] == {
        "group": "broker-b", "outcome": "failed", "status": 412, "error": "412 not that"
    }  # fmt: skip
    first.answers[put] = second.answers[put]
    status, value, _ = await call("PUT", "/topics/Orders", body, If_Match="*")
    assert (status, value["code"], len(value["results"])) == (412, "VERSION_MISMATCH", 2)
    first.answers[put] = (504, {"status": 504, "code": "OUTCOME_UNKNOWN", "detail": "?"})
    status, value, _ = await call("PUT", "/topics/Orders?group=broker-a", body, If_Match="*")
    assert (status, value["results"][0]["outcome"]) == (504, "unknown")
    assert (await call("PUT", "/topics/Orders?group=x", body, If_Match="*"))[0] == 404


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("DELETE", "/topics/Orders", None),
        ("POST", "/topics/Orders/empty", None),
        ("POST", "/consumer-groups/cg/reset", {"topic": "Orders", "to": {"position": "latest"}}),
        ("PUT", "/consumer-groups/cg/modes/Orders", {"mode": "POP"}),
    ],
)
async def test_cluster_change_reports_a_group_without_brokers(
    cluster: FakeCluster, call: Caller, method: str, path: str, body: Any
) -> None:
    cluster.nodes["n0"].answers[method, f"/api/v1{path}"] = (200, {})
    gone = [node for node in cluster.nodes.values() if node.group == "broker-b"]
    await call.get("/groups")
    for node in gone:
        assert cluster.server.table.unregister(node.address, node.group, 0)
    status, value, _ = await call(method, path, body, If_Match="*")
    assert status == 207
    assert value["results"][1] == {
        "group": "broker-b", "outcome": "failed", "status": 0,
        "error": "no leader with an HTTP address is registered",
    }  # fmt: skip
    unknown = path.replace("Orders", "Unknown")
    if body is None:  # nobody is known to have it: everybody is asked
        value = (await call(method, unknown, body, If_Match="*"))[1]
        assert [result["group"] for result in value["results"]] == ["broker-a", "broker-b"]
    for node in gone:
        assert (await call("DELETE", f"/brokers/broker-b/{node.address}"))[0] == 204
    assert (await call(method, path, body, If_Match="*"))[0] == 200


async def test_cluster_write_follows_the_leader_once(cluster: FakeCluster, call: Caller) -> None:
    old, new = cluster.nodes["n0"], cluster.nodes["n1"]
    transfer = ("POST", "/api/v1/node/transfer")
    refusal = {"status": 503, "code": "NOT_LEADER", "detail": "not the leader"}
    old.answers[transfer] = (503, refusal, {"X-Leader-Http": new.http})
    new.answers[transfer] = (202, {"target": "n2"})
    status, value, _ = await call("POST", "/groups/broker-a/transfer", {"target": "n2"})
    assert (status, value) == (200, {"target": "n2"})
    old.answers[transfer] = (503, refusal, {"X-Leader-Http": "127.0.0.1:1"})  # none of the group
    status, value, _ = await call("POST", "/groups/broker-a/transfer", {})
    assert (status, value["code"], value["group"]) == (503, "NOT_LEADER", "broker-a")
    cluster.server.table.unregister(old.address, "broker-a", 0)
    status, value, _ = await call("POST", "/groups/broker-a/transfer", {})
    assert (status, value["code"]) == (503, "NODE_SILENT")


async def test_cluster_change_of_unknown_outcome_is_reported_as_unknown(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.nodes["n0"].hang.clear()
    impatient_with(cluster.nodes["n0"], monkeypatch)
    status, value, _ = await call("POST", "/groups/broker-a/transfer", {})
    assert (status, value["code"]) == (504, "OUTCOME_UNKNOWN")
    cluster.nodes["n3"].answers["POST", "/api/v1/consumer-groups/cg/pause"] = (200, {})
    status, value, _ = await call("POST", "/consumer-groups/cg/pause")
    assert (status, [r["outcome"] for r in value["results"]]) == (207, ["unknown", "ok"])


async def test_consumer_groups_of_all_broker_groups_are_listed(
    cluster: FakeCluster, call: Caller
) -> None:
    first, second = cluster.nodes["n0"], cluster.nodes["n3"]
    items = [{"name": "cg", "lag": 5, "clientCount": 1}, {"name": "only-a", "lag": 0}]
    first.answers["GET", "/api/v1/consumer-groups"] = (200, {"items": items, "next": None})
    second.answers["GET", "/api/v1/consumer-groups"] = (200, {"items": items[:1], "next": None})
    page = await call.get("/consumer-groups")
    assert [(i["name"], [g["group"] for g in i["groups"]]) for i in page["items"]] == [
        ("cg", ["broker-a", "broker-b"]), ("only-a", ["broker-a"])
    ]  # fmt: skip
    assert [i["name"] for i in (await call.get("/consumer-groups?q=ONLY"))["items"]] == ["only-a"]
    queue = {"topic": "Orders", "queueId": 0, "consumerOffset": 5, "brokerOffset": 10, "lag": 5}
    view = {"name": "cg", "clients": [], "queues": [queue], "lag": 5}
    first.answers["GET", "/api/v1/consumer-groups/cg"] = (200, view)
    second.answers["GET", "/api/v1/consumer-groups/cg"] = (500, {"detail": "no"})
    result = await call.get("/consumer-groups/cg")
    assert (result["lag"], result["errors"]) == (5, [{"group": "broker-b", "error": "500 no"}])
    assert (await call.get("/consumer-groups/none", 404))["code"] == "NOT_FOUND"
    reset = ("POST", "/api/v1/consumer-groups/cg/reset")
    first.answers[reset] = second.answers[reset] = (200, {"queues": []})
    body = {"topic": "Orders", "to": {"position": "earliest"}}
    status, value, _ = await call("POST", "/consumer-groups/cg/reset", body)
    assert (status, len(value["results"])) == (200, 2)
    assert (await call("POST", "/consumer-groups/cg/reset", {}))[0] == 422


async def test_cluster_messages_and_the_trace_of_one_message(
    cluster: FakeCluster, call: Caller
) -> None:
    first, second = cluster.nodes["n0"], cluster.nodes["n3"]
    host, port = first.address.split(":")
    message_id = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}{4096:016x}"
    message = {
        "topic": "Orders", "queueId": 1, "queueOffset": 7, "commitLogOffset": 4096,
        "storeSize": 200, "storeTimestamp": 2, "bornTimestamp": 1, "offsetMsgId": message_id,
    }  # fmt: skip
    path = ("GET", "/api/v1/messages")
    first.answers[path] = (200, {"items": [message], "next": None})
    second.answers[path] = (200, {"items": [message | {"storeTimestamp": 9}], "next": None})
    result = await call.get("/messages?topic=Orders&key=k1&startMs=0")
    assert [item["group"] for item in result["items"]] == ["broker-b", "broker-a"]
    assert "topic=Orders" in first.last[1] and "key=k1" in first.last[1]
    first.answers["GET", f"/api/v1/messages/{message_id}"] = (200, message)
    assert (await call.get(f"/messages/{message_id}"))["group"] == "broker-a"
    queue = {"topic": "Orders", "queueId": 1, "consumerOffset": 4, "lag": 9}
    items = {"items": [{"name": "cg"}, {"name": "other"}], "next": None}
    first.answers["GET", "/api/v1/consumer-groups"] = (200, items)
    view = {"name": "cg", "clients": [], "queues": [queue]}
    first.answers["GET", "/api/v1/consumer-groups/cg"] = (200, view)
    first.answers["GET", "/api/v1/consumer-groups/other"] = (200, view | {"queues": []})
    cluster.nodes["n2"].view["commitLog"] = {"minOffset": 0, "maxOffset": 4100, "durableOffset": 0}
    trace = await call.get(f"/messages/{message_id}/trace")
    assert [one["state"] for one in trace["replicas"]] == ["durable", "durable", "missing"]
    assert [(one["name"], one["state"]) for one in trace["consumers"]] == [("cg", "waiting")]
    assert (await call.get(f"/messages/{'0' * 32}", 404))["code"] == "NOT_FOUND"
    first.answers["GET", "/api/v1/topics/Orders/queues/1/messages"] = (200, {"items": [message]})
    listed = "/topics/Orders/queues/1/messages?offset=7&limit=1"
    assert (await call.get(listed, 422))["errors"][0]["field"] == "group"
    assert len((await call.get(f"{listed}&group=broker-a"))["items"]) == 1


async def test_cluster_api_forwards_requests_to_a_broker(
    cluster: FakeCluster, call: Caller
) -> None:
    node = cluster.nodes["n1"]
    for who in (node.address, "n1", "2"):
        assert (await call.get(f"/brokers/broker-a/{who}/node"))["name"] == "n1"
    assert (await call.get("/brokers/broker-a/0/node"))["name"] == "n0"
    node.answers["PATCH", "/api/v1/config"] = (412, {"code": "X"}, {"ETag": '"5"'})
    status, value, headers = await call(
        "PATCH", "/brokers/broker-a/n1/config", {"a": 1}, If_Match="*"
    )
    assert (status, value, headers["ETag"]) == (412, {"code": "X"}, '"5"')
    assert node.last[2] == {"a": 1}
    assert node.last[3]["If-Match"] == "*"
    node.answers["GET", "/api/v1/topics/%DLQ%cg"] = (200, {"topic": "%DLQ%cg"})
    assert (await call.get("/brokers/broker-a/n1/topics/%25DLQ%25cg"))["topic"] == "%DLQ%cg"
    assert (await call.get("/brokers/broker-a/n9/node", 404))["code"] == "NOT_FOUND"
    await node.stop()
    assert (await call.get("/brokers/broker-a/n1/node", 503))["code"] == "NODE_SILENT"


async def test_cluster_api_tokens_and_roles(tmp_path: Any) -> None:
    tokens = [
        {"token": f"{role}-0123456789abcdef", "role": role, "name": role}
        for role in ("viewer", "operator", "admin")
    ]
    file, own = tmp_path / "tokens.json", tmp_path / "own"
    file.write_bytes(orjson.dumps({"tokens": tokens}))
    own.write_text("cluster-0123456789abcdef")
    for path in (file, own):
        path.chmod(0o600)
    settings = {"http_tokens_file": str(file), "http_cluster_token_file": str(own)}
    async with FakeCluster(*replicas(), **settings) as cluster:
        call = Caller(cluster)

        async def status(role: str, method: str, path: str, body: Any = None) -> int:
            shown = {"Authorization": f"Bearer {role}-0123456789abcdef"} if role else {}
            return (await call(method, path, body, **shown))[0]

        assert await status("", "GET", "/cluster") == 401
        assert await status("viewer", "GET", "/cluster") == 200
        node = cluster.nodes["n0"]
        assert "Authorization" not in node.last[3]  # it did not ask who asks
        for method, path in (("POST", "/groups/broker-a/transfer"),
                             ("POST", "/brokers/broker-a/0/node/transfer")):  # fmt: skip
            node.answers["POST", "/api/v1/node/transfer"] = (202, {})
            assert await status("viewer", method, path, {}) == 403
            assert await status("operator", method, path, {}) in (200, 202)
        node.answers["PATCH", "/api/v1/config"] = (200, {})
        node.answers["POST", "/api/v1/node/stop"] = (202, {})
        for method, path in (("PATCH", "config"), ("POST", "node/stop")):
            assert await status("operator", method, f"/brokers/broker-a/0/{path}", {}) == 403
            assert await status("admin", method, f"/brokers/broker-a/0/{path}", {}) < 300
        node.answers["POST", "/api/v1/node/transfer"] = (401, {"detail": "nobody has this token"})
        shown = {"Authorization": "Bearer admin-0123456789abcdef"}
        reported, value, _ = await call("POST", "/groups/broker-a/transfer", {}, **shown)
        assert (reported, value["code"]) == (502, "CLUSTER_TOKEN")  # it is not the caller's fault
        async with call.session.get(f"{cluster.url}/") as page:
            assert page.status == 200  # the page itself asks for a token
        await call.session.close()


async def test_cluster_events_of_all_brokers_and_their_failover(
    cluster: FakeCluster, call: Caller
) -> None:
    seen: list[dict[str, Any]] = []

    async def read() -> None:
        headers = {"Last-Event-ID": "0-0"}
        async with call.session.get(f"{cluster.url}/api/v1/events", headers=headers) as response:

            async def lines() -> AsyncIterator[bytes]:
                async for line in response.content:
                    yield line

            async for _, event in events_of(lines()):
                seen.append(event)

    reading = asyncio.create_task(read())
    old, new = cluster.nodes["n0"], cluster.nodes["n2"]

    def kinds(group: str) -> list[str]:
        return [event["kind"] for event in seen if event["group"] == group]

    await until(lambda: any(path == "/api/v1/events" for _, path, _, _ in new.requested))
    await until(lambda: kinds("broker-a").count("routeChanged") == 3)
    cluster.server.table.unregister(old.address, "broker-a", 0)
    new.tell("electionStarted", 4)
    new.tell("roleChanged", 4, role="leader", ready=False)
    new.tell("roleChanged", 4, role="leader", ready=True)
    await until(lambda: kinds("broker-a").count("roleChanged") == 2)
    new.view |= {"role": "leader", "leaderReady": True, "term": 4}
    cluster.register(new)
    await until(lambda: kinds("broker-a").count("routeChanged") == 5)
    last = (await call.get("/failovers?group=broker-a"))["items"][0]
    assert [mark["what"] for mark in last["marks"]] == [
        "leaderLost", "electionStarted", "elected", "leaderReady", "routeChanged"
    ]  # fmt: skip
    assert (last["newLeader"], last["complete"]) == ("n2", True)
    assert (await call.get("/cluster"))["groups"][0]["lastFailover"] == last
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_name_server_log_levels_change_at_run_time(call: Caller) -> None:
    logger = logging.getLogger("raftmq.namesrv.http")
    before = logger.level
    path = "/log-levels/raftmq.namesrv.http"
    try:
        status, value, _ = await call("PUT", path, {"level": "DEBUG"})
        assert (status, value) == (200, {"logger": "raftmq.namesrv.http", "level": "DEBUG"})
        assert logger.level == logging.DEBUG
        assert (await call.get("/log-levels"))["levels"]["raftmq.namesrv.http"] == "DEBUG"
        assert (await call("PUT", path, {"level": "LOUD"}))[0] == 422
        assert (await call("PUT", "/log-levels/nobodys", {"level": "INFO"}))[0] == 404
    finally:
        logger.setLevel(before)


async def test_name_server_own_pages() -> None:
    async with FakeCluster() as cluster:
        call = Caller(cluster)
        assert (await call.get("/cluster"))["groups"] == []
        assert (await call.get("/whoami")) == {"name": "local", "role": "admin"}
        keys = {item["key"]: item["value"] for item in (await call.get("/config"))["items"]}
        assert keys["httpEnable"] is True
        paths = (await call.get("/openapi.json"))["paths"]
        assert {"/api/v1/cluster", "/api/v1/topics/{topic}", "/api/v1/events"} <= set(paths)
        for path in ("/health/live", "/health/ready", "/metrics"):
            async with call.session.get(f"{cluster.url}{path}") as answer:
                assert answer.status == 200, path
        async with call.session.get(f"{cluster.url}/") as page:
            policy = page.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert (await call("PUT", "/topics/T", {}, If_Match="*"))[0] == 404  # no group at all
        await call.session.close()


async def test_broker_answers_to_the_cluster_api_are_limited_in_size(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster.nodes["n0"], cluster.nodes["n1"]
    first.view["name"] = "n" * 1_000
    names = [b["name"] for b in (await call.get("/cluster"))["groups"][0]["brokers"]]
    assert "n" * 255 in names
    monkeypatch.setattr("raftmq.namesrv.http.cluster.REFRESH_BYTES_MAX", 20_000)
    second.view["more"] = "x" * 20_000
    brokers = (await call.get("/cluster"))["groups"][0]["brokers"]
    errors = {broker["address"]: broker["error"] for broker in brokers}
    assert errors[first.address] is None
    assert errors[second.address] == "all brokers answer more than 20000 bytes"


async def test_compressed_broker_answer_is_not_inflated(cluster: FakeCluster, call: Caller) -> None:
    """Anybody may register; a few bytes must not cost the name server seconds."""
    node = cluster.nodes["n1"]
    node.answers["GET", "/api/v1/node"] = (200, node.view, {"Content-Encoding": "gzip"})
    brokers = (await call.get("/cluster"))["groups"][0]["brokers"]
    [error] = [broker["error"] for broker in brokers if broker["address"] == node.address]
    assert error == "the connection broke: it answers in 'gzip', unasked"
    assert node.last[3]["Accept-Encoding"] == "identity"
