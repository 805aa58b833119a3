"""Unix sockets at paths of any length: their addresses are limited to 107 bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield a short name of `path` for the `with`. Raises OSError without its directory."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen_at(path: Path) -> socket.socket:
    """Return a listener's socket, bound at `path`; remove what a former process left there.

    Raises OSError.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with reachable(path) as short:
            found.bind(short)
    except OSError:
        found.close()
        raise
    return found


def connect_to(path: Path) -> socket.socket:
    """Return a non-blocking connection to the listener at `path`. Raises OSError."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as short:
            found.connect(short)  # local: at once, or refused
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found
