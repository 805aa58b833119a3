"""A name server proves that it has the cluster's token, and shows it to nobody: neither to brokers
nor to whoever has registered as one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from raftmq.broker.broker import Broker
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.routes import Registration
from raftmq.namesrv.server import NameServer
from raftmq.remoting.registration import DataVersion, TopicConfig
from tests.broker.cluster import Group, until
from tests.broker.http.process import TOKENS, tokens_file
from tests.namesrv.http.nodes import FakeNode
from tests.namesrv.http.test_real_brokers import Api

SHOWN = {"Authorization": f"Bearer {TOKENS['admin']}"}
RETRY_TOPIC = "%25RETRY%25cg"  # as it stands in a path


@asynccontextmanager
async def over(directory: Path, token: str) -> AsyncIterator[tuple[Api, NameServer, Broker]]:
    """A name server with that token, and one broker that wants one."""
    tokens = str(tokens_file(directory / "tokens"))
    own = directory / "own"
    own.write_text(token)
    own.chmod(0o600)
    config = NameServerConfig(
        bind="127.0.0.1", port=0, http_port=0, http_cluster_token_file=str(own)
    )
    async with NameServer(config) as names, aiohttp.ClientSession() as session:
        assert names.http is not None
        settings = {"namesrvAddr": f"127.0.0.1:{names.port}", "httpTokensFile": tokens}
        async with Group(directory, 1, **settings) as group:
            broker = await group.leading()
            await until(lambda: bool(names.http and names.http.cluster.leaders().get("group-a")))
            yield Api(f"http://127.0.0.1:{names.http.port}", session), names, broker


async def test_a_broker_knows_the_name_server_by_its_signature(tmp_path: Path) -> None:
    async with over(tmp_path, TOKENS["operator"]) as (call, _, broker):
        seen = await call.until("/cluster", lambda v: v["groups"][0]["leader"])
        assert seen["groups"][0]["brokers"][0]["node"]["name"] == "n0"
        # With path, query, body and role: the operator may hand over, and change no topic.
        status, value, _ = await call("POST", "/groups/group-a/transfer", {"target": "n9"})
        assert (status, value["code"]) == (409, "REFUSED")
        status, value, _ = await call("PUT", "/topics/T?group=group-a", {}, If_Match="*")
        assert (status, value["results"][0]["error"]) == (
            403,
            "403 operator is operator, not admin",
        )
        path = f"/brokers/group-a/0/topics/{RETRY_TOPIC}/queues?limit=1"
        assert (await call("GET", path))[0] == 404  # of the topic: that it may ask
        await until(lambda: broker.http.hub.reader_count == 1)  # the stream is signed, too


async def test_a_wrong_token_is_refused_and_that_is_told(tmp_path: Path) -> None:
    async with over(tmp_path, "nobodys-0123456789abcdef") as (call, _, _broker):
        seen = (await call("GET", "/cluster"))[1]["groups"][0]["brokers"][0]
        assert (seen["node"], seen["error"]) == (
            None, "401 nobody signed this for this address, or it is not new"
        )  # fmt: skip
        status, value, _ = await call("POST", "/groups/group-a/transfer", {})
        assert (status, value["code"]) == (502, "CLUSTER_TOKEN")


async def test_an_impostor_learns_nothing_that_it_could_use(tmp_path: Path) -> None:
    async with (
        over(tmp_path, TOKENS["admin"]) as (call, names, broker),
        impostor(names) as node,
        aiohttp.ClientSession() as session,
    ):
        real = f"http://{broker.http.address}"
        async with session.get(f"{real}/api/v1/node") as answer:
            wants = answer.headers["WWW-Authenticate"]  # the real broker's own challenge, passed on
        node.answers["GET", "/api/v1/node"] = (401, {"detail": "who asks?"}, {
            "WWW-Authenticate": wants
        })  # fmt: skip
        node.answers["POST", "/api/v1/node/transfer"] = refusing(wants)
        await call.until("/cluster", lambda v: any(g["name"] == "broker-x" for g in v["groups"]))
        assert (await call("POST", "/groups/broker-x/transfer", {}))[0] == 502
        signed = [headers for _, _, _, headers in node.asked if "Authorization" in headers]
        assert signed, "it was shown signatures"
        assert not any(TOKENS["admin"] in str(asked) for asked in node.asked)
        for method, path, body, headers in list(node.asked):
            sent = {"Authorization": headers.get("Authorization", ""), "Host": node.http}
            async with session.request(method, real + path, json=body, headers=sent) as answer:
                assert answer.status == 401, (method, path)
        async with session.get(f"{real}/api/v1/node", headers=SHOWN) as answer:
            assert answer.status == 200  # people show theirs as ever


async def test_what_was_overheard_is_not_answered_again(tmp_path: Path) -> None:
    """Signed for this broker, by the name server, and sent a second time by somebody else."""
    async with (
        over(tmp_path, TOKENS["admin"]) as (call, names, broker),
        aiohttp.ClientSession() as session,
    ):
        await call.until("/cluster", lambda v: v["groups"][0]["leader"])
        assert names.http is not None
        url = URL(f"http://{broker.http.address}/api/v1/config")
        signed = names.http.cluster.nodes._sign(broker.http.address, "GET", url, None)
        assert signed is not None
        statuses = []
        for _ in range(2):
            sent = {"Authorization": signed.header()}
            async with session.get(url, headers=sent) as answer:
                statuses.append(answer.status)
        assert statuses == [200, 401]
        another = names.http.cluster.nodes._sign(broker.http.address, "PATCH", url, b"{}")
        assert another is not None
        sent = {"Authorization": another.header(), "If-Match": "*"}
        async with session.patch(url, headers=sent, json={"topicsMax": 1}) as answer:
            assert (answer.status, (await answer.json())["detail"]) == (
                401, "this is not the body that was signed"
            )  # fmt: skip


@asynccontextmanager
async def impostor(names: NameServer) -> AsyncIterator[FakeNode]:
    """Registered as the leader of a group, as anybody can."""
    node = FakeNode("n0", "broker-x")
    await node.start()
    try:
        names.table.register(
            Registration("C", "broker-x", node.address, 0, version=DataVersion(1, 0, 1),
                         topics=[TopicConfig("T", 1, 1, 6)], term=1, http_address=node.http),
            time.monotonic_ns() // 1_000_000,
        )  # fmt: skip
        yield node
    finally:
        await node.stop()


def refusing(wants: str) -> Any:
    def answer(request: web.Request, body: bytes) -> Any:
        return 401, {"detail": "who asks?"}, {"WWW-Authenticate": wants}

    return answer
