"""Ports that are taken before anybody listens on them."""

import asyncio
import socket

import pytest

from raftmq.remoting.bound_port import BoundPort


def listening():
    result = socket.create_server(("127.0.0.1", 0))
    return result, result.getsockname()[1]


def test_port_in_use_by_a_listener_is_rejected():
    other, port = listening()
    with other, pytest.raises(OSError, match="in use"):
        BoundPort("127.0.0.1", port)


def test_bound_port_is_exclusive_before_it_listens():
    first = BoundPort("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            BoundPort("127.0.0.1", first.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first.port))
    finally:
        first.close()
    BoundPort("127.0.0.1", first.port).close()


def test_port_with_lingering_connections_can_be_bound():
    other, port = listening()
    client = socket.create_connection(("127.0.0.1", port))
    served, _ = other.accept()
    served.close()  # first: its end of the connection lingers
    assert client.recv(1) == b""
    client.close()
    other.close()
    BoundPort("127.0.0.1", port).close()


async def test_taken_port_listens_and_can_be_bound_again_at_once():
    port = 0
    for _ in range(2):
        bound = BoundPort("127.0.0.1", port)
        port = bound.port
        taken = bound.take()
        bound.close()  # not the one that was taken
        assert taken is not None
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, sock=taken)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        server.close()
        writer.close()
        await writer.wait_closed()


def test_port_of_several_addresses_is_checked_and_left_to_the_listener(monkeypatch):
    free = BoundPort("127.0.0.1", 0)
    port = free.port
    free.close()
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: two)
    bound = BoundPort("both", port)
    assert bound.take() is None
    with (
        socket.create_server(("127.0.0.2", port)) as _,
        pytest.raises(OSError, match="in use"),
    ):
        BoundPort("both", port)
    socket.create_server(("127.0.0.1", port)).close()  # a failure lets go of the others
