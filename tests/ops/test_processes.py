"""A cluster of real processes as an operator sees it: its metrics, logs, and runbooks' commands."""

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import Node
from raftmq.chaos.cluster.launch import log_path
from raftmq.client import Message, Producer
from tests.ops.scrape import Scrape

RUNBOOKS = Path(__file__).parent.parent.parent / "docs" / "runbooks"
PATIENCE_S = 120.0
SETTINGS = {
    # A busy machine shall not depose the leader before the test does; a kill is noticed at once.
    "electionTimeoutMinMs": "4s",
    "electionTimeoutMaxMs": "6s",
    "logFormat": "json",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": "8MiB",
    "diskSpaceWarningLevelRatio": "100%",
}


async def scrape(session: aiohttp.ClientSession, node: Node) -> Scrape:
    async with session.get(f"http://{node.http}/metrics") as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return Scrape(await answer.text())


async def scraped_until(
    session: aiohttp.ClientSession, node: Node, condition: Callable[[Scrape], bool]
) -> Scrape:
    async with asyncio.timeout(PATIENCE_S):
        while not condition(result := await scrape(session, node)):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)
    return result


@dataclass(frozen=True)
class Command:
    """A curl of a runbook: whom it asks ($B and $LEADER: a broker, $NS: a name server), and what
    jq, or grep among the metrics, is to find in the answer."""

    runbook: str
    method: str
    server: str
    path: str
    wanted: frozenset[str]


def commands() -> list[Command]:
    """All of docs/runbooks."""
    result = []
    for book in sorted(RUNBOOKS.glob("*.md")):
        for line in re.findall(r"curl ([^\n`]+)", book.read_text()):
            for one in line.split("; curl "):
                target = re.search(r"\$(B|NS|LEADER)(/[\w./-]+)", one)
                if target is None:
                    continue
                method = re.search(r"-X ([A-Z]+)", one)
                jq = one.partition("| jq ")[2].partition("#")[0]
                keys = frozenset(re.findall(r"[a-z][A-Za-z]+", jq)) - {"length"}
                if grep := re.search(r"\| grep -E '([^']+)'", one):
                    keys = frozenset({grep[1]})
                whom = "NS" if target[1] == "NS" else "B"
                verb = method[1] if method else "GET"
                result.append(Command(book.name, verb, whom, target[2], keys))
    return result


def keys_of(value: object) -> set[str]:
    """Of all objects in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(v) for v in value.values()))
    return set().union(*(keys_of(v) for v in value)) if isinstance(value, list) else set()


async def check_runbooks(session: aiohttp.ClientSession, broker: Node, namesrv: Node) -> None:
    """Every command of the runbooks is an operation that there is; what only looks is done."""
    servers = {"B": f"http://{broker.http}", "NS": f"http://{namesrv.http}"}
    described = {}
    for name, base in servers.items():
        async with session.get(f"{base}/api/v1/openapi.json") as answer:
            described[name] = (await answer.json())["paths"]
    assert len(commands()) > 20
    for command in commands():
        patterns = {
            re.sub(r"\{\w+\}", "[^/]+", path)
            for path, methods in described[command.server].items()
            if command.method.lower() in methods
        }
        assert any(re.fullmatch(pattern, command.path) for pattern in patterns), command
        if command.method != "GET" or "consumer-groups" in command.path:
            continue
        path = command.path.replace("GROUP", broker.group)
        async with session.get(servers[command.server] + path) as answer:
            assert answer.status == 200, (command, await answer.text())
            if command.path == "/metrics":
                text = await answer.text()
                missing = {w for w in command.wanted if not re.search(w, text)}
            else:
                missing = set(command.wanted - keys_of(await answer.json()))
            assert not missing, (command, missing)


async def test_operator_view_of_a_killed_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c")
    try:
        state = await cluster.up(settings=SETTINGS)
        leader = await cluster.find("leader")
        survivors = [node for node in state.brokers if node.name != leader.name]
        (namesrv,) = state.name_servers
        async with aiohttp.ClientSession() as session, Producer("p", state.namesrv) as producer:
            await producer.send(Message("T", b"one"), timeout_ms=120_000)
            old = await scraped_until(
                session, leader, lambda s: s.sum("rocketmq_sends_total", code="SUCCESS") >= 1
            )
            assert old.sum("raft_role", role="leader", node=leader.name) == 1
            assert old.sum("rocketmq_commitlog_fsync_duration_seconds_count") > 0
            assert old.sum("process_cpu_seconds_total") > 0
            routes = await scraped_until(
                session, namesrv, lambda s: s.sum("rocketmq_namesrv_brokers") == 3
            )
            assert routes.sum("rocketmq_namesrv_brokers", role="leader") == 1
            assert routes.sum("rocketmq_namesrv_registrations_total", result="accepted") >= 3
            await check_runbooks(session, leader, namesrv)
            before = {node.name: await scrape(session, node) for node in survivors}

            await cluster.wait_dead(cluster.signal(leader.name, signal.SIGKILL))
            await cluster.wait_serving()
            heir = await cluster.find("leader")
            await producer.send(Message("T", b"two"), timeout_ms=120_000)
            after = await scraped_until(
                session, heir, lambda s: s.sum("raft_peer_connected", peer=leader.name) == 0
            )
            for figure in ("raft_term", "raft_elections_total", "raft_leader_changes_total"):
                assert after.sum(figure) > before[heir.name].sum(figure), figure
            assert after.sum("rocketmq_leading") == 1
            assert before[heir.name].sum("rocketmq_leading") == 0
            assert after.sum("rocketmq_sends_total", code="SUCCESS") >= 1
            await scraped_until(session, namesrv, lambda s: s.sum("rocketmq_namesrv_brokers") == 2)

        lines = log_path(cluster.directory, heir).read_text().splitlines()
        events = [orjson.loads(line) for line in lines if line.startswith("{")]
        elected = [e for e in events if e["event"] == "role_changed" and e["role"] == "leader"]
        assert elected[-1]["term"] == after.sum("raft_term")
        assert {"time", "level", "logger", "node", "group", "service"} <= elected[-1].keys()
    finally:
        await cluster.down()
        await cluster.close()
