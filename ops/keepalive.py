"""TCP options by which a process detects that a peer's machine is gone.

A machine without power closes no connection, and neither does a network that drops all packets. By
default TCP detects that after two hours of silence or 15 minutes of retransmissions. These options
make the kernel close the connection within seconds. It probes a silent connection after `idle_s`
and then every `interval_s`. It closes a connection with unacknowledged data, or with a receiver
without room, after `unacknowledged_ms_max`. On Linux that time also limits the probes.

Connections accepted by a listener inherit its options on Linux.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Protocol


class TcpSocket(Protocol):
    """A socket, or a transport's representation of its socket."""

    def setsockopt(self, level: int, name: int, value: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The times after which the kernel closes a connection without answers."""

    idle_s: int
    interval_s: int
    probes: int
    unacknowledged_ms_max: int

    def apply(self, raw: TcpSocket) -> None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = (
            ("TCP_USER_TIMEOUT", self.unacknowledged_ms_max),
            ("TCP_KEEPIDLE", self.idle_s),
            ("TCP_KEEPINTVL", self.interval_s),
            ("TCP_KEEPCNT", self.probes),
        )
        for name, value in options:
            option = getattr(socket, name, None)
            if option is not None:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)


# A lost client is detected within 16 s, by probes at 8 and 12 s.
CLIENT_KEEPALIVE = Keepalive(idle_s=8, interval_s=4, probes=2, unacknowledged_ms_max=15_000)
