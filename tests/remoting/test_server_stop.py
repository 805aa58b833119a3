"""A connection that comes while a server stops is closed, too."""

from __future__ import annotations

import asyncio
import socket

from raftmq.remoting.server import RemotingServer
from tests.remoting.harness import on_both_loops


@on_both_loops
async def test_connection_during_a_server_stop_is_closed() -> None:
    for turns in range(8):
        await connect_and_stop(turns)


async def connect_and_stop(turns: int) -> None:
    """`turns` of the loop lie between the connection and the stop: not accepted yet, accepted but
    not known to the server yet, known."""
    server = RemotingServer({})
    await server.start("127.0.0.1")
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        async with asyncio.timeout(60):
            try:
                assert await asyncio.get_running_loop().sock_recv(peer, 1) == b"", turns
            except ConnectionError:
                pass  # hung up on without a goodbye
    assert server.connections == set()
