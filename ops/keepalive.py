"""TCP options by which a process finds that a peer's machine is gone. Shell.

A machine that lost power, or a network that drops everything, closes no connection. TCP's own
defaults notice that after two hours of silence, or a quarter of an hour of retransmissions. With
these options the kernel closes the connection within seconds:

- of a silent connection: after `idle_s` it sends a probe, and again every `interval_s`;
- of a connection with unacknowledged data, or whose peer does not make room for more: after
  `unacknowledged_ms_max`. On Linux that also bounds the probes.

Connections accepted by a listener inherit its options on Linux.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Protocol


class TcpSocket(Protocol):
    """The part of a socket that is needed: transports show a socket without more."""

    def setsockopt(self, level: int, name: int, value: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When the kernel gives a peer up."""

    idle_s: int
    interval_s: int
    probes: int
    unacknowledged_ms_max: int

    def apply(self, raw: TcpSocket) -> None:
        """Set the options. Where a system lacks some of them, peers are found later."""
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


# A client is found gone within 16 s: probes at 8 and 12 s, and at 16 s the time-out has passed.
CLIENT_KEEPALIVE = Keepalive(idle_s=8, interval_s=4, probes=2, unacknowledged_ms_max=15_000)
