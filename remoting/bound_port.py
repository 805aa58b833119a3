"""Ports bound before their listener exists.

A server that recovers its data before it listens checks thereby at once whether it will get its
ports. Bound ports do not listen, so connections are refused immediately, as before the start.

On Linux two sockets with SO_REUSEADDR may share a port while neither listens. A port is therefore
first bound without it. If that fails (connections of a previous process linger for a minute), it is
bound with it, which still fails if a process listens. Blocking.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]  # getaddrinfo's forms


class BoundPort:
    """Every address of `host`, bound. `take` transfers the socket, `close` releases it."""

    def __init__(self, host: str, port: int) -> None:
        """Bind. `port` 0 means any free port. `host` may be a name; "" means every address of this
        machine. Raises OSError."""
        self._sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(host, port):
                self._sockets.append(_bound(family, address))
        except OSError:
            self.close()
            raise
        self.port = int(self._sockets[0].getsockname()[1])
        self.hosts = [str(one.getsockname()[0]) for one in self._sockets]  # numeric

    def take(self) -> socket.socket | None:
        """Return the socket to listen on. With several addresses, unbind all and return None; the
        listener then has to bind by the host's name."""
        if len(self._sockets) != 1:
            self.close()
            return None
        taken = self._sockets.pop()
        # Connections accepted on this socket must not block the next start.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return taken

    def close(self) -> None:
        """Close the remaining sockets. Idempotent."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


def _addresses(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, Address]]:
    """Resolve the host. Raises OSError, also for an unknown name."""
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((info[0], info[4]) for info in infos))
    # For port 0 use only the first address, since each would get a different port.
    return addresses if port else addresses[:1]


def _bound(family: socket.AddressFamily, address: Address) -> socket.socket:
    try:
        return _bind(family, address, reuse=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return _bind(family, address, reuse=True)


def _bind(family: socket.AddressFamily, address: Address, *, reuse: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
