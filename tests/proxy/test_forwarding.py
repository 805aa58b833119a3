"""Clients' connections: which kinds one port takes, whose a call is, what a connection may hold."""

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.proxy import forwarding
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.forwarding import HIGH_BYTES, Forwarder
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import ProxyServer
from tests.certificates import Authority
from tests.proxy.world import PROXY, Caller
from tests.waiting import until

READ_BYTES = 256 << 10  # that the loop reads at a time
MANY = bytes(64 << 20)


@asynccontextmanager
async def proxy_of(**settings):
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as names:
        config = ProxyConfig(**(PROXY | {"namesrv": names.address} | settings))
        async with ProxyServer(config) as proxy:
            yield proxy


async def answer(proxy, channel=None):
    """Return the code of a call's answer, whatever it is; None if it did not come."""
    async with Caller(proxy, channel=channel) as caller:
        try:
            return (await caller.call("Heartbeat", timeout_s=20)).status.code
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            return None


@pytest.mark.parametrize(
    "mode, plain, tls, logged",
    [
        ("disabled", True, False, "tls_refused from=127.0.0.1 total=1 reason=this port takes no"),
        ("permissive", True, True, ""),
        ("enforcing", False, True, "plain_refused from=127.0.0.1 total=1 reason=this port takes T"),
    ],
)
async def test_port_accepts_the_kinds_of_its_tls_mode_and_logs_rejections(
    tmp_path, caplog, mode, plain, tls, logged
):
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", password="hush")
    files = {"tls_server_cert_path": cert, "tls_server_key_path": key}
    files["tls_server_key_password"] = "hush"
    ca = await asyncio.to_thread(Path(authority.path).read_bytes)
    trusted = grpc.ssl_channel_credentials(ca)
    async with proxy_of(tls_server_mode=mode, **files) as proxy:
        result = await answer(proxy)
        secure = grpc.aio.secure_channel(f"localhost:{proxy.port}", trusted)
        assert (result is not None, await answer(proxy, secure) is not None) == (plain, tls)
    lines = [one for one in caplog.messages if "_refused from" in one]
    assert len(lines) == bool(logged) and all(logged in one for one in lines), lines


async def test_connection_that_bypasses_the_port_is_rejected(monkeypatch):
    ports = []

    class Recorded(Forwarder):
        def __init__(self, connections_max, grpc_port):
            ports.append(grpc_port)
            super().__init__(connections_max, grpc_port)

    monkeypatch.setattr("raftmq.proxy.server.Forwarder", Recorded)
    async with proxy_of() as proxy:
        assert await answer(proxy) == pb.Code.UNRECOGNIZED_CLIENT_TYPE
        inner = grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}")
        assert await answer(proxy, inner) == pb.Code.UNAUTHORIZED


class Inner:
    """The port behind: it keeps its connections, and does nothing with them."""

    def __init__(self, **limits):
        self.limits = {"connections_max": 10} | limits
        self.streams = []  # (reader, writer) of each connection
        self.clients = []
        self.sides = []

    async def __aenter__(self):
        self._inner = await asyncio.start_server(
            lambda *stream: self.streams.append(stream), "127.0.0.1", 0
        )
        port = self._inner.sockets[0].getsockname()[1]
        self.forwarder = Forwarder(grpc_port=port, **self.limits)
        loop = asyncio.get_running_loop()
        self._outer = await loop.create_server(self._new, "127.0.0.1", 0)
        return self

    def _new(self):
        self.sides.append(self.forwarder.new())
        return self.sides[-1]

    async def client(self):
        """Return a new client's reader and writer."""
        self.clients.append(await asyncio.open_connection(*self._outer.sockets[0].getsockname()))
        return self.clients[-1]

    async def __aexit__(self, *_):
        self._outer.close()
        self._inner.close()
        self.forwarder.stop()
        for side in self.sides:
            side.transport.abort()
        for _, writer in (*self.streams, *self.clients):
            writer.transport.abort()
        await until(lambda: self.forwarder.count == 0 and not self.forwarder._clients)


async def ended(reader):
    with suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


def name_of(writer, which):
    host, port = writer.get_extra_info(which)
    return f"ipv4:{host}:{port}"


async def test_forwarded_connection_belongs_to_its_client_until_it_ends():
    async with Inner() as inner:
        clients = [await inner.client() for _ in range(2)]
        for _, writer in clients:
            writer.write(name_of(writer, "sockname").encode() + b"\n")
        await until(lambda: len(inner.streams) == 2)
        for reader, writer in inner.streams:
            own = (await reader.readline()).decode().strip()
            assert inner.forwarder.client_of(name_of(writer, "peername")) == own
        peer = name_of(inner.streams[0][1], "peername")
        inner.streams[0][1].close()
        await until(lambda: inner.forwarder.client_of(peer) == "")
        await until(lambda: inner.forwarder.count == 1)
        assert inner.forwarder.client_of("") == inner.forwarder.client_of("unix:") == ""


async def test_connection_above_the_limit_is_closed_and_counted(caplog):
    async with Inner(connections_max=2) as inner:
        kept = [await inner.client() for _ in range(2)]
        reader, _ = await inner.client()
        assert await ended(reader)
        assert (inner.forwarder.count, inner.forwarder.refused_count) == (2, 1)
        assert "connection_bound limit=2 total=1 peer=127.0.0.1" in caplog.text
        kept[0][1].close()
        await until(lambda: inner.forwarder.count == 1)


@pytest.mark.parametrize("outwards", [False, True])
async def test_forwarder_pauses_reading_while_the_other_side_does_not_read(outwards):
    async with Inner() as inner:
        client = await inner.client()
        await until(lambda: inner.streams)
        reading, writing = (client, inner.streams[0]) if outwards else (inner.streams[0], client)
        reading[1].transport.pause_reading()
        writing[1].write(MANY)
        (side,) = inner.sides
        await until(lambda: side._peer is not None)
        to, of = (side.transport, side._peer) if outwards else (side._peer, side.transport)
        await until(lambda: not of.is_reading())
        assert to.get_write_buffer_size() <= HIGH_BYTES + READ_BYTES
        reading[1].transport.resume_reading()
        assert len(await reading[0].readexactly(len(MANY))) == len(MANY)


@pytest.mark.parametrize("limit, ends", [("STALL_S", False), ("LINGER_S", True)])
async def test_client_that_does_not_read_is_disconnected(monkeypatch, limit, ends):
    monkeypatch.setattr(forwarding, limit, 0.05)
    async with Inner() as inner:
        client = await inner.client()
        await until(lambda: inner.streams)
        client[1].transport.pause_reading()
        (side,) = inner.sides
        writer = inner.streams[0][1]
        if not ends:
            writer.write(MANY)
        else:  # as much as the kernel and this process take
            while not side.transport.get_write_buffer_size():
                writer.write(bytes(HIGH_BYTES // 2))
                await asyncio.sleep(0)
            writer.close()
        await until(lambda: side.lost.done())


async def test_client_is_closed_if_the_inner_server_is_down(caplog):
    async with Inner() as inner:
        inner._inner.close()
        reader, _ = await inner.client()
        assert await ended(reader)
        assert "passage_failed peer=ipv4:127.0.0.1:" in caplog.text
