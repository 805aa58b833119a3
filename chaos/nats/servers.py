"""nats-server as the program of a cluster's nodes: configuration, command line, version.

A node of the cluster is one server; its store is DIR/<node>/store, its log DIR/<node>/log.txt.
Routes between servers go through the cluster's links if it has any. Servers also tell each other
where they listen, which would be a way around the links, so what they tell is an address where
nobody listens.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson

from ..cluster import launch
from ..cluster.clusterfile import PROXY, ClusterError, ClusterState, Node, load_state

NOWHERE = "127.0.0.1:1"
SYSTEM_USER = {"user": "system", "password": "system"}  # of the account that changes members
ALWAYS = "always"
VERSION_TIMEOUT_S = 30.0


class Servers:
    """Returns the command that runs a node, as Cluster asks for it."""

    def __init__(self, program: Path, sync: str = "") -> None:
        """`sync` is JetStream's sync_interval; "": its own choice, which is two minutes."""
        self._program = program
        self._sync = sync

    def __call__(self, directory: Path, node: Node) -> list[str]:
        if node.kind == PROXY:
            return launch.command(directory, node)
        path = launch.node_directory(directory, node).absolute() / "nats.json"
        path.parent.mkdir(exist_ok=True)
        wanted = configuration(load_state(directory), node, path.with_name("store"), self._sync)
        path.write_bytes(orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
        return [str(self._program), "-c", str(path)]


def configuration(state: ClusterState, node: Node, store: Path, sync: str) -> dict[str, Any]:
    """Return one server's configuration."""
    ports = state.link_ports
    others = [other for other in state.members(node.group) if other.name != node.name]
    routes = [
        f"nats://{other.host}:{ports.get(f'{node.name}>{other.name}', other.peer_port)}"
        for other in others
    ]
    told = {"advertise": NOWHERE} if state.links else {}
    return {
        "server_name": node.name,
        "listen": node.address,
        "http": node.http,
        "jetstream": {"store_dir": str(store)} | ({"sync_interval": sync} if sync else {}),
        "accounts": {"$SYS": {"users": [SYSTEM_USER]}},
        "cluster": {
            "name": node.group,
            "listen": f"{node.host}:{node.peer_port}",
            "no_advertise": True,
            "routes": routes,
            **told,
        },
    }


def version_of(program: Path) -> str:
    """Return the version that a nats-server says it has. Blocking. Raises ClusterError."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"{program} is no nats-server that runs here: {error}") from error
    return done.stdout.strip().removeprefix("nats-server: ")
