"""A name with several addresses is reached if one of them answers; the others may be silent."""

import asyncio
import contextlib
import errno
import functools
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trustme

from raftmq.dledger.transport.group_id import GroupIdentity
from raftmq.dledger.transport.link import LinkConfig, PeerAddress
from raftmq.dledger.transport.network import PlainNetwork
from raftmq.dledger.transport.outbound import Local, why_not_at
from raftmq.ops import connect as dialling
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import ConnectError
from tests.remoting.harness import echo, on_both_loops, serving

NAME = "broker.example"
FIRST, SECOND = "127.0.0.61", "127.0.0.62"


@contextlib.contextmanager
def silent(host: str, port: int) -> Iterator[None]:
    """Drop every SYN to that address: a listener whose queue is full does."""
    with contextlib.ExitStack() as owned:
        listener = owned.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):  # one is queued, at least the last is not answered
            filler = owned.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield


@contextlib.contextmanager
def named(*hosts: str) -> Iterator[pytest.MonkeyPatch]:
    """Let NAME have these addresses."""

    async def addresses_of(host: str, port: int) -> list[Any]:
        assert host == NAME
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialling, "addresses_of", addresses_of)
        yield patch


@on_both_loops
async def test_client_skips_a_silent_address() -> None:
    async with serving({1: echo}) as (server, _):
        client = RemotingClient(connect_timeout_ms=60_000)
        with silent(FIRST, server.port), named(FIRST, "127.0.0.1"):
            address = f"{NAME}:{server.port}"
            answer = await client.invoke(address, RemotingCommand.request(1, body=b"x"), 60_000)
        assert answer.body == b"x"
        await client.close()


@on_both_loops
async def test_replica_skips_a_silent_address() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, SECOND, 0)
    port = server.sockets[0].getsockname()[1]
    with contextlib.closing(server), silent(FIRST, port), named(FIRST, SECOND):
        async with asyncio.timeout(60):
            link = await PlainNetwork().dial(Noted, NAME, port, "n1")
    assert isinstance(link, Noted)
    assert link.transport.get_extra_info("peername") == (SECOND, port)
    await link.end()


@pytest.mark.parametrize("hosts", [(SECOND,), (FIRST, SECOND)])
@pytest.mark.parametrize("of", [NAME, "other.example"])
def test_certificate_is_checked_for_the_name(hosts: tuple[str, ...], of: str) -> None:
    authority = trustme.CA()
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(of).configure_cert(shown)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    @on_both_loops
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, SECOND, 0, ssl=shown)
        port = server.sockets[0].getsockname()[1]
        with contextlib.closing(server), silent(FIRST, port), named(*hosts):
            async with asyncio.timeout(60):
                dialled = functools.partial(dialling.dial, Noted, NAME, port, trusting)
                if of == NAME:
                    link = await dialled()
                    assert isinstance(link, Noted)
                    await link.end()
                else:
                    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
                        await dialled()

    for loop_name in ("asyncio", "uvloop"):
        scenario(loop_name)


@on_both_loops
async def test_refused_address_is_skipped_at_once() -> None:
    async with serving({1: echo}) as (server, _):
        client = RemotingClient(connect_timeout_ms=60_000)
        with named(FIRST, "127.0.0.1") as patch:
            patch.setattr(dialling, "STAGGER_S_MAX", 3_600)
            patch.setattr(dialling, "ALL_TRIED_S", 7_200)
            await client.connect(f"{NAME}:{server.port}")
        await client.close()


@on_both_loops
async def test_cancel_at_any_moment_ends_the_dial() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, SECOND, 0)
    port = server.sockets[0].getsockname()[1]
    ends = set()
    with contextlib.closing(server), silent(FIRST, port), named(FIRST, SECOND) as patch:
        patch.setattr(dialling, "STAGGER_S_MAX", 0)
        turns = 0
        while turns < 40 or "connected" not in ends:
            dial = loop.create_task(dialling.dial(Noted, NAME, port))
            for _ in range(turns):
                await asyncio.sleep(0)
            if dial.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await dial
                ends.add("cancelled")
            else:
                link = await dial
                assert isinstance(link, Noted)
                await link.end()
                ends.add("connected")
            turns += max(1, turns - 40)  # each one at first; then however many a busy machine needs
    assert ends == {"cancelled", "connected"}


@on_both_loops
async def test_connect_error_lists_the_tried_addresses() -> None:
    with socket.create_server((SECOND, 0)) as held:
        port = held.getsockname()[1]
    with named(FIRST, SECOND):
        refused = RemotingClient(connect_timeout_ms=60_000)
        where = f"connecting to {NAME}:{port}: {FIRST}, {SECOND}: Connection refused"
        with pytest.raises(ConnectError, match=f"^{where}$"):
            await refused.connect(f"{NAME}:{port}")
        with silent(FIRST, port), silent(SECOND, port):
            waiting = RemotingClient(connect_timeout_ms=1_000)
            why = f"no answer in 1000 ms from {FIRST}, {SECOND}$"
            with pytest.raises(ConnectError, match=why):
                await waiting.connect(f"{NAME}:{port}")
            config = LinkConfig(connect_timeout_ms=1_000)
            address = PeerAddress("n1", NAME, port)
            local = Local("n0", "g", address, config, GroupIdentity())
            assert re.search(why, await why_not_at(local, address))


def test_connect_error_names_some_of_many_addresses_and_each_reason() -> None:
    many = [(f"10.0.0.{n}", OSError(errno.ECONNREFUSED, "")) for n in range(1, 7)]
    error = dialling._together([*many, ("10.0.0.9", OSError(errno.EHOSTUNREACH, ""))])
    refused = "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 more: Connection refused"
    assert str(error) == f"{refused}; 10.0.0.9: No route to host"
    assert type(error) is OSError
    assert type(dialling._together(many)) is ConnectionRefusedError


class Noted(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set_result(None)

    async def end(self) -> None:
        self.transport.abort()
        await self._lost
