"""DIR/cluster.json: what a cluster is made of and which processes run it. No behaviour.

Written whole to a temporary file and renamed over the old one, so a reader never sees half of it.
Writers hold an exclusive lock on DIR/cluster.lock while they read, change and write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from chaos.cluster.process import ProcessId

FILE_VERSION = 1
NAMESRV = "namesrv"  # the node name and the kind of the name server


class ClusterError(Exception):
    """Something about a cluster that its user has to know; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster. `process` is the last one started, dead or alive; None: never."""

    name: str
    kind: str  # "namesrv" or "broker"
    host: str
    port: int
    peer_port: int  # Raft listener; 0 for the name server
    process: ProcessId | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All of cluster.json. `namesrv` is an address, of our own name server or of a foreign one."""

    group: str
    namesrv: str
    settings: dict[str, str]
    nodes: tuple[Node, ...]

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "broker")

    def node(self, name: str) -> Node:
        """The node called `name`. Raises ClusterError that lists the names there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise ClusterError(f"no node {name!r} here; there are {names}")

    def with_process(self, name: str, process: ProcessId | None) -> ClusterState:
        nodes = (replace(n, process=process) if n.name == name else n for n in self.nodes)
        return replace(self, nodes=tuple(nodes))


def load_state(directory: Path) -> ClusterState:
    """Read DIR/cluster.json. Raises ClusterError if there is none or it is not one of ours."""
    path = directory / "cluster.json"
    try:
        data = orjson.loads(path.read_bytes())
        if data["version"] != FILE_VERSION:
            raise ClusterError(f"{path} has version {data['version']}, not {FILE_VERSION}")
        return ClusterState(
            data["group"],
            data["namesrv"],
            dict(data["settings"]),
            tuple(_node(entry) for entry in data["nodes"]),
        )
    except FileNotFoundError:
        raise ClusterError(
            f"no cluster in {directory}; make one with: up --dir {directory}"
        ) from None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} is damaged: {error!r}") from error


def save_state(directory: Path, state: ClusterState) -> None:
    """Replace DIR/cluster.json atomically."""
    data = {
        "version": FILE_VERSION,
        "group": state.group,
        "namesrv": state.namesrv,
        "settings": state.settings,
        "nodes": [_plain(node) for node in state.nodes],
    }
    path = directory / "cluster.json"
    temporary = directory / f".cluster.json.{os.getpid()}"
    temporary.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    temporary.replace(path)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the cluster's lock. Raises ClusterError if another command holds it."""
    with (directory / "cluster.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another command is changing the cluster in {directory}") from None
        yield


def _node(entry: dict[str, Any]) -> Node:
    process = None
    if entry["pid"]:
        process = ProcessId(entry["pid"], entry["start_ticks"])
    return Node(
        entry["name"], entry["kind"], entry["host"], entry["port"], entry["peer_port"], process
    )


def _plain(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "kind": node.kind,
        "host": node.host,
        "port": node.port,
        "peer_port": node.peer_port,
        "pid": node.process.pid if node.process else 0,
        "start_ticks": node.process.start_ticks if node.process else 0,
    }
