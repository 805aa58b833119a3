"""Ports that are taken before anybody listens on them."""

import asyncio
import socket

import pytest

from raftmq.remoting.bound_port import BoundPort


def listening():
    result = socket.create_server(("127.0.0.1", 0))
    return result, result.getsockname()[1]


def test_a_port_that_is_listened_on_is_refused():
    other, port = listening()
    with other, pytest.raises(OSError, match="in use"):
        BoundPort("127.0.0.1", port)


def test_a_port_that_is_bound_here_is_nobody_elses_even_before_it_listens():
    first = BoundPort("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            BoundPort("127.0.0.1", first.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first.port))
    finally:
        first.close()
    BoundPort("127.0.0.1", first.port).close()


def test_a_port_where_connections_of_a_predecessor_linger_is_had():
    other, port = listening()
    client = socket.create_connection(("127.0.0.1", port))
    served, _ = other.accept()
    served.close()  # first: its end of the connection lingers
    assert client.recv(1) == b""
    client.close()
    other.close()
    BoundPort("127.0.0.1", port).close()


async def test_what_is_taken_listens_and_can_be_had_again_at_once():
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


def test_several_addresses_are_found_out_about_and_left_to_the_listener(monkeypatch):
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
