"""Commands that start this project's processes, with arguments, files and environment.

Children run with this interpreter and find this project's packages even where they are not
installed; the directory they are started from never shadows them (`-P`).
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

import raftmq
from raftmq.ops.options import BYTES, Option

from .clusterfile import (
    GRPC_PROXY,
    PROXY,
    ClusterState,
    Node,
    SettingsError,
    load_state,
    make_directory,
    write_private,
)
from .linkmap import links_of
from .proxies import proxy_conf
from .topology import CLASSIC, MODES, PYSYNCOBJ, RAFT, Mode

CHECK_TIMEOUT_S = 120.0  # bounds the start of an interpreter
# Keys that differ between the brokers of a cluster, such as name, directories and peers.
OF_ONE_BROKER = frozenset(
    ("brokerId", "brokerName", "dLegerGroup", "dLegerPeers", "dLegerSelfId", "haListenPort",
     "httpHealthPort", "listenPort", "raftJoin", "storePathRootDir")
)  # fmt: skip
SEGMENT_BYTES = Option("store", "mappedFileSizeCommitLog", 1 << 30, "", BYTES)
SEGMENT_NOTED = re.compile(rb"^segment=(\d+)$", re.MULTILINE)  # in a store's file `identity`
# The directory that holds `raftmq`: a checkout's, or where it is installed.
PROJECT_ROOT = Path(raftmq.__path__[0]).resolve().parent
# SyncObj cannot send an entry above 64 KiB (docs/pysyncobj.md, fault 7), and never calls fsync.
FOR_PYSYNCOBJ = {"frameSizeMax": str(32 << 10), "flushDiskType": "ASYNC_FLUSH"}


def node_directory(directory: Path, node: Node) -> Path:
    return directory / node.name


def log_path(directory: Path, node: Node) -> Path:
    """Return the path of the log of every start of this node, appended."""
    return node_directory(directory, node) / "log.txt"


def control_path(directory: Path) -> Path:
    """Return the Unix socket that controls the proxy of a cluster with links."""
    return directory / PROXY / "control"


def secret_path(directory: Path) -> Path:
    """Return the path of the shared secret of the cluster's brokers. A cluster of an older
    `mqcluster` has none until it is started again after all brokers were down."""
    return directory / "peer.secret"


def make_secret(directory: Path) -> None:
    """Make the secret unless it exists; only its owner can read it."""
    _make(secret_path(directory))


def prepare(directory: Path, state: ClusterState, node: Node) -> None:
    """Write the node's configuration file again (settings may have changed)."""
    home = node_directory(directory, node)
    make_directory(home)
    _make(registration_key(directory))
    if node.kind == PROXY:
        links = [
            {"name": ln.name, "host": ln.host, "port": ln.port, "target_port": ln.target_port}
            for ln in links_of(state)
        ]
        (home / "links.json").write_bytes(orjson.dumps(links))
    for path, conf in _configuration(directory, state, node).items():
        write_private(path, conf.encode())


def is_outdated(directory: Path, state: ClusterState, node: Node) -> bool:
    """Return whether a setting has changed since the node was last started."""
    keys = state.settings.keys() | state.proxy_settings.keys()
    for path, conf in _configuration(directory, state, node).items():
        lines = {line for line in conf.splitlines() if line.partition("=")[0] in keys}
        if not lines <= set(path.read_text(encoding="utf-8").splitlines()):
            return True
    return False


def _configuration(directory: Path, state: ClusterState, node: Node) -> dict[Path, str]:
    """Return the path and content of the node's settings file; {} for a node without settings."""
    home = node_directory(directory, node)
    if node.kind == "broker":
        return {home / "broker.conf": broker_conf(directory, state, node)}
    return {home / "proxy.conf": proxy_conf(state, node)} if node.kind == GRPC_PROXY else {}


def check_settings(directory: Path, state: ClusterState) -> None:
    """Check by the servers' own commands the configuration of one broker per role and one gRPC
    proxy. Blocking. Raises SettingsError with their message, for keys that name a single broker,
    and for a segment size that differs from the stores'."""
    if taken := sorted(OF_ONE_BROKER & state.settings.keys()):
        text = "each broker of a cluster has its own, which mqcluster gives it"
        raise SettingsError(f"--set {', '.join(taken)}: {text}")
    roles = {(node.kind, node.broker_id > 0): node for node in reversed(state.brokers)}
    if MODES[state.mode].engine != CLASSIC:
        roles = {("broker", False): state.brokers[0]}
    with tempfile.TemporaryDirectory() as scratch:  # only we can enter it
        path, secret = Path(scratch) / "broker.conf", Path(scratch) / "secret"
        _make(secret)  # in place of the cluster's, which are made when the settings are right
        for node in roles.values():
            conf = broker_conf(directory, state, node)
            conf = conf.replace(str(registration_key(directory)), str(secret))
            conf = f"peerSecretFile={secret}\n{conf}"
            _check(path, conf, "raftmq.broker.cli")
        if state.proxy_settings and not state.grpc_proxies:
            raise SettingsError("--set-proxy: the cluster has no gRPC proxy; add --proxies 1")
        for node in state.grpc_proxies[:1]:
            _check(path, proxy_conf(state, node), "raftmq.proxy.cli")
    if SEGMENT_BYTES.key in state.settings:
        _check_segments(directory, state)


def _check_segments(directory: Path, state: ClusterState) -> None:
    """Raises SettingsError if a broker's log has segments of a different size."""
    key, value = SEGMENT_BYTES.key, state.settings[SEGMENT_BYTES.key]
    for node in state.brokers:
        identity = node_directory(directory, node) / "store" / "identity"
        noted = SEGMENT_NOTED.search(identity.read_bytes()) if identity.exists() else None
        if noted and int(noted[1]) != SEGMENT_BYTES.parse(value, key):
            raise SettingsError(
                f"--set {key}={value}: the log of {node.name} was made with segments of "
                f"{int(noted[1])} bytes, and keeps that size"
            )


def _check(path: Path, conf: str, program: str) -> None:
    """Have a server's command check a configuration, written to `path`. Raises SettingsError."""
    write_private(path, conf.encode())
    done = subprocess.run(
        [sys.executable, "-P", "-m", program, "config", "check", str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        text = re.sub(r"\Amq\w+: ", "", done.stderr.strip())
        option = "--set " if program == "raftmq.broker.cli" else "--set-proxy "
        raise SettingsError(re.sub(rf"{re.escape(str(path))}:\d+: ", option, text))


def registration_key(directory: Path) -> Path:
    """Return the path of the key that the cluster's brokers sign their registrations with."""
    return directory.absolute() / "registration.key"


def _make(path: Path) -> None:
    """Create a file with a new secret that only its owner can read; keep an existing file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


def command(directory: Path, node: Node) -> list[str]:
    """Write the node's configuration and return the command line that runs it."""
    prepare(directory, load_state(directory), node)
    python = [sys.executable, "-P", "-m"]
    if node.kind == "broker":
        conf = node_directory(directory, node).absolute() / "broker.conf"
        state = load_state(directory)
        program = "raftmq.broker.cli"
        if MODES[state.mode].engine == PYSYNCOBJ:
            program = "raftmq.chaos.pysyncobj"
        elif state.faultable:
            program = "raftmq.chaos.faults.faulty_broker"
        return [*python, program, "-c", str(conf)]
    if node.kind == GRPC_PROXY:
        conf = node_directory(directory, node).absolute() / "proxy.conf"
        return [*python, "raftmq.proxy.cli", "-c", str(conf)]
    if node.kind == PROXY:
        links = node_directory(directory, node).absolute() / "links.json"
        control = control_path(directory).absolute()
        return [
            *python,
            "raftmq.chaos.faults.proxy",
            "--links",
            str(links),
            "--control",
            str(control),
        ]
    store = node_directory(directory, node).absolute() / "store"
    where = ["--bind", node.host, "--listen-port", str(node.port)]
    http = (f"--set={key}={value}" for key, value in _http(load_state(directory), node).items())
    key = f"--set=registrationKeyFile={registration_key(directory)}"
    return [*python, "raftmq.namesrv.cli", *where, "--store", str(store), key, *http]


def environment() -> dict[str, str]:
    """Return this process's environment, with the project importable and output unbuffered."""
    result = dict(os.environ)
    paths = [str(PROJECT_ROOT), *filter(None, [result.get("PYTHONPATH")])]
    result["PYTHONPATH"] = os.pathsep.join(paths)
    result["PYTHONUNBUFFERED"] = "1"
    return result


def broker_conf(directory: Path, state: ClusterState, node: Node) -> str:
    """Return a broker's broker.conf; the user's settings are last and so override."""
    own = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": node.group,
        "brokerIP1": node.host,
        "bindAddress": node.host,
        "listenPort": str(node.port),
        "namesrvAddr": _name_servers(state, node),
        "registrationKeyFile": str(registration_key(directory)),
        "storePathRootDir": str(node_directory(directory, node).absolute() / "store"),
    }
    if secret_path(directory).exists():
        own["peerSecretFile"] = str(secret_path(directory).absolute())
    own |= _http(state, node)
    mode = MODES[state.mode]
    kind = _classic if mode.engine == CLASSIC else _replicated
    own |= kind(mode, state, node)
    if state.links:
        own["advertisedPort"] = state.client_address(node).rpartition(":")[2]
    return "".join(f"{key}={value}\n" for key, value in (own | state.settings).items())


def _http(state: ClusterState, node: Node) -> dict[str, str]:
    """Return the HTTP settings. With namespaces a node's API is off, because it would not be on
    loopback and would need tokens."""
    if state.netns:
        return {"httpEnable": "false"}
    return {"httpPort": str(node.http_port)}


def _name_servers(state: ClusterState, node: Node) -> str:
    """Return the name servers of a broker, each by the broker's own link."""
    if not state.links or not state.name_servers:
        return state.namesrv
    ports = state.link_ports
    return ";".join(f"{s.host}:{ports[f'{node.name}>{s.name}']}" for s in state.name_servers)


def _classic(mode: Mode, state: ClusterState, node: Node) -> dict[str, str]:
    master = state.members(node.group)[0]
    link = state.link_ports.get(f"{node.name}>{master.name}")
    return {
        "brokerId": str(node.broker_id),
        "brokerRole": mode.role if node.broker_id == 0 else "SLAVE",
        "haListenPort": str(node.ha_port),
    } | ({"haMasterAddress": f"{master.host}:{link}"} if link else {})


def _replicated(mode: Mode, state: ClusterState, node: Node) -> dict[str, str]:
    founding = None if node.joins else state.founders.get(node.group)
    peers = founding or peers_of(state, node.group, node.name)
    names = [peer.partition("-")[0] for peer in peers.split(";")]
    preferred = names[state.groups.index(node.group) % len(names)]  # not all of them the first
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": node.group,
        "dLegerPeers": peers,
        "dLegerSelfId": node.name,
        "raftJoin": str(node.joins).lower(),
        "preferredLeaderId": preferred if mode.engine == RAFT and len(state.groups) > 1 else "",
    } | (FOR_PYSYNCOBJ if mode.engine == PYSYNCOBJ else {})


def peers_of(state: ClusterState, group: str, name: str = "") -> str:
    """Return dLegerPeers of the broker `name`; with "" the addresses without links."""
    ports = state.link_ports  # a broker has no link to itself, so its own entry has its own port
    return ";".join(
        f"{p.name}-{p.host}:{ports.get(f'{name}>{p.name}', p.peer_port)}"
        for p in state.members(group)
    )
