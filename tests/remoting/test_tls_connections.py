"""TLS and plain clients at one port, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import atexit
import logging
import shutil
import socket
import ssl
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from raftmq.remoting import tls_listener as tlslistener
from raftmq.remoting.blocking_request import ask
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, ConnectionLimits
from raftmq.remoting.errors import ConnectError, RemotingError
from raftmq.remoting.server import RemotingServer, ServerLimits
from raftmq.remoting.tls import ClientAuth, ClientTls, Renewed, ServerTls, TlsMode
from raftmq.remoting.tls_listener import ArrivalLimits, TlsPolicy
from tests.certificates import Authority
from tests.remoting.harness import RawPeer, echo, on_both_loops, serving
from tests.waiting import until

REQUEST = RemotingCommand.request
HELLO = b"\x16\x03\x01"  # how a ClientHello begins


class World:
    """A CA, a server's certificate, and what connects with it."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory)
        self.cert, self.key = self.ca.issue("server")
        self.source = Renewed(ServerTls(self.cert, self.key), "server")

    def policy(self, mode: str = "enforcing", **limits: Any) -> TlsPolicy:
        return TlsPolicy(TlsMode(mode), self.source, ArrivalLimits(**limits))

    def client(self, settings: ClientTls | None = None, **options: Any) -> RemotingClient:
        tls = Renewed(settings or ClientTls(self.ca.path), "client")
        return RemotingClient(tls=tls, **options)


def spoil(path: str) -> None:
    Path(path).write_text("no certificate")


_made: list[World] = []


def world() -> World:
    """The same certificates for all tests that change none: making keys takes time."""
    if not _made:
        directory = tempfile.mkdtemp(prefix="tls-tests-")
        atexit.register(shutil.rmtree, directory)
        _made.append(World(Path(directory)))
    return _made[0]


async def refused(client: RemotingClient, address: str) -> str:
    with pytest.raises(ConnectError) as caught:
        await client.invoke(address, REQUEST(1), 60_000)
    await client.close()
    return str(caught.value)


def counts(server: RemotingServer) -> Any:
    return server.arrivals


@on_both_loops
async def test_large_requests_in_both_directions_over_tls() -> None:
    async with serving({1: echo, 310: echo}, tls=world().policy()) as (server, address):
        client = world().client(handlers={7: echo})
        body = bytes(range(256)) * 8_192  # 2 MiB: many TLS records
        answers = await asyncio.gather(
            *(client.invoke(address, REQUEST(310, body=body), 30_000) for _ in range(4)),
            client.invoke(address, REQUEST(1, {"a": "b"}), 30_000),
        )
        assert [len(one.body) for one in answers] == [len(body)] * 4 + [0]
        assert all(one.body == body for one in answers[:4])
        (connection,) = server.connections
        requested = await connection.invoke(REQUEST(7, {"c": "d"}), 60_000)
        assert requested.ext == {"c": "d"}
        assert counts(server).tls == 1
        await client.close()
        await until(lambda: not server.connections)


@on_both_loops
async def test_permissive_mode_accepts_plain_and_tls_and_enforcing_only_tls() -> None:
    async with serving({1: echo}, tls=world().policy("permissive")) as (server, address):
        plain, secure = RemotingClient(), world().client()
        for client in (plain, secure):
            assert (await client.invoke(address, REQUEST(1, body=b"x"), 60_000)).body == b"x"
            await client.close()
        assert (counts(server).tls, counts(server).plain, counts(server).plain_refused) == (1, 1, 0)
    async with serving({1: echo}, tls=world().policy("disabled")) as (server, address):
        assert server.arrivals is None
        plain = RemotingClient()
        assert (await plain.invoke(address, REQUEST(1), 60_000)).code == 0
        await plain.close()
        text = await refused(world().client(), address)
        assert "closed" in text or "reset" in text


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "raftmq.remoting.tls")
    return caplog


def test_plain_clients_are_closed_counted_and_logged_once(
    warnings: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving({1: echo}, tls=world().policy()) as (server, address):
            for _ in range(3):
                client = RemotingClient()
                with pytest.raises(RemotingError):
                    await client.invoke(address, REQUEST(1), 60_000)
                await client.close()
            assert counts(server).plain_refused == 3
            assert not server.connections

    asyncio.run(scenario())
    lines = [record for record in warnings.records if "plain_refused" in record.getMessage()]
    assert len(lines) == 1
    assert "from=127.0.0.1" in lines[0].getMessage()


@on_both_loops
async def test_tls_client_rejects_untrusted_and_expired_servers() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        stranger = Authority(directory, "stranger")
        async with serving({1: echo}, tls=world().policy()) as (server, address):
            text = await refused(world().client(ClientTls(stranger.path)), address)
            assert "the certificate is refused" in text
            await until(lambda: counts(server).failed == 1)
            blind = world().client(ClientTls(stranger.path, auth_server=False))
            assert (await blind.invoke(address, REQUEST(1), 60_000)).code == 0
            await blind.close()
        elsewhere = world().ca.issue("elsewhere", "broker.example")
        policy = TlsPolicy(TlsMode.ENFORCING, Renewed(ServerTls(*elsewhere), "s"))
        async with serving({1: echo}, tls=policy) as (_, address):
            assert "IP address mismatch" in await refused(world().client(), address)
            nameless = ClientTls(world().ca.path, check_host_name=False)
            client = world().client(nameless)
            assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
            await client.close()
        expired = world().ca.issue("expired", expired=True)
        policy = TlsPolicy(TlsMode.ENFORCING, Renewed(ServerTls(*expired), "s"))
        async with serving({1: echo}, tls=policy) as (_, address):
            assert "certificate has expired" in await refused(world().client(), address)


@on_both_loops
async def test_tls_server_rejects_untrusted_clients() -> None:
    """TLS 1.3's client is through before the server has judged it: it is hung up on then."""
    with tempfile.TemporaryDirectory() as name:
        stranger = Authority(Path(name), "stranger")
        of_stranger = stranger.issue("client")
        own, expired = world().ca.issue("client"), world().ca.issue("late", expired=True)
        settings = ServerTls(world().cert, world().key, "", world().ca.path, ClientAuth.REQUIRE)
        policy = TlsPolicy(TlsMode.ENFORCING, Renewed(settings, "s"))
        async with serving({1: echo}, tls=policy) as (server, address):
            for number, identity in enumerate((("", ""), of_stranger, expired), start=1):
                client = world().client(ClientTls(world().ca.path, *identity))
                with pytest.raises(RemotingError):
                    await client.invoke(address, REQUEST(1), 60_000)
                await client.close()

                def failed(want: int = number) -> bool:
                    return counts(server).failed == want

                await until(failed)
            client = world().client(ClientTls(world().ca.path, *own))
            assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
            await client.close()
        for need, stranger_passes in ((ClientAuth.OPTIONAL, False), (ClientAuth.NONE, True)):
            settings = ServerTls(world().cert, world().key, "", world().ca.path, need)
            policy = TlsPolicy(TlsMode.ENFORCING, Renewed(settings, "s"))
            async with serving({1: echo}, tls=policy) as (_, address):
                client = world().client()
                assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
                await client.close()
                client = world().client(ClientTls(world().ca.path, *of_stranger))
                with nullcontext() if stranger_passes else pytest.raises(RemotingError):
                    await client.invoke(address, REQUEST(1), 60_000)
                await client.close()


@on_both_loops
async def test_renewed_certificate_is_used_for_new_connections() -> None:
    with tempfile.TemporaryDirectory() as name:
        here = World(Path(name))
        old_ca = here.ca.path
        async with serving({1: echo}, tls=here.policy()) as (server, address):
            before = here.client()
            assert (await before.invoke(address, REQUEST(1), 60_000)).code == 0
            spoil(here.cert)
            here.source.check()
            assert here.source.error
            still = here.client()
            assert (await still.invoke(address, REQUEST(1), 60_000)).code == 0
            new_ca = Authority(Path(name), "second")
            new_ca.issue("server")
            here.source.check()
            assert not here.source.error
            assert "refused" in await refused(here.client(ClientTls(old_ca)), address)
            after = here.client(ClientTls(new_ca.path))
            assert (await after.invoke(address, REQUEST(1), 60_000)).code == 0
            assert (await before.invoke(address, REQUEST(1), 60_000)).code == 0  # as it was
            assert len(server.connections) == 3
            for client in (before, still, after):
                await client.close()


@on_both_loops
async def test_silent_tls_client_is_closed() -> None:
    policy = world().policy("permissive", patience_s=0.1)
    async with serving({1: echo}, tls=policy) as (server, address):
        silent, half = await RawPeer.connect(address), await RawPeer.connect(address)
        half.writer.write(HELLO)
        assert await silent.command() is None
        assert await half.command() is None
        assert counts(server).silent + counts(server).failed == 2
        assert counts(server).silent >= 1
        assert not server.connections
        await silent.close()
        await half.close()


@on_both_loops
async def test_longest_silent_tls_client_is_closed_at_the_limit() -> None:
    policy = world().policy("permissive", arriving_max=3, grace_s=0.0, patience_s=60.0)
    async with serving({1: echo}, tls=policy) as (server, address):
        silent = [await RawPeer.connect(address) for _ in range(5)]
        await until(lambda: counts(server).silent == 2)
        for gone in silent[:2]:
            assert await gone.command() is None
        client = world().client()  # in spite of them
        assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
        assert counts(server).silent == 3
        for peer in silent:
            await peer.close()
        await client.close()


@on_both_loops
async def test_accepting_pauses_at_the_limit_of_tls_handshakes() -> None:
    """Slow handshakes hold their places for `patience_s` and no longer; who waits is served."""
    policy = world().policy(arriving_max=6, patience_s=1.0)
    async with serving({1: echo}, tls=policy) as (server, address):
        slow = [await RawPeer.connect(address) for _ in range(6)]
        for peer in slow:
            peer.writer.write(HELLO)
        client = world().client(connect_timeout_ms=30_000)
        assert (await client.invoke(address, REQUEST(1), 30_000)).code == 0
        assert counts(server).failed >= 1  # before that there was no room for the client
        await until(lambda: counts(server).failed == 6)
        for peer in slow:
            await peer.close()
        await client.close()


@on_both_loops
async def test_slow_tls_handshakes_are_closed() -> None:
    """Whoever begins a handshake and says no more keeps nobody out for long."""
    policy = world().policy(arriving_max=6, patience_s=600.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tlslistener, "HANDSHAKE_GRACE_S", 0.1)
        async with serving({1: echo}, tls=policy) as (server, address):
            slow = [await RawPeer.connect(address) for _ in range(6)]
            for peer in slow:
                peer.writer.write(HELLO)
            client = world().client(connect_timeout_ms=30_000)
            assert (await client.invoke(address, REQUEST(1), 30_000)).code == 0
            assert 1 <= counts(server).failed <= 6
            for peer in slow:
                await peer.close()
            await client.close()


@on_both_loops
async def test_many_concurrent_tls_clients_are_served() -> None:
    policy = world().policy(arriving_max=8, starts_per_turn=2, grace_s=60.0)
    async with serving({1: echo}, tls=policy) as (server, address):
        clients = [world().client(connect_timeout_ms=30_000) for _ in range(30)]
        answers = await asyncio.gather(
            *(client.invoke(address, REQUEST(1), 30_000) for client in clients)
        )
        assert [answer.code for answer in answers] == [0] * 30
        assert counts(server).tls == 30
        for client in clients:
            await client.close()


@on_both_loops
async def test_tls_connections_are_limited() -> None:
    def signed(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        connection.has_account = True
        return echo(connection, request)

    limits = ServerLimits(connections_max=1)
    options = {"tls": world().policy(), "server_limits": limits, "with_accounts": True}
    async with serving({1: signed}, **options) as (server, address):
        first, second = world().client(), world().client()
        assert (await first.invoke(address, REQUEST(1), 60_000)).code == 0
        assert (await second.invoke(address, REQUEST(1), 60_000)).code == 0
        assert server.refused_count == 1
        await until(lambda: len(server.connections) == 1)
        await first.close()
        await second.close()


@on_both_loops
async def test_tls_peer_that_does_not_read_is_closed() -> None:
    limits = ConnectionLimits(
        write_high_bytes=64 << 10, write_low_bytes=16 << 10, write_bytes_max=256 << 10
    )
    async with serving({1: echo}, tls=world().policy(), limits=limits) as (server, address):
        context = ssl.create_default_context(cafile=world().ca.path)
        peer = await RawPeer.connect(address, ssl=context, limit=1024)
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        async with asyncio.timeout(60):
            while connection.is_open:
                connection.write(bytes(32 << 10))
                await asyncio.sleep(0)
        assert "does not read" in connection.close_reason
        await until(lambda: not server.connections)
        peer.writer.transport.abort()


@on_both_loops
async def test_stopping_server_closes_tls_handshakes() -> None:
    for turns in range(6):
        server = RemotingServer({1: echo}, tls=world().policy(starts_per_turn=1))
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        silent = [await RawPeer.connect(address) for _ in range(2)]
        half = [await RawPeer.connect(address) for _ in range(3)]
        for peer in half:
            peer.writer.write(HELLO)
        client = world().client()
        asking = asyncio.ensure_future(client.invoke(address, REQUEST(1), 60_000))
        for _ in range(turns * turns):
            await asyncio.sleep(0)
        await server.stop()
        await asyncio.wait([asking])
        for peer in (*silent, *half):
            try:
                assert await peer.command() is None
            except ConnectionError:
                pass  # hung up on without a goodbye
            await peer.close()
        if (error := asking.exception()) is not None:
            assert isinstance(error, RemotingError)
        await client.close()


@on_both_loops
async def test_cancelled_tls_dial_leaves_no_connection() -> None:
    """Nobody answers the ClientHello: the connect times out, or is cancelled."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        text = await refused(world().client(connect_timeout_ms=100), address)
        assert "no answer in 100 ms" in text
        client = world().client(connect_timeout_ms=30_000)
        dialling = asyncio.ensure_future(client.connect(address))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ConnectError):
            await dialling


def test_blocking_request_over_tls() -> None:
    context = Renewed(ClientTls(world().ca.path), "ask").context

    async def scenario() -> None:
        async with serving({1: echo}, tls=world().policy()) as (_, address):
            answer = await asyncio.to_thread(ask, address, REQUEST(1), 20.0, context=context)
            assert answer.code == 0
            with pytest.raises(RemotingError):
                await asyncio.to_thread(ask, address, REQUEST(1), 20.0)

    asyncio.run(scenario())
