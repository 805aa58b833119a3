"""Listens, stops listening, and finds out which ports listen.

A `Listener` owns its port from the first `open` to `close`. Shut, it stays bound but does not
listen, so connections are refused as if no process listened, and the port stays ours.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BACKLOG = 1024
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"  # TCP_LISTEN in those tables


class Listener:
    """A port. `protocol` makes the protocol of each connection."""

    def __init__(
        self, host: str, port: int, receive_bytes: int, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._address = (host, port)
        self._receive_bytes = receive_bytes
        self._protocol = protocol
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def open(self) -> None:
        """Listen; harmless if it does already. Raises OSError."""
        if self._server is not None:
            return
        if self._socket is None:
            self._socket = self._bind()
        loop = asyncio.get_running_loop()
        copy = self._socket.dup()  # the loop closes its socket; the port must stay ours
        self._server = await loop.create_server(self._protocol, sock=copy, backlog=BACKLOG)

    def shut(self) -> None:
        """Stop listening; connections stay. Harmless if it does not listen."""
        if self._server is None or self._socket is None:
            return
        self._server.close()
        self._server = None
        self._socket.shutdown(socket.SHUT_RD)  # ends LISTEN for every copy of it; bound it stays

    def close(self) -> None:
        self.shut()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _bind(self) -> socket.socket:
        result = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit this, which bounds the bytes that a cut link can swallow.
            result.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
            result.setblocking(False)
            result.bind(self._address)
        except OSError:
            result.close()
            raise
        return result


def listening_ports() -> set[int]:
    """Return the TCP ports that listen in this network namespace now. Raises OSError."""
    result: set[int] = set()
    for table in _TABLES:
        if not table.exists():
            continue  # a kernel without IPv6
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split(maxsplit=4)
            if fields[3] == _LISTEN:
                result.add(int(fields[1].rpartition(":")[2], 16))
    return result


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield a short name of `path` for the `with`. Raises OSError without its directory."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen_at(path: Path) -> socket.socket:
    """Return a listener's socket, bound at `path`, in the place of an earlier process's file.

    Raises OSError.
    """
    result = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with reachable(path) as short:
            result.bind(short)
    except OSError:
        result.close()
        raise
    return result


def connect_to(path: Path) -> socket.socket:
    """Return a non-blocking connection to the listener at `path`. Raises OSError."""
    result = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as short:
            result.connect(short)  # local, so it connects or fails at once
        result.setblocking(False)
    except OSError:
        result.close()
        raise
    return result
