"""A listener that closes loses no connection that it has accepted."""

import asyncio
import gc
import socket
from contextlib import suppress
from typing import cast

import pytest

from raftmq.ops.listening import listen_plain


class Noted(asyncio.Protocol):
    def __init__(self, made: list[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(cast(asyncio.Transport, transport))


@pytest.mark.parametrize("turns", range(6))
async def test_connection_accepted_during_a_close_is_served_or_closed(turns: int) -> None:
    made: list[asyncio.Transport] = []
    listening = await listen_plain(lambda: Noted(made), "127.0.0.1", 0)
    with socket.create_connection(listening.sockets[0].getsockname()) as dialled:
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.close()
        listening.close()  # harmless
        await listening.wait_closed()
        for transport in made:
            transport.abort()
        gc.collect()  # one that nobody owns is told by a ResourceWarning, which fails the test
        dialled.settimeout(60)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(dialled.recv, 1) == b""
