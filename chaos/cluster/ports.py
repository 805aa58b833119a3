"""Ports for a cluster on loopback, chosen once and kept.

They are taken from below the system's ephemeral range: a port inside it could be given to some
outgoing connection while a killed broker is down, and the broker could then not come back.
A broker also owns listenPort-2 (Apache's VIP listener) and +1 (HA), so listeners keep a distance.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

PORT_MIN = 10_000
PORT_STEP = 4  # port-2 .. port+1 belong to one listener
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(Exception):
    """Too few free ports below the ephemeral range."""


def choose_ports(count: int, host: str, rng: random.Random) -> list[int]:
    """`count` ports free right now, each with its neighbours. Raises NoFreePort."""
    top = ephemeral_low()
    first = rng.randrange(PORT_MIN, top, PORT_STEP)
    candidates = [*range(first, top - PORT_STEP, PORT_STEP), *range(PORT_MIN, first, PORT_STEP)]
    chosen: list[int] = []
    for start in candidates:
        if len(chosen) == count:
            return chosen
        port = start + 2
        if all(is_free(host, port + shift) for shift in (-2, -1, 0, 1)):
            chosen.append(port)
    if len(chosen) == count:
        return chosen
    raise NoFreePort(f"found {len(chosen)} of {count} free ports from {PORT_MIN} to {top}")


def is_free(host: str, port: int) -> bool:
    """Whether a listener could bind there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def ephemeral_low() -> int:
    """First port the system may give to outgoing connections (32768 where it does not say)."""
    try:
        return int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
