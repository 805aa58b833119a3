"""Network namespaces of a cluster, with a host per process, joined by a bridge.

    NAME-hub     the bridge, and the harness with its clients, at 10.77.0.1
    NAME-NODE    one node, at 10.77.0.10 and up, its eth0 plugged into the bridge

The machine's own network is not changed, because the bridge is in the hub's namespace, and
processes that talk to the cluster enter it (`enter`). Needs CAP_NET_ADMIN and CAP_SYS_ADMIN (root)
and the `ip` tool; `why_not` returns the missing requirement.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from .clusterfile import ClusterError

HUB_ADDRESS = "10.77.0.1"
NODES_MAX = 200
_BITS = 24
_STATUS = Path("/proc/self/status")
_OWN = Path("/proc/thread-self/ns/net")
_NAMED = Path("/run/netns")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_CLONE_NEWNET = 0x4000_0000
_IP_TIMEOUT_S = 30.0


def why_not() -> str | None:
    """Return the requirement that this machine lacks, or None."""
    if shutil.which("ip") is None:
        return "there is no `ip` tool (package iproute2)"
    if not _OWN.exists():
        return "this kernel has no network namespaces"
    try:
        text = _STATUS.read_text(encoding="ascii")
    except OSError as error:
        return f"cannot tell what this process may do: {error}"
    missing = missing_capabilities(text)
    return f"this process has no {', '.join(missing)}: run as root" if missing else None


def missing_capabilities(status: str) -> list[str]:
    """Return the needed capabilities that /proc/PID/status does not list as effective."""
    effective = 0
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]


def name_for(directory: Path) -> str:
    """Return the network name of a cluster's directory, unique on this machine."""
    digest = hashlib.blake2s(str(directory.absolute()).encode(), digest_size=4)
    return f"rmq-{digest.hexdigest()}"


def address_of(ordinal: int) -> str:
    """Return the address of the node at this place in the cluster."""
    assert 0 <= ordinal < NODES_MAX, ordinal
    return f"10.77.0.{10 + ordinal}"


def within(name: str, node: str, command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command`, with its own pid, on the node's host."""
    return [_tool(), "netns", "exec", f"{name}-{node}", *command]


def create(name: str, addresses: dict[str, str]) -> None:
    """Make the hub and a host for each node → address; harmless if they exist.

    Raises ClusterError with the tool's words; then none of them is left.
    """
    reason = why_not()
    if reason is not None:
        raise ClusterError(f"no network namespaces: {reason}")
    if len(addresses) > NODES_MAX:
        raise ClusterError(f"at most {NODES_MAX} nodes, not {len(addresses)}")
    desired = {f"{name}-hub", *(f"{name}-{node}" for node in addresses)}
    if desired <= set(_existing(name)):
        return
    delete(name)
    try:
        hub = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
        hub.append(f"addr add {HUB_ADDRESS}/{_BITS} dev br0")
        ip([f"netns add {name}-hub"])
        ip(hub, f"{name}-hub")
        add(name, addresses)
    except ClusterError:
        delete(name)
        raise


def add(name: str, addresses: dict[str, str]) -> None:
    """Make a host for each node → address, plugged into the hub. Raises ClusterError."""
    ip([f"netns add {name}-{node}" for node in addresses])
    hub = []
    for node, address in addresses.items():
        number = address.rpartition(".")[2]
        hub.append(f"link add v{number} type veth peer name eth0 netns {name}-{node}")
        hub.append(f"link set v{number} master br0")
        hub.append(f"link set v{number} up")
    ip(hub, f"{name}-hub")
    for node, address in addresses.items():
        own = ["link set lo up", f"addr add {address}/{_BITS} dev eth0", "link set eth0 up"]
        ip(own, f"{name}-{node}")


def delete(name: str, nodes: Collection[str] = ()) -> None:
    """Remove the namespaces of these nodes, or all of the cluster's. Raises ClusterError."""
    chosen = {f"{name}-{node}" for node in nodes}
    result = [namespace for namespace in _existing(name) if not chosen or namespace in chosen]
    if result:
        ip([f"netns del {namespace}" for namespace in result])


def enter(name: str) -> int:
    """Open this thread's new sockets in the hub. Return the argument for `leave`.

    Existing sockets and other threads are not affected. Raises ClusterError.
    """
    try:
        former = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        hub = os.open(_NAMED / f"{name}-hub", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"the cluster's network {name} is not there: {error}") from error
    try:
        _set(hub)
    finally:
        os.close(hub)
    return former


def leave(former: int) -> None:
    """Return to where this thread was before `enter`."""
    try:
        _set(former)
    finally:
        os.close(former)


def ip(commands: Sequence[str], namespace: str = "") -> None:
    """Run `ip` commands, in a namespace if it is given. Raises ClusterError at the first failure;
    earlier commands stay in effect. Blocking, some milliseconds."""
    where = ["-n", namespace] if namespace else []
    done = subprocess.run(
        [_tool(), *where, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        timeout=_IP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        text = done.stderr.strip() or f"exit status {done.returncode}"
        raise ClusterError(f"ip {' '.join(where)}: {text} ({'; '.join(commands)})")


def _existing(name: str) -> list[str]:
    if not _NAMED.is_dir():
        return []
    return sorted(path.name for path in _NAMED.iterdir() if path.name.startswith(f"{name}-"))


def _tool() -> str:
    result = shutil.which("ip")
    if result is None:
        raise ClusterError("there is no `ip` tool")
    return result


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise ClusterError(f"cannot change the network namespace: {os.strerror(number)}")
