"""Ports for a cluster on loopback, chosen once and kept, and held while it is up.

Ports are below the system's ephemeral range. While a killed broker is down, a port inside that
range could become an outgoing connection's, and the broker could not restart. A broker also owns
listenPort-2 (Apache's VIP listener) and +1 (HA), so listeners keep a distance.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from .clusterfile import ClusterError

PORT_MIN = 10_000
PORT_STEP = 4  # port-2 … port+1 belong to a listener
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(ClusterError):
    """Too few free ports below the ephemeral range."""


class HeldPorts:
    """Reserves ports from `choose` or `hold` until `close`: they are bound here, but their servers
    can still listen on them (SO_REUSEADDR, which all servers set).

    Otherwise a foreign process may bind a port before its broker listens, or while the broker is
    dead. If the foreign process is a broker of a second cluster, the replicas of the first dial it;
    the groups' names are equal, so the two groups could merge.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._sockets: list[socket.socket] = []

    def choose(self, count: int, rng: random.Random) -> list[int]:
        """Hold and return `count` more ports, each with its neighbours. Raises NoFreePort."""
        top = ephemeral_low()
        first = rng.randrange(PORT_MIN, top, PORT_STEP)
        candidates = [*range(first, top - PORT_STEP, PORT_STEP), *range(PORT_MIN, first, PORT_STEP)]
        chosen: list[int] = []
        for start in candidates:
            if len(chosen) == count:
                break
            if self._hold(range(start, start + PORT_STEP)):
                chosen.append(start + 2)
        if len(chosen) < count:
            raise NoFreePort(f"found {len(chosen)} of {count} free ports from {PORT_MIN} to {top}")
        return chosen

    def hold(self, ports: Iterable[int]) -> None:
        """Hold again those of the ports that nobody has now."""
        for port in ports:
            self._hold([port])

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _hold(self, ports: Iterable[int]) -> bool:
        """Hold all of these ports or none; return whether they are held."""
        held: list[socket.socket] = []
        for port in ports:
            result = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(result)
            try:
                result.bind((self._host, port))  # without SO_REUSEADDR: a held port fails
            except OSError:
                for each in held:
                    each.close()
                return False
            result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets += held
        return True


def choose_ports(count: int, host: str, rng: random.Random) -> list[int]:
    """Return `count` ports that are free now, each with its neighbours. Raises NoFreePort."""
    held = HeldPorts(host)
    try:
        return held.choose(count, rng)
    finally:
        held.close()


def is_free(host: str, port: int) -> bool:
    """Return whether a listener could bind there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def ephemeral_low() -> int:
    """Return the first port the system may give to outgoing connections (32768 if unknown)."""
    try:
        return int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
