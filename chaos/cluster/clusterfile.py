"""DIR/cluster.json: the nodes of a cluster and their processes.

Each write goes to a temporary file that replaces the old file, so a reader never reads half of it.
Writers hold an exclusive lock on DIR/cluster.lock while they read, change and write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from .process import ProcessId

FILE_VERSION = 3
LOCK_FILE = "cluster.lock"
SECRET_MODE, DIRECTORY_MODE = 0o600, 0o750  # of files and directories made here
NAMESRV = "namesrv"  # the kind of name servers, and the name of the first
PROCESSES, COMPOSE = "processes", "compose"  # the things a cluster runs on
PROXY = "proxy"  # the kind and the name of the process that carries a cluster's traffic
GRPC_PROXY = "mqproxy"  # the kind of gRPC proxies, which are called mqproxy-0, mqproxy-1, …


class ClusterError(Exception):
    """A cluster error for the user, with a readable message."""


class SettingsError(ClusterError):
    """Servers would refuse these settings, or half an account is given. Nothing was made."""


@dataclass(frozen=True, slots=True)
class Node:
    """A process. `process` is the last started, dead or alive; None if never started."""

    name: str
    kind: str  # NAMESRV, "broker", PROXY or GRPC_PROXY
    host: str
    port: int  # where it really listens; 0 for a PROXY, which has many
    peer_port: int  # Raft listener; 0 in classic mode, and for other kinds than brokers
    group: str = ""  # brokerName; "" for other kinds than brokers
    broker_id: int = 0  # the brokerId in classic mode, the ordinal in a Raft group
    process: ProcessId | None = None
    http_port: int = 0  # of its HTTP API; 0: any (a PROXY has none)
    joins: bool = False  # added to its group later, so broker.conf has raftJoin

    @property
    def ha_port(self) -> int:
        """The port on which a classic master serves its slaves."""
        return self.port + 1

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.port else ""

    @property
    def http(self) -> str:
        """The address of its HTTP API, "" if none was planned."""
        return f"{self.host}:{self.http_port}" if self.http_port else ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of cluster.json. `namesrv` holds the clients' name server addresses, separated by
    ';', own or foreign. `mode` is a mode of chaos.cluster.topology."""

    mode: str
    namesrv: str
    settings: dict[str, str]
    nodes: tuple[Node, ...]
    links: bool = False  # traffic between the nodes passes through proxies
    faultable: bool = False  # brokers run over the fault layer
    link_ports: dict[str, int] = field(default_factory=dict)  # link's name → its proxy's port
    netns: str = ""  # name of its network namespaces (chaos.cluster.namespaces); "": none
    founders: dict[str, str] = field(default_factory=dict)  # group → dLegerPeers, before changes
    on: str = PROCESSES  # this machine's, or COMPOSE: containers (never in a file)
    proxy_settings: dict[str, str] = field(default_factory=dict)  # of gRPC proxies alone

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "broker")

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.group for node in self.brokers))

    @property
    def name_servers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == NAMESRV)

    @property
    def grpc_proxies(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == GRPC_PROXY)

    @property
    def direct_namesrv(self) -> str:
        """Like `namesrv`, but without the proxies, for the harness itself."""
        return ";".join(node.address for node in self.name_servers) or self.namesrv

    def client_address(self, node: Node) -> str:
        """Return a broker's address for clients, which is its proxy's if it has a proxy."""
        return f"{node.host}:{self.link_ports.get(f'clients>{node.name}', node.port)}"

    def members(self, group: str) -> tuple[Node, ...]:
        """Return the brokers of a group. Raises ClusterError with the names of all groups."""
        result = tuple(node for node in self.brokers if node.group == group)
        if not result:
            raise ClusterError(f"no group {group!r} here; there are {', '.join(self.groups)}")
        return result

    def node(self, name: str) -> Node:
        """Return the node called `name`. Raises ClusterError that lists the names there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise ClusterError(f"no node {name!r} here; there are {names}")

    def with_process(self, name: str, process: ProcessId | None) -> ClusterState:
        nodes = (replace(n, process=process) if n.name == name else n for n in self.nodes)
        return replace(self, nodes=tuple(nodes))


def load_state(directory: Path) -> ClusterState:
    """Read DIR/cluster.json. Raises ClusterError if it is missing or not ours."""
    path = directory / "cluster.json"
    try:
        data = orjson.loads(path.read_bytes())
        if data["version"] != FILE_VERSION:
            raise ClusterError(f"{path} has version {data['version']}, not {FILE_VERSION}")
        return ClusterState(
            data["mode"],
            data["namesrv"],
            dict(data["settings"]),
            tuple(_node(entry) for entry in data["nodes"]),
            data["links"],
            data["faultable"],
            data["link_ports"],
            data.get("netns", ""),
            dict(data.get("founders", {})),
            proxy_settings=dict(data.get("proxy_settings", {})),
        )
    except FileNotFoundError:
        raise _no_cluster(directory) from None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} is damaged: {error!r}") from error


def save_state(directory: Path, state: ClusterState) -> None:
    """Replace DIR/cluster.json atomically."""
    data = {
        "version": FILE_VERSION,
        "mode": state.mode,
        "namesrv": state.namesrv,
        "settings": state.settings,
        "links": state.links,
        "faultable": state.faultable,
        "link_ports": state.link_ports,
        "netns": state.netns,
        "founders": state.founders,
        "proxy_settings": state.proxy_settings,
        "nodes": [_plain(node) for node in state.nodes],
    }
    path = directory / "cluster.json"
    temporary = directory / f".cluster.json.{os.getpid()}"
    write_private(temporary, orjson.dumps(data, option=orjson.OPT_INDENT_2))
    temporary.replace(path)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, because settings may hold secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, SECRET_MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, SECRET_MODE)  # an existing file may be readable by others
        file.write(data)


def make_directory(path: Path) -> list[Path]:
    """Make a directory for a cluster and its missing parents; return those, the deepest first."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(DIRECTORY_MODE, exist_ok=True)
    return missing


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the cluster's lock. Raises ClusterError if it is held or without a directory."""
    if not directory.is_dir():
        raise _no_cluster(directory)
    with open(directory / LOCK_FILE, "a", opener=_private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another command is changing the cluster in {directory}") from None
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, SECRET_MODE)


def _no_cluster(directory: Path) -> ClusterError:
    return ClusterError(f"no cluster in {directory}; make one with: up --dir {directory}")


def _node(entry: dict[str, Any]) -> Node:
    process = None
    if entry["pid"]:
        process = ProcessId(entry["pid"], entry["start_ticks"])
    return Node(
        entry["name"],
        entry["kind"],
        entry["host"],
        entry["port"],
        entry["peer_port"],
        entry["group"],
        entry["broker_id"],
        process,
        entry.get("http_port", 0),  # clusters made before there was an API
        entry.get("joins", False),
    )


def _plain(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "kind": node.kind,
        "host": node.host,
        "port": node.port,
        "peer_port": node.peer_port,
        "group": node.group,
        "broker_id": node.broker_id,
        "http_port": node.http_port,
        "http": node.http,
        "joins": node.joins,
        "pid": node.process.pid if node.process else 0,
        "start_ticks": node.process.start_ticks if node.process else 0,
    }
