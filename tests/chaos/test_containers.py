"""The cluster of containers over an engine of the test, and the requests to an engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import orjson
import pytest

from raftmq.chaos.cluster.clusterfile import COMPOSE, ClusterError
from raftmq.chaos.cluster.compose import ComposeCluster
from raftmq.chaos.cluster.docker import Docker, unframed
from raftmq.chaos.faults.base import Context, Planned
from raftmq.chaos.faults.catalogue import REGISTRY, make, unavailable
from raftmq.chaos.history.files import HistoryWriter
from tests.chaos.doubles import AgreeingProbe


@dataclass
class Engine(Docker):
    """Containers as a table; every change is recorded."""

    host: str = "test"
    table: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, node: str, kind: str = "broker", project: str = "p", **labels: str) -> None:
        port = 10_000 + len(self.table)
        self.table[node] = {
            "State": "running",
            "Run": 1,
            "Networks": {"net": {"Aliases": [f"service-{node}"]}},
            "Labels": {
                "raftmq.kind": kind,
                "raftmq.node": node,
                "raftmq.address": f"127.0.0.1:{port}",
                "com.docker.compose.project": project,
            }
            | {f"raftmq.{key}": value for key, value in labels.items()},
        }

    def containers(self, label: str) -> list[dict[str, Any]]:
        return [{"Id": node, **entry} for node, entry in self.table.items()]

    def inspect(self, container: str) -> dict[str, Any]:
        entry = self.table[container]
        return {
            "State": {"Status": entry["State"], "Pid": 7, "StartedAt": str(entry["Run"])},
            "NetworkSettings": {"Networks": entry["Networks"]},
            "Mounts": [{"Destination": "/var/lib/raftmq", "Source": f"/volumes/{container}"}],
        }

    def start(self, container: str) -> None:
        self._change("start", container, "running")
        self.table[container]["Run"] += 1

    def kill(self, container: str, signal: str) -> None:
        self._change(f"kill {signal}", container, "exited")

    def pause(self, container: str) -> None:
        self._change("pause", container, "paused")

    def unpause(self, container: str) -> None:
        self._change("unpause", container, "running")

    def disconnect(self, network: str, container: str) -> None:
        self.calls.append(("disconnect", network, container))
        del self.table[container]["Networks"][network]

    def connect(self, network: str, container: str, aliases: list[str]) -> None:
        self.calls.append(("connect", network, container, *aliases))
        self.table[container]["Networks"][network] = {"Aliases": aliases}

    def logs(self, container: str, since_s: int) -> bytes:
        return f"{container} says\n".encode()

    def _change(self, what: str, container: str, to: str) -> None:
        self.calls.append((what, container))
        self.table[container]["State"] = to


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    for number in (2, 0, 1):
        engine.add(f"n{number}", group="broker-a")
    engine.add("namesrv", "namesrv")
    engine.add("m0", group="pair-a", mode="2m-2s-async")
    return engine


@pytest.fixture
async def cluster(engine: Engine, tmp_path: Path):
    cluster = ComposeCluster(tmp_path / "c", docker=engine, probe=AgreeingProbe())
    yield cluster
    await cluster.close()


async def test_container_labels_describe_the_cluster(
    cluster: ComposeCluster, engine: Engine
) -> None:
    state = cluster.state()
    assert [node.name for node in state.nodes] == ["namesrv", "n0", "n1", "n2"]
    assert (state.mode, state.on, state.groups) == ("raft", COMPOSE, ("broker-a",))
    assert state.namesrv == "127.0.0.1:10003"
    assert [node.broker_id for node in state.brokers] == [0, 1, 2]
    await cluster.wait_serving(5)
    engine.add("n9", project="another", group="broker-a")
    with pytest.raises(ClusterError, match="another, p; name one"):
        cluster.state()
    named = ComposeCluster(cluster.directory, "p", docker=engine, probe=AgreeingProbe())
    assert len(named.state().brokers) == 3
    classic = ComposeCluster(cluster.directory, "p", "2m-2s-async", engine, AgreeingProbe())
    assert [node.name for node in classic.state().brokers] == ["m0"]
    engine.table.clear()
    with pytest.raises(ClusterError, match="docker compose up"):
        cluster.state()


async def test_container_signals_and_starts_reach_the_engine(
    cluster: ComposeCluster, engine: Engine
) -> None:
    run = cluster.signal("n0", signal.SIGSTOP)
    await cluster.wait_stopped(run)
    assert [s.state for s in await cluster.status()][1] == "stopped" and cluster.is_alive("n0")
    cluster.signal("n0", signal.SIGCONT)
    cluster.signal("n0", signal.SIGCONT)  # it runs already
    run = cluster.signal("n0", signal.SIGKILL)
    await cluster.wait_dead(run)
    assert not cluster.is_alive("n0")
    with pytest.raises(ClusterError, match="n0 is not running"):
        cluster.signal("n0", signal.SIGTERM)
    cluster.start("n0")
    with pytest.raises(ClusterError, match="n0 runs already"):
        cluster.start("n0")
    await cluster.wait_dead(run)  # that run is over, though a new run has started
    assert engine.calls == [
        ("pause", "n0"),
        ("unpause", "n0"),
        ("kill SIGKILL", "n0"),
        ("start", "n0"),
    ]
    with pytest.raises(ClusterError, match="docker compose"):
        await cluster.up()
    with pytest.raises(ClusterError, match="docker compose"):
        await cluster.down()


async def test_container_stores_and_logs_are_collected(cluster: ComposeCluster) -> None:
    assert cluster.store_of(cluster.state().node("n1")) == Path("/volumes/n1/store")
    logs = cluster.collect_logs()
    assert logs["n2"].read_text() == "n2 says\n" and set(logs) == {"namesrv", "n0", "n1", "n2"}
    assert "n0 says" in cluster.log_tails(cluster.state().brokers)


async def test_container_cut_leaves_and_rejoins_its_networks(
    cluster: ComposeCluster, engine: Engine, tmp_path: Path
) -> None:
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        planned = Planned(1, 0.0, 1.0, "cut-node", "n1", 0.5)
        fault = make(planned, Context(cluster, history))
        await fault.inject()
        assert fault.describe() == "n1: off its networks"
        await fault.heal()
    assert engine.calls == [("disconnect", "net", "n1"), ("connect", "net", "n1", "service-n1")]


async def test_every_fault_kind_is_possible_in_containers_or_reports_why_not(
    cluster: ComposeCluster,
) -> None:
    state = cluster.state()
    can = {name for name, (kind, _) in REGISTRY.items() if unavailable(kind, state) is None}
    assert can == {
        *("kill", "term", "pause", "restart-all", "stop-all", "rolling-restart", "transfer"),
        *("namesrv-down", "namesrv-pause", "cut-node"),
    }
    kind, _ = REGISTRY["delay"]
    assert "no proxies" in (unavailable(kind, state) or "")


class Answers(BaseHTTPRequestHandler):
    """Records requests; returns the test's answers."""

    seen: list[tuple[str, str, bytes]]
    answer: tuple[int, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen.append((self.command, self.path, body))
        self.send_response(self.answer[0])
        self.send_header("Content-Length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])

    do_GET = do_POST

    def address_string(self) -> str:
        return "test"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[tuple[type[Answers], Docker]]:
    class Own(Answers):
        answer = (200, b"[]")

    Own.seen = []
    path = tmp_path / "socket"
    with UnixStreamServer(str(path), Own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield Own, Docker(f"unix://{path}")
        server.shutdown()
        thread.join()


def test_engine_requests_and_errors(answers: tuple[type[Answers], Docker]) -> None:
    own, docker = answers
    assert docker.containers("raftmq.kind") == []
    own.answer = (204, b"")
    docker.kill("abc", "SIGKILL")
    docker.connect("net", "abc", ["broker-a0"])
    (method, path, _), kill, (_, join, body) = own.seen
    assert method == "GET" and path.startswith("/containers/json?all=1&filters=%7B%22label")
    assert kill == ("POST", "/containers/abc/kill?signal=SIGKILL", b"")
    assert join == "/networks/net/connect"
    expected = {"Container": "abc", "EndpointConfig": {"Aliases": ["broker-a0"]}}
    assert orjson.loads(body) == expected
    own.answer = (409, b'{"message":"it is paused"}')
    with pytest.raises(ClusterError, match="409 it is paused"):
        docker.start("abc")


def test_missing_engine_and_address_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no container engine answers"):
        Docker(f"unix://{tmp_path}/nobody").start("x")
    with pytest.raises(ClusterError, match=r"must be unix://PATH"):
        Docker("ssh://host").start("x")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", b""),
        (b"\1\0\0\0\0\0\0\2ab\2\0\0\0\0\0\0\1c", b"abc"),
        (b"\1\0\0\0\0\0\0\5ab", b"ab"),
        (b"\1\0\0", b""),
    ],
)
def test_container_log_pieces_are_joined(data: bytes, text: bytes) -> None:
    assert unframed(data) == text
