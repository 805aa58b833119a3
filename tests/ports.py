"""Ports of this machine for servers that a test starts."""

import socket


def bound(port: int = 0) -> socket.socket:
    """Return a socket that has the port, or some free one, and does not listen. Another socket of
    this function may have the same port."""
    result = socket.socket()
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    result.bind(("127.0.0.1", port))
    return result
