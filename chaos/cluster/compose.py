"""A cluster of containers, as docker-compose.yml brings it up, with the interface of `Cluster`.

Nodes are the containers with the label `raftmq.kind`; `raftmq.node` is a node's name (a broker's
dLegerSelfId), `raftmq.group` its broker group, `raftmq.address` its address from here, and
`raftmq.mode` the mode of its cluster. The harness runs on the clients' machine, which publishes the
containers' ports. It kills, pauses and starts containers through the engine's API; only `docker
compose` creates or removes them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from .cluster import POLL_S, TAIL_LINES, Cluster
from .clusterfile import COMPOSE, GRPC_PROXY, NAMESRV, ClusterError, ClusterState, Node
from .docker import Docker
from .probe import Probe
from .process import ContainerRun, ProcessId
from .timeouts import GONE_TIMEOUT_S, UP_TIMEOUT_S
from .topology import RAFT, Shape

LABEL = "raftmq.kind"
PROJECT_LABEL = "com.docker.compose.project"
DATA = "/var/lib/raftmq"  # where a broker's volume is, in its container
STATES = {"running": "running", "paused": "stopped"}  # all other states count as dead


class ComposeCluster(Cluster):
    """A cluster of containers. `collect_logs` puts the logs it fetches into `directory`."""

    def __init__(
        self,
        directory: Path,
        project: str = "",
        mode: str = RAFT,
        docker: Docker | None = None,
        probe: Probe | None = None,
    ) -> None:
        """`project` is docker compose's; if empty, the only project."""
        super().__init__(directory, probe)
        self.log_zone = UTC
        self.docker = docker or Docker(os.environ.get("DOCKER_HOST", ""))
        self._project = project
        self._mode = mode
        self._ids: dict[str, str] = {}  # node → container
        self._states: dict[str, str] = {}  # node → as the engine said last
        self._since_s = int(time.time())

    def state(self) -> ClusterState:
        """Return the containers that the engine has now. Raises ClusterError."""
        entries = [e for e in self.docker.containers(LABEL) if self._is_ours(e["Labels"])]
        projects = sorted({e["Labels"].get(PROJECT_LABEL, "") for e in entries})
        if not entries:
            raise ClusterError(
                f"no container of mode {self._mode} at {self.docker.host}; docker compose up"
            )
        if len(projects) > 1:
            raise ClusterError(f"several projects are up: {', '.join(projects)}; name one")
        entries.sort(key=lambda e: (e["Labels"][LABEL] != NAMESRV, e["Labels"]["raftmq.node"]))
        self._ids = {e["Labels"]["raftmq.node"]: e["Id"] for e in entries}
        self._states = {e["Labels"]["raftmq.node"]: STATES.get(e["State"], "dead") for e in entries}
        nodes = _nodes(entries)
        servers = ";".join(node.address for node in nodes if node.kind == NAMESRV)
        return ClusterState(self._mode, servers, {}, nodes, on=COMPOSE)

    def process_state(self, node: Node) -> str:
        return self._states.get(node.name, "dead")

    async def up(
        self,
        shape: Shape | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        say: Callable[[str], None] = lambda text: None,
        proxy_settings: Mapping[str, str] | None = None,
    ) -> ClusterState:
        raise ClusterError("containers are brought up by docker compose")

    async def down(self, timeout_s: float = 0.0) -> dict[str, str]:
        raise ClusterError("containers are taken down by docker compose")

    def signal(self, name: str, number: signal.Signals) -> ProcessId:
        """Send KILL and TERM as such; STOP and CONT freeze and thaw the whole container."""
        container = self._container(name)
        if self._states[name] == "dead":
            raise ClusterError(f"{name} is not running")
        run = self._run(container)
        if number is signal.SIGSTOP:
            self.docker.pause(container)
        elif number is signal.SIGCONT:
            if self._states[name] == "stopped":
                self.docker.unpause(container)
        else:
            self.docker.kill(container, number.name)
        return run

    def start(self, name: str) -> ProcessId:
        container = self._container(name)
        if self._states[name] != "dead":
            raise ClusterError(f"{name} runs already")
        self.docker.start(container)
        return self._run(container)

    async def wait_dead(self, process: ProcessId, timeout_s: float = GONE_TIMEOUT_S) -> None:
        """Return once that run of the container is over, even if a new run has started."""
        await self._wait(process, "dead", timeout_s)

    async def wait_stopped(self, process: ProcessId) -> None:
        await self._wait(process, "stopped", GONE_TIMEOUT_S)

    def store_of(self, node: Node) -> Path:
        """Return the store in the engine's volume, which only root of the machine reads."""
        self.state()
        for mount in self.docker.inspect(self._ids[node.name])["Mounts"]:
            if mount["Destination"] == DATA:
                return Path(mount["Source"]) / "store"
        raise ClusterError(f"{node.name} has no volume at {DATA}")

    def collect_logs(self) -> dict[str, Path]:
        """Write the containers' output since this was made to files; return their paths."""
        result = {}
        for node in self.state().nodes:
            path = result[node.name] = self.directory / f"{node.name}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.docker.logs(self._ids[node.name], self._since_s))
        return result

    def log_tails(self, nodes: Sequence[Node]) -> str:
        parts = []
        for node in nodes:
            text = self.docker.logs(self._ids[node.name], self._since_s).decode("utf-8", "replace")
            parts.append(f"--- {node.name}\n" + "\n".join(text.splitlines()[-TAIL_LINES:]))
        return "\n".join(parts)

    def networks_of(self, name: str) -> list[tuple[str, list[str]]]:
        networks = self.docker.inspect(self._container(name))["NetworkSettings"]["Networks"]
        return [(network, list(entry["Aliases"] or ())) for network, entry in networks.items()]

    def cut_off(self, name: str, networks: Sequence[tuple[str, list[str]]]) -> None:
        container = self._container(name)
        for network, _ in networks:
            self.docker.disconnect(network, container)

    def join(self, name: str, networks: Sequence[tuple[str, list[str]]]) -> None:
        """Put a container back on these networks; harmless where it is."""
        container = self._container(name)
        has = self.docker.inspect(container)["NetworkSettings"]["Networks"]
        for network, aliases in networks:
            if network not in has:
                self.docker.connect(network, container, aliases)

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        project = labels.get(PROJECT_LABEL, "")
        if self._project and project != self._project:
            return False
        shared = labels[LABEL] in (NAMESRV, GRPC_PROXY)
        return shared or labels.get("raftmq.mode", RAFT) == self._mode

    def _container(self, name: str) -> str:
        """Return its id. Raises ClusterError that lists the nodes there are."""
        result = self.state().node(name)
        return self._ids[result.name]

    def _run(self, container: str) -> ProcessId:
        result = self.docker.inspect(container)["State"]
        return ProcessId(result["Pid"], 0, ContainerRun(container, result["StartedAt"]))

    async def _wait(self, process: ProcessId, desired: str, timeout_s: float) -> None:
        run = process.run
        assert run is not None, process
        deadline = time.monotonic() + timeout_s
        while self._state_of_run(process.pid, run) != desired:
            if time.monotonic() > deadline:
                raise ClusterError(f"container {run.container[:12]} is not {desired} in time")
            await asyncio.sleep(POLL_S)

    def _state_of_run(self, pid: int, run: ContainerRun) -> str:
        result = self.docker.inspect(run.container)["State"]
        same = (result["Pid"], result["StartedAt"]) == (pid, run.started_at)
        return STATES.get(result["Status"], "dead") if same else "dead"


def _nodes(entries: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the containers as nodes; a broker's ordinal is its place in its group."""
    nodes: list[Node] = []
    for entry in entries:
        labels = entry["Labels"]
        host, _, port = labels["raftmq.address"].rpartition(":")
        group = labels.get("raftmq.group", "")
        ordinal = sum(1 for node in nodes if group and node.group == group)
        run = ProcessId(0, 0, ContainerRun(entry["Id"]))
        kind = labels[LABEL]
        nodes.append(Node(labels["raftmq.node"], kind, host, int(port), 0, group, ordinal, run))
    return tuple(nodes)
