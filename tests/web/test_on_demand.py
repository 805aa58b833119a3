"""A server that exists from its first connection on."""

import asyncio
import socket
from typing import Any

import pytest

from raftmq.web.app import WebServer
from raftmq.web.auth import Access
from raftmq.web.on_demand import OnDemandServer
from raftmq.web.operation import Operation
from raftmq.web.settings import WebSettings
from tests.broker.http.client import Client
from tests.ports import bound
from tests.web.test_server import TOKENS, fine, tokens_file, written


def serving(created, **settings):
    def create():
        kinds = WebSettings(**settings)
        operations = [
            Operation("GET", "/fine", "fine", "f", fine),
            Operation("GET", "/health/live", "live", "l", fine, role=None),
        ]
        created.append(WebServer(kinds, access, operations, title="T", version="1"))
        return created[-1]

    access = Access.of(WebSettings(**settings))
    return OnDemandServer(create)


def address_of(listener):
    return f"127.0.0.1:{listener.getsockname()[1]}"


async def test_on_demand_server_is_created_by_its_first_connection():
    listener = bound()
    created: list[Any] = []
    server = serving(created)
    await server.start(listener, None)
    try:
        await asyncio.sleep(0)
        assert not created
        async with Client(address_of(listener)) as client:
            answers = await asyncio.gather(*(client.get("/fine") for _ in range(3)))
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert len(created) == 1
    finally:
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", created[0].port))


async def test_connection_to_the_health_port_creates_both_servers():
    listener, health = bound(), bound()
    created: list[Any] = []
    server = serving(created, health_port=health.getsockname()[1])
    await server.start(listener, health)
    try:
        async with Client(address_of(health)) as client:
            assert (await client.get("/health/live")).status == 200
        async with Client(address_of(listener)) as client:
            assert (await client.get("/fine")).status == 200
        assert len(created) == 1
    finally:
        await server.stop()


async def test_on_demand_server_without_a_bound_socket_binds_at_once():
    created: list[Any] = []
    server = serving(created)
    await server.start(None, None)
    try:
        async with Client(f"127.0.0.1:{created[0].port}") as client:
            assert (await client.get("/fine")).status == 200
    finally:
        await server.stop()


async def test_stop_without_a_connection_frees_the_port():
    listener = bound()
    created: list[Any] = []
    address = listener.getsockname()
    server = serving(created)
    await server.start(listener, None)
    await server.stop()
    assert not created
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_token_removed_before_the_first_connection_is_rejected(tmp_path):
    path, listener = tokens_file(tmp_path), bound()
    server = serving([], tokens_file=path)
    await server.start(listener, None)
    try:
        written(
            tmp_path / "tokens", {"tokens": [{"token": "x" * 20, "role": "admin", "name": "n"}]}
        )
        async with Client(address_of(listener)) as client:
            bearer = f"Bearer {TOKENS['admin']}"
            assert (await client.ask("GET", "/fine", Authorization=bearer)).status == 401
    finally:
        await server.stop()


async def test_failed_on_demand_server_is_logged_and_its_port_closed(caplog):
    def create():
        raise OSError("no descriptors")

    listener = bound()
    address = listener.getsockname()
    server = OnDemandServer(create)
    await server.start(listener, None)
    _, writer = await asyncio.open_connection(*address)
    writer.close()
    await server.stop()
    assert "http_not_served" in caplog.text
    assert "no descriptors" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
