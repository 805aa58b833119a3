"""Whatever a registered broker answers, an operation of the cluster API does not fail by itself: a
wrong answer is the broker's fault (502)."""

import random
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from raftmq.web.operation import Operation
from tests.namesrv.http.nodes import FakeCluster, FakeNode, replicas
from tests.namesrv.http.test_cluster_api import Caller

JSON = "application/json"
FILLED = {"group": "broker-a", "topic": "Orders", "queueId": "0", "member": "n1", "name": "cg",
          "accessKey": "shop-0001", "logger": "raftmq", "address": "127.0.0.1:1"}  # fmt: skip
BODIES = {"putAccount": {"secretKey": "0123456789"}, "resetOffsets": {"topic": "Orders"}}
QUERIES = {"findMessages": "?topic=Orders&startMs=0", "listQueueMessages": "?group=broker-a"}
OF_THIS_PROCESS = ("/health", "/api/v1/events", "/api/v1/log-levels", "/api/v1/session",
                   "/api/v1/config", "/api/v1/whoami")  # fmt: skip


class Wrong(FakeNode):
    """A broker that answers every request alike."""

    given: tuple[int, str, bytes] = (200, JSON, b"{}")

    async def _answer(self, request: web.Request) -> web.Response:
        status, media_type, body = self.given
        headers = {"Content-Type": media_type} if media_type else {}
        return web.Response(status=status, body=body, headers=headers)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    nodes = [Wrong(node.name, node.group) for node in replicas()]
    nodes[0].view |= {"role": "leader", "leaderReady": True, "brokerId": 0}
    async with FakeCluster(*nodes) as running:
        yield running


@pytest.fixture
async def call(cluster: FakeCluster) -> AsyncIterator[Caller]:
    caller = Caller(cluster)
    yield caller
    await caller.session.close()


def made_up(rng: random.Random, depth: int = 0) -> Any:
    """Return JSON with names that brokers use and values of any type."""
    names = ["items", "next", "name", "term", "role", "members", "disk", "clients", "queues",
             "storeTimestamp", "commitLogOffset", "times", "leading", "series", "values", "topic",
             "accessKey", "producers", "commitLog", "scanned", "subscriptions"]  # fmt: skip
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind >= 6:
        return {rng.choice(names): made_up(rng, depth + 1) for _ in range(rng.randrange(5))}
    if kind == 5:
        return [made_up(rng, depth + 1) for _ in range(rng.randrange(3))]
    return rng.choice([None, True, -1, 1 << 60, 1.5, "", "leader", "x" * 300, "7"])


def operations(cluster: FakeCluster) -> list[Operation]:
    assert cluster.server.http is not None
    result = cluster.server.http.operations
    return [one for one in result if not one.path.startswith(OF_THIS_PROCESS)]


async def statuses(cluster: FakeCluster, call: Caller) -> dict[str, int]:
    """Call every operation; return the statuses."""
    address = cluster.nodes["n0"].address
    host, port = address.split(":")
    message_id = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}{4096:016x}"
    result = {}
    for one in operations(cluster):
        path = one.path.removeprefix("/api/v1").format(**FILLED, messageId=message_id)
        body = BODIES.get(one.name, {"messageIds": [message_id]} if "resend" in path else {})
        expected = {"If_Match": "*"} if one.conditional else {}
        sent = None if one.method in ("GET", "DELETE") else body
        status, _, _ = await call(one.method, path + QUERIES.get(one.name, ""), sent, **expected)
        result[one.name] = status
    for path in ("/brokers/broker-a/0/topics", "/brokers/broker-a/0/node"):
        result[path] = (await call("GET", path))[0]
    return result


@pytest.mark.parametrize(
    "given",
    [
        (200, JSON, b"hello"),
        (200, JSON, b"[1, 2]"),
        (200, JSON, b'"text"'),
        (200, "text/html", b"<script>"),
        (200, "", b"{}"),
        (302, JSON, b"{}"),
        (299, JSON, b"{}"),
        (404, "text/html", b"<h1>"),
        (599, JSON, b"{}"),
        (500, JSON, b"[]"),
    ],
)
async def test_malformed_broker_answer_causes_no_internal_error(
    cluster: FakeCluster,
    call: Caller,
    given: tuple[int, str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for node in cluster.nodes.values():
        node.given = given  # type: ignore[attr-defined]
    result = await statuses(cluster, call)
    assert len(result) > 30
    own = {name: status for name, status in result.items() if status == 500 and given[0] != 500}
    assert own == {}
    if given[0] == 200:
        assert result["getMessage"] == result["listMembers"] == result["transferLeadership"] == 502
        if given[1] != JSON:
            assert result["/brokers/broker-a/0/topics"] == 502, "no page of another origin"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("seed", range(12))
async def test_random_broker_json_causes_no_internal_error(
    cluster: FakeCluster, call: Caller, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    for node in cluster.nodes.values():
        node.given = (200, JSON, orjson.dumps(made_up(rng)))  # type: ignore[attr-defined]
    result = await statuses(cluster, call)
    assert {name for name, status in result.items() if status == 500} == set()
    assert "Traceback" not in caplog.text
