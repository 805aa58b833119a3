"""The cluster API over real brokers: three replicas in this process and a name server."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import orjson
import pytest

from raftmq.broker.replication import engine
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from tests.broker.cluster import Group
from tests.broker.http.process import TOKENS, tokens_file
from tests.curl import CURL
from tests.waiting import until

SEED = 20_261_121
EXAMPLES = 1  # per operation
LEFT_OUT = ("streamEvents",)  # they never end
# What a body means, and which headers go with it, the brokers' own documents say; and one of them
# may not be able to just now.
LEFT_TO_BROKERS = (
    "putTopic", "deleteTopic", "putSubscriptionGroup", "deleteSubscriptionGroup", "resetOffsets",
    "sendMessage", "resendMessage", "transferLeadership", "putPreferredLeader",
    "deletePreferredLeader", "addMember", "promoteMember", "removeMember", "listQueueMessages",
)  # fmt: skip
CONFIG = f"""
[[operations]]
include-operation-id = {list(LEFT_TO_BROKERS)}
checks.positive_data_acceptance.expected-statuses = [
  200, 204, 207, 404, 405, 409, 412, 415, 422, 428, 502, 503
]
checks.negative_data_rejection.expected-statuses = [
  400, 404, 405, 409, 412, 415, 422, 428, 502, 503
]
checks.not_a_server_error.expected-statuses = [200, 204, "4xx", 502, 503]
"""
DOCUMENT = Path(__file__).parents[3] / "docs" / "dashboard.md"
PATIENCE_S = 120.0
TOPIC = "/topics/Orders"


class Api:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """(status, JSON, ETag); asked again while nobody is known to lead, and nothing was done."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = await self.once(method, path, body, **headers)
            if answer[0] != 503 or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(0.02)

    async def once(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.url}/api/v1{path}"
        async with self._session.request(method, url, json=body, headers=sent) as answer:
            data = await answer.read()
            etag = answer.headers.get("ETag", "")
            return answer.status, orjson.loads(data) if data else None, etag

    async def until(self, path: str, reached: Any) -> Any:
        """The answer to GET once it is as wanted."""
        last: Any = None

        async def asked() -> bool:
            nonlocal last
            last = status, value, _ = await self.once("GET", path)
            return status == 200 and bool(reached(value))

        await until(asked, lambda: last, pause_s=0.02)
        return last[1]

    async def change(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """A change that succeeds, perhaps once the name server knows the leader."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status, value, _ = await self.once(method, path, body, **headers)
            if status < 207:
                return value
            assert status in (404, 503, 504) and time.monotonic() < deadline, (status, value)
            await asyncio.sleep(0.02)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[Api, Group]]:
    async with over(tmp_path, 3) as running:
        yield running


@asynccontextmanager
async def over(tmp_path: Path, replicas: int, tokens: str = "") -> AsyncIterator[tuple[Api, Group]]:
    """A name server and a group of brokers."""
    config = NameServerConfig(bind="127.0.0.1", port=0, http_port=0, http_tokens_file=tokens)
    async with NameServer(config) as server, aiohttp.ClientSession() as session:
        assert server.http is not None
        address = f"127.0.0.1:{server.port}"
        # Elections would only be noise here: a busy machine must not cause any.
        settings: dict[str, Any] = {"electionTimeoutMinMs": 1500, "electionTimeoutMaxMs": 2500}
        settings |= {"namesrvAddr": address, "httpPort": 0, "registerNameServerPeriod": 1000}
        settings["historyPeriodMs"] = 100
        with patch.object(engine, "PREFERRED_STEADY_MS", 200):
            async with Group(tmp_path, replicas, **settings) as group:
                yield Api(f"http://127.0.0.1:{server.http.port}", session), group


def told(history: Any, name: str) -> list[Any]:
    result = [one for group in history["groups"] for one in group["series"] if one["name"] == name]
    return list(result[0]["values"]) if result else []


def agreed(cluster: Any) -> bool:
    groups = cluster["groups"]
    return bool(groups) and len(groups[0]["brokers"]) == 3 and not cluster["differences"]


async def test_cluster_api_over_real_brokers(api: tuple[Api, Group]) -> None:
    call, group = api
    cluster = await call.until("/cluster", agreed)
    (shown,) = cluster["groups"]
    assert [broker["name"] for broker in shown["brokers"]] == ["n0", "n1", "n2"]
    assert shown["leader"] in group.names

    await call.change("PUT", TOPIC, {"readQueueNums": 2, "writeQueueNums": 2}, If_None_Match="*")
    status, _, _ = await call("PUT", TOPIC, {"perm": 4}, If_None_Match="*")
    assert status == 412
    status, value, etag = await call("GET", TOPIC)
    assert (status, value["groups"][0]["writeQueueNums"]) == (200, 2)
    status, value, _ = await call("PUT", TOPIC, {"perm": 7, "writeQueueNums": 4}, If_Match=etag)
    assert (status, value["results"][0]["outcome"]) == (200, "ok")
    status, value, _ = await call("PUT", TOPIC, {"perm": 6}, If_Match=etag)  # by now another
    assert (status, value["results"][0]["status"]) == (412, 412)
    status, value, _ = await call("PUT", TOPIC, {"perm": 99}, If_Match="*")
    assert (status, value["results"][0]["outcome"]) == (422, "failed")
    await call.change("PUT", "/topics/Later", {"messageType": "DELAY"}, If_None_Match="*")
    listed = "/topics?kind=own"
    topics = await call.until(listed, lambda v: "Later" in {one["topic"] for one in v["items"]})
    kinds = {one["topic"]: one["groups"][0]["messageType"] for one in topics["items"]}
    assert (kinds["Later"], kinds["Orders"]) == ("DELAY", None)

    message = {"topic": "Orders", "body": "<b>&", "keys": "k1", "queueId": 0}
    sent = [await call.change("POST", "/messages", message) for _ in range(3)]
    result = await call.until("/messages?topic=Orders&key=k1", lambda v: len(v["items"]) == 3)
    assert result["items"][0]["text"] == "<b>&"
    history = await call.until("/history?topic=Orders", lambda v: 3 in told(v, "messages"))
    assert history["errors"] == [] and len(told(history, "messages")) == len(history["times"])
    listed = "/topics/Orders/queues/0/messages?offset=1"
    assert len((await call.until(listed, lambda v: True))["items"]) == 2

    leader = await group.leading()
    assert (await group.commit(leader, "Orders", 0, 1)).code == 0
    trace = f"/messages/{sent[2]['offsetMsgId']}/trace"
    traced = await call.until(trace, lambda v: all(r["state"] == "durable" for r in v["replicas"]))
    assert [(c["name"], c["state"], c["messagesBefore"]) for c in traced["consumers"]] == [
        ("cg", "waiting", 1)
    ]
    lag = await call.until("/consumer-groups", lambda v: bool(v["items"]))
    assert (lag["items"][0]["name"], lag["items"][0]["groups"][0]["lag"]) == ("cg", 2)
    to_end = {"topic": "Orders", "to": {"position": "latest"}}
    await call.change("POST", "/consumer-groups/cg/reset", to_end)
    await call.until("/consumer-groups/cg", lambda v: v["lag"] == 0)

    follower = next(name for name in group.names if name != group.brokers[name].roles.leader)
    _, node, _ = await call("GET", f"/brokers/group-a/{follower}/node")
    assert (node["name"], node["role"]) == (follower, "follower")
    await call.change("POST", "/groups/group-a/transfer", {"target": follower})
    await call.until("/groups/group-a", lambda v: v["leader"] == follower)
    members = "/groups/group-a/members"
    learner = {"id": "n9", "address": "127.0.0.1:1", "force": True}
    made = await call.change("POST", members, learner)
    assert (made["role"], made["brokerId"]) == ("learner", 4)
    status, refused, _ = await call("POST", f"{members}/n9/promote")
    assert (status, refused["code"], refused["group"]) == (409, "REFUSED", "group-a")
    await call.change("DELETE", f"{members}/n9")
    assert (await call("DELETE", f"{members}/n9"))[0] == 404
    listed = await call.until(members, lambda v: len(v["items"]) == 3)
    assert {row["role"] for row in listed["items"]} == {"voter"}
    await prefers(call, follower, next(name for name in group.names if name != follower))
    failovers = await call.until("/failovers", lambda v: v["items"][0]["newLeader"] == follower)
    assert failovers["items"][0]["planned"]
    await call.change("DELETE", TOPIC, If_Match="*")
    assert (await call("GET", TOPIC))[0] == 404


async def prefers(call: Api, leader: str, other: str) -> None:
    """Another one leads from now on, and then nobody is preferred."""
    preferred = "/groups/group-a/preferred-leader"
    status, before, etag = await call("GET", preferred)
    assert (status, before["name"], before["leader"]) == (200, None, leader)
    assert (await call("PUT", preferred, {"name": other}))[0] == 428
    status, refused, _ = await call("PUT", preferred, {"name": "n9"}, If_Match=etag)
    assert (status, refused["errors"][0]["field"]) == (422, "name")
    status, put, chosen = await call("PUT", preferred, {"name": other}, If_Match=etag)
    assert (status, put["name"]) == (200, other)
    shown = await call.until("/groups/group-a", lambda v: v["leader"] == other)
    assert shown["preferredLeader"] == other
    status, _, now = await call("DELETE", preferred, If_Match=etag)
    assert (status, now) == (412, chosen)
    await call.change("DELETE", preferred, If_Match=chosen)
    await call.until("/groups/group-a", lambda v: v["preferredLeader"] is None)
    await call.change("POST", "/groups/group-a/transfer", {"target": leader})
    await call.until("/groups/group-a", lambda v: v["leader"] == leader)


async def test_cluster_api_page_examples_work(api: tuple[Api, Group]) -> None:
    call, _ = api
    await call.until("/cluster", agreed)
    text = await asyncio.to_thread(DOCUMENT.read_text)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    script = CURL + "\n".join(blocks).replace("http://127.0.0.1:9880", call.url)
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", script, env={"PATH": "/usr/bin:/bin", "no_proxy": "*"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    for texts in ('"differences":[]', '"name":"n1"', '"outcome":"ok"', '"writeQueueNums":8',
                  '"queueOffset":0', '"producers":[]', '"target":"n', '"machine":',
                  '"takesSends":true', '"groups":["group-a"]', '"results":[]'):  # fmt: skip
        assert texts in said, texts


async def test_cluster_api_conforms_to_its_openapi_document(tmp_path: Path) -> None:
    """schemathesis makes requests up, right and wrong ones."""
    file = tokens_file(tmp_path / "tokens")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    async with over(tmp_path, 1, str(file)) as (call, _):
        shown = {"Authorization": f"Bearer {TOKENS['admin']}"}
        deadline = time.monotonic() + PATIENCE_S
        while not any(g["leader"] for g in (await call("GET", "/groups", **shown))[1]["items"]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        left_out = [part for name in LEFT_OUT for part in ("--exclude-operation-id", name)]
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")), "run",
            f"{call.url}/api/v1/openapi.json", "-H", f"Authorization: {shown['Authorization']}",
            "--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", str(SEED),
            "--continue-on-failure", "--no-color", *left_out,
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said[-8_000:]
