"""A peer whose machine is gone is found by the kernel, in seconds."""

import asyncio
import socket

import pytest
import uvloop

from raftmq.ops.keepalive import CLIENT_KEEPALIVE, Keepalive
from raftmq.ops.listening import listen_plain
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.connection import Connection
from raftmq.remoting.server import RemotingServer
from tests.instances import transports_of
from tests.waiting import until

FOUND_S_MAX = 20
NAMES = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
both_loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def options_of(transport: asyncio.BaseTransport | None) -> Keepalive:
    assert transport is not None
    raw = transport.get_extra_info("socket")
    if not raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return Keepalive(0, 0, 0, 0)
    return Keepalive(*(raw.getsockopt(socket.IPPROTO_TCP, getattr(socket, n)) for n in NAMES))


def test_dead_client_is_found_in_time_by_keepalive() -> None:
    """Linux looks at the time-out when a probe is due, and closes at the first one behind it."""
    due_s = CLIENT_KEEPALIVE.idle_s
    while due_s * 1000 < CLIENT_KEEPALIVE.unacknowledged_ms_max:
        due_s += CLIENT_KEEPALIVE.interval_s
    elsewhere_s = CLIENT_KEEPALIVE.idle_s + CLIENT_KEEPALIVE.interval_s * CLIENT_KEEPALIVE.probes
    assert max(due_s, elsewhere_s) < FOUND_S_MAX


@both_loops
def test_accepted_connections_have_the_keepalive_options(loop: object) -> None:
    """Also those of HTTP and of the classic mode's slaves, whose protocols set none."""
    result: list[Keepalive] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            result.append(options_of(transport))
            transport.close()

    async def run() -> None:
        listening = await listen_plain(Accepted, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        await until(lambda: bool(result))
        assert result == [CLIENT_KEEPALIVE]
        writer.close()
        listening.close()
        await listening.wait_closed()

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(run())


@both_loops
def test_both_ends_of_a_remoting_connection_have_keepalive_options(
    loop: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports = transports_of(monkeypatch, Connection)

    async def run() -> None:
        server, client = RemotingServer(), RemotingClient()
        await server.start("127.0.0.1", 0)
        near = await client.connect(f"127.0.0.1:{server.port}")
        await until(lambda: bool(server.connections))
        for end in (near, *server.connections):
            assert options_of(transports[end]) == CLIENT_KEEPALIVE
        await client.close()
        await server.stop()

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(run())
