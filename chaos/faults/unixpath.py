"""Unix sockets below directories of any depth: an address may have 107 bytes, a path more."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A short name of `path`, good while this lasts. Raises OSError without its directory."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen_at(path: Path) -> socket.socket:
    """A listener's socket, bound at `path`; what a former process left there is removed.

    Raises OSError."""
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
    """A connection to whoever listens at `path`; not blocking any more. Raises OSError."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as short:
            found.connect(short)  # local: at once, or refused
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found
