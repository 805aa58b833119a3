"""A port that is taken before its listener is there. Shell, blocking.

A server that first recovers its data, and only then listens, finds out here, before it touches
anything, whether it will get its ports. They are bound and do not listen: who connects meanwhile is
refused at once, as before the start.

Linux lets two sockets share a port while neither listens, if both ask for SO_REUSEADDR. So a port
is first bound without it; only if that fails (connections of a predecessor linger there for a
minute) with it, which still fails if somebody listens.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]  # as getaddrinfo says it


class BoundPort:
    """Every address of `host`, bound. `take` hands the socket over, `close` lets go."""

    def __init__(self, host: str, port: int) -> None:
        """`port` 0: any free one. `host` may be a name; "": every address of this machine. Raises
        OSError."""
        self._sockets: list[socket.socket] = []
        try:
            for family, address in _addresses(host, port):
                self._sockets.append(_bound(family, address))
        except OSError:
            self.close()
            raise
        self.port = int(self._sockets[0].getsockname()[1])

    def take(self) -> socket.socket | None:
        """The socket, to listen on. None, and nothing is bound any more, if there is more than one
        address: then whoever listens does so by the host's name, as it can."""
        if len(self._sockets) != 1:
            self.close()
            return None
        taken = self._sockets.pop()
        # Connections that are accepted here must not be in the way of the next start.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return taken

    def close(self) -> None:
        """Of what was not taken; also twice."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


def _addresses(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, Address]]:
    """Raises OSError (a name that nobody knows, too)."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((info[0], info[4]) for info in found))
    # Any free port is one port: of the first address, the others would get ports of their own.
    return addresses if port else addresses[:1]


def _bound(family: socket.AddressFamily, address: Address) -> socket.socket:
    try:
        return _bind(family, address, reuse=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return _bind(family, address, reuse=True)


def _bind(family: socket.AddressFamily, address: Address, *, reuse: bool) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.setblocking(False)
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
