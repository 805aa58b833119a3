"""The balance of leaders, drains, and definitions that differ, over brokers that answer as told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftmq.namesrv.http import scaling
from raftmq.namesrv.http.directory import Directory
from raftmq.namesrv.routes import Registration, RouteTable
from raftmq.remoting.registration import TopicConfig
from tests.namesrv.http.nodes import FakeCluster, FakeNode, replicas
from tests.namesrv.http.test_cluster_api import Caller

DRAIN = "/api/v1/drain"
PREFER = ("PUT", "/api/v1/preferred-leader")
LEFT = {"brokerName": "broker-b", "drainingMs": 5, "removed": False, "remaining": 3}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(*replicas(), *replicas("broker-b")) as running:
        yield running


@pytest.fixture
async def call(cluster: FakeCluster) -> AsyncIterator[Caller]:
    caller = Caller(cluster)
    yield caller
    await caller.session.close()


def machines(cluster: FakeCluster, *, zone: str = "") -> None:
    """Replicas of a group on three machines; both groups are led from the first."""
    for group in ("broker-a", "broker-b"):
        own = [node for node in cluster.nodes.values() if node.group == group]
        for number, node in enumerate(own):
            node.view["members"] = [
                {"id": one.name, "address": f"m{at}:1", "role": "voter"}
                for at, one in enumerate(own)
            ]
            node.view["peers"] = [{"id": one.name, "lagFrames": 0} for one in own if one != node]
            node.view["zone"] = zone and (zone if number < 2 else "other")


def follow(cluster: FakeCluster, name: str, *, leads: bool = True) -> None:
    """A replica becomes leader, and the others follow it."""
    for node in cluster.nodes.values():
        if node.group == cluster.nodes[name].group:
            is_leader = node.name == name
            node.view |= {"role": "leader" if is_leader else "follower", "term": 4}
            node.view |= {"leader": name, "leaderReady": is_leader and leads}
            node.view["preferredLeader"] = name
    for node in cluster.nodes.values():
        cluster.register(node)


def last_change(node: FakeNode) -> tuple[str, str, Any, dict[str, str]]:
    """Return the last request except for those that the name server repeats for its views."""
    return next(request for request in reversed(node.requested) if request[0] != "GET")


async def test_leader_balance_plan_names_machines_and_the_group_to_move(
    cluster: FakeCluster, call: Caller
) -> None:
    machines(cluster)
    plan = await call.get("/leader-balance")
    assert [(row["machine"], row["leaders"], row["leadersAfter"]) for row in plan["machines"]] == [
        ("m0", 2, 1), ("m1", 0, 1), ("m2", 0, 0)
    ]  # fmt: skip
    assert [(row["group"], row["target"], row["moves"]) for row in plan["items"]] == [
        ("broker-a", "n0", False), ("broker-b", "n4", True)
    ]  # fmt: skip
    machines(cluster, zone="east")
    zones = (await call.get("/leader-balance?cluster=C"))["machines"]
    assert {row["zone"] for row in zones if row["leadersAfter"]} == {"east", "other"}
    await call.get("/leader-balance?cluster=none", 404)


async def test_leader_balance_omits_a_group_with_a_lagging_replica(
    cluster: FakeCluster, call: Caller
) -> None:
    machines(cluster)
    cluster.nodes["n0"].view["peers"][0]["lagFrames"] = 101
    await cluster.nodes["n4"].stop()
    rows = (await call.get("/leader-balance"))["items"]
    assert [row["reason"] for row in rows] == ["n1 is 101 frames behind", "n4 does not answer"]
    assert not any(row["moves"] for row in rows)


async def test_leader_balance_moves_one_leader_per_request(
    cluster: FakeCluster, call: Caller
) -> None:
    machines(cluster)

    def prefers(request: Any, _: bytes) -> tuple[int, Any]:
        follow(cluster, "n4")
        return 200, {"name": "n4"}

    cluster.nodes["n3"].answers[PREFER] = prefers
    cluster.nodes["n0"].answers[PREFER] = (200, {"name": "n0"})  # it stays, and is preferred then
    status, answer, _ = await call("POST", "/leader-balance")
    assert (status, answer["moved"]) == (200, "broker-b"), answer
    assert [row["leaders"] for row in answer["machines"]] == [1, 1, 0]
    (asked,) = [one for one in cluster.nodes["n3"].requested if one[0] == "PUT"]
    assert asked[2] == {"name": "n4"} and asked[3]["If-Match"] == "*"
    cluster.nodes["n0"].view["preferredLeader"] = "n0"
    _, answer, _ = await call("POST", "/leader-balance")
    assert answer["moved"] is None and not any(row["moves"] for row in answer["items"])
    assert [one[2] for one in cluster.nodes["n0"].requested if one[0] == "PUT"] == [{"name": "n0"}]


async def test_leader_that_does_not_move_in_time_is_no_error(
    cluster: FakeCluster, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "MOVE_WAIT_S", 0.1)
    machines(cluster)
    for name in ("n0", "n3"):
        cluster.nodes[name].answers[PREFER] = (200, {"name": "n1"})
    status, answer, _ = await call("POST", "/leader-balance")
    assert (status, answer["moved"], answer["items"][1]["moves"]) == (200, None, True)
    cluster.nodes["n0"].answers[PREFER] = (503, {"code": "UNAVAILABLE", "detail": "later"})
    status, problem, _ = await call("POST", "/leader-balance")
    assert (status, problem["detail"]) == (503, "later")


async def test_draining_groups_are_listed_with_their_content(
    cluster: FakeCluster, call: Caller
) -> None:
    assert (await call.get("/drains"))["items"] == []
    cluster.nodes["n3"].view["drainingMs"] = 5
    cluster.nodes["n3"].answers["GET", DRAIN] = (200, LEFT)
    assert await call.get("/drains") == {"items": [LEFT], "next": None, "errors": []}
    assert await call.get("/groups/broker-b/drain") == LEFT
    leader = cluster.nodes["n3"]
    leader.requested.clear()
    leader.hang.clear()
    calls = [asyncio.create_task(call.get("/drains")) for _ in range(5)]
    await asyncio.sleep(0.2)
    leader.hang.set()
    assert all(answer["items"] == [LEFT] for answer in await asyncio.gather(*calls))
    counts = [one for one in leader.requested if one[1] == DRAIN]
    assert 1 <= len(counts) <= 2
    cluster.nodes["n3"].answers["GET", DRAIN] = (503, {"detail": "no leader"})
    assert (await call.get("/drains"))["errors"] == [{"group": "broker-b", "error": "no leader"}]


async def test_drain_is_started_cancelled_and_ended_by_a_removal(
    cluster: FakeCluster, call: Caller
) -> None:
    leader = cluster.nodes["n3"]
    leader.answers["PUT", DRAIN] = leader.answers["DELETE", DRAIN] = (200, LEFT)
    for method in ("PUT", "DELETE"):
        assert (await call(method, "/groups/broker-b/drain"))[:2] == (200, LEFT)
    options = {"moveTimers": True, "moveDeadLetters": False, "to": "broker-a", "givenUp": ["cg"]}
    assert (await call("PUT", "/groups/broker-b/drain", options))[0] == 200
    assert last_change(leader)[2] == options
    assert (await call("PUT", "/groups/broker-b/drain", {"moveTimer": True}))[0] == 422
    refusal = {"code": "NOT_EMPTY", "detail": "3 of T for billing"}
    leader.answers["POST", f"{DRAIN}/remove"] = (409, refusal)
    status, problem, _ = await call("POST", "/groups/broker-b/drain/remove", {})
    assert (status, problem["code"], problem["detail"]) == (409, "NOT_EMPTY", refusal["detail"])
    leader.answers["POST", f"{DRAIN}/remove"] = (200, LEFT | {"removed": True})
    status, _, _ = await call("POST", "/groups/broker-b/drain/remove", {"lose": True})
    assert (status, last_change(leader)[2]) == (200, {"lose": True})
    assert all("X-Operator" in one[3] for one in leader.requested if one[0] != "GET")


# --- definitions


def topic(read: int, write: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": "T", "readQueueNums": read, "writeQueueNums": write, "perm": 6, "order": False,
        "filterType": "SINGLE_TAG", "sysFlag": 0, "messageType": "NORMAL", "attributes": {},
    } | more  # fmt: skip


def has_topics(cluster: FakeCluster, node: FakeNode, **topics: dict[str, Any]) -> None:
    configs = [
        TopicConfig(n, t["readQueueNums"], t["writeQueueNums"], 6) for n, t in topics.items()
    ]
    cluster.register(node, configs)
    for name, value in topics.items():
        answer = (200, value | {"topic": name}, {"ETag": f'"{node.name}"'})
        node.answers["GET", f"/api/v1/topics/{name}"] = answer


async def test_differing_topics_are_compared_at_leaders_only(
    cluster: FakeCluster, call: Caller
) -> None:
    a, b = cluster.nodes["n0"], cluster.nodes["n3"]
    page: dict[str, Any] = {"items": [], "next": None}
    for node in (a, b):
        node.answers["GET", "/api/v1/subscription-groups"] = (200, page)
    has_topics(cluster, a, Same=topic(4, 4), More=topic(8, 8), Steps=topic(8, 8, order=True))
    has_topics(cluster, b, Same=topic(4, 4), More=topic(4, 4), Steps=topic(4, 4))
    answer = await call.get("/definitions")
    assert [(row["name"], row["outcome"]) for row in answer["items"]] == [
        ("More", "changed"), ("Steps", "left: it differs")
    ]  # fmt: skip
    assert answer["items"][0]["has"] == {"broker-a": "8/8 RW", "broker-b": "4/4 RW"}
    assert answer["groups"] == ["broker-a", "broker-b"] and answer["next"] is None
    assert not [one for one in a.requested if one[1].endswith("/Same")]
    first = await call.get("/definitions?limit=1")
    second = await call.get(f"/definitions?limit=1&cursor={first['next']}")
    assert [page["items"][0]["name"] for page in (first, second)] == ["More", "Steps"]
    third = await call.get(f"/definitions?cursor={second['next']}")
    assert (third["items"], third["next"]) == ([], None)


async def test_topic_is_aligned_only_if_unchanged_since_it_was_read(
    cluster: FakeCluster, call: Caller
) -> None:
    a, b = cluster.nodes["n0"], cluster.nodes["n3"]
    fifo = topic(8, 8, attributes={"message.type": "FIFO"})
    has_topics(cluster, a, More=topic(8, 2), New=topic(3, 3), Fifo=fifo)
    has_topics(cluster, b, More=topic(4, 4))
    for node in (a, b):
        for name in ("More", "New"):
            node.answers["PUT", f"/api/v1/topics/{name}"] = (200, topic(8, 4))
    status, answer, _ = await call("POST", "/topics/More/align")
    assert (status, [row["outcome"] for row in answer["results"]]) == (200, ["ok", "ok"])
    bodies = [last_change(node) for node in (a, b)]
    assert all((one[2]["readQueueNums"], one[2]["writeQueueNums"]) == (8, 4) for one in bodies)
    assert "messageType" not in bodies[0][2]
    assert [one[3]["If-Match"] for one in bodies] == ['"n0"', '"n3"']
    await call("POST", "/topics/New/align")
    asked = last_change(b)
    assert (asked[2]["messageType"], asked[3]["If-None-Match"]) == ("NORMAL", "*")
    status, problem, _ = await call("POST", "/topics/Fifo/align")
    assert status == 409 and "a key's queue would change" in problem["detail"]
    assert (await call("POST", "/topics/None/align"))[0] == 404
    await b.stop()
    assert (await call("POST", "/topics/More/align"))[0] == 503


async def test_consumer_group_settings_are_copied_from_a_named_group(
    cluster: FakeCluster, call: Caller
) -> None:
    path = "/api/v1/subscription-groups"
    for name, times in (("n0", 3), ("n3", 9)):
        node = cluster.nodes[name]
        value = {"name": "billing", "retryMaxTimes": times, "version": name}
        node.answers["GET", path] = (200, {"items": [value], "next": None})
        node.answers["GET", f"{path}/billing"] = (200, value, {"ETag": f'"{name}"'})
        node.answers["PUT", f"{path}/billing"] = (200, value)
    (row,) = (await call.get("/definitions"))["items"]
    assert (row["kind"], row["outcome"]) == ("group", "left: it differs")
    (row,) = (await call.get("/definitions?like=broker-a"))["items"]
    assert (row["outcome"], row["why"]) == ("changed", "retryMaxTimes was 9")
    assert (await call("POST", "/subscription-groups/billing/align", {}))[0] == 409
    body = {"like": "broker-a"}
    status, answer, _ = await call("POST", "/subscription-groups/billing/align", body)
    assert (status, [one["group"] for one in answer["results"]]) == (200, ["broker-b"])
    assert last_change(cluster.nodes["n3"])[2] == {"retryMaxTimes": 3}
    await call.get("/definitions?like=none", 422)


async def test_draining_groups_are_not_compared(cluster: FakeCluster, call: Caller) -> None:
    has_topics(cluster, cluster.nodes["n0"], Mine=topic(4, 4))
    cluster.nodes["n0"].answers["GET", "/api/v1/subscription-groups"] = (200, {"items": []})
    cluster.nodes["n3"].view["drainingMs"] = 5
    answer = await call.get("/definitions")
    assert (answer["items"], answer["groups"]) == ([], ["broker-a"])


async def test_group_without_a_registered_broker_is_omitted(
    cluster: FakeCluster, call: Caller
) -> None:
    machines(cluster)
    cluster.nodes["n0"].answers["GET", "/api/v1/subscription-groups"] = (200, {"items": []})
    await call.get("/groups")
    for node in cluster.nodes.values():
        if node.group == "broker-b":
            cluster.server.table.unregister(node.address, node.group, 0)
    assert [row["group"] for row in (await call.get("/leader-balance"))["items"]] == ["broker-a"]
    assert (await call.get("/definitions"))["groups"] == ["broker-a"]
    assert [group["name"] for group in await groups(call)] == ["broker-a", "broker-b"]


async def groups(call: Caller) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await call.get("/groups"))["items"]
    return items


def test_brokers_of_a_removed_group_are_not_remembered() -> None:
    table = RouteTable()
    directory = Directory(table)
    one, other = "1" * 32, "2" * 32
    leaving = Registration("C", "b", "h:1", 0, term=1, group_id=other)
    table.register(leaving, 0)
    assert [known.group for known in directory.poll(0)] == ["b"]
    table.unregister("h:1", "b", 0)
    assert [known.gone_since_ms for known in directory.poll(1)] == [1]
    table.register(Registration("C", "a", "h:2", 0, term=1, group_id=one, removed=(other,)), 2)
    assert [known.group for known in directory.poll(2)] == ["a"]
