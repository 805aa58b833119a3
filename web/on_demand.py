"""An HTTP server that is created when its first client connects.

aiohttp takes a fifth of the CPU time of a broker's start, and 15 MB. Until the first connection the
sockets only listen. Then a thread imports aiohttp, while the loop serves others.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import WebServer

log = logging.getLogger("raftmq.web")

BACKLOG = 128


class OnDemandServer:
    """The server. Call `start` and `stop` once each."""

    def __init__(self, create: Callable[[], WebServer]) -> None:
        """`create` is called on the loop, once `raftmq.web.app` has been imported."""
        self._create = create
        self._sockets: list[socket.socket] = []  # that wait for the first connection
        self._starting: asyncio.Task[None] | None = None
        self._server: WebServer | None = None

    async def start(self, bound: socket.socket | None, health: socket.socket | None) -> None:
        """Listen on bound sockets. The server is created at once if `bound` is None, because it
        binds its addresses itself. Raises OSError."""
        if bound is None:
            await self._serve(None, health)
            return
        loop = asyncio.get_running_loop()
        for listener in [bound] if health is None else [bound, health]:
            self._sockets.append(listener)
            listener.listen(BACKLOG)
            loop.add_reader(listener, self._connected, bound, health)

    async def stop(self) -> None:
        """Stop, also after a failed start."""
        _close(self._taken())
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._server is not None:
            await self._server.stop()

    def _taken(self) -> list[socket.socket]:
        """Return the waiting sockets, which wait no longer."""
        taken, self._sockets = self._sockets, []
        for listener in taken:
            asyncio.get_running_loop().remove_reader(listener)
        return taken

    def _connected(self, bound: socket.socket, health: socket.socket | None) -> None:
        """The first client connected; its connection waits to be accepted."""
        loop = asyncio.get_running_loop()
        self._starting = loop.create_task(self._serve_late(self._taken(), bound, health))

    async def _serve_late(
        self, sockets: list[socket.socket], bound: socket.socket, health: socket.socket | None
    ) -> None:
        try:
            await self._serve(bound, health)
        except Exception as error:  # the process serves its other ports
            log.error("http_not_served", exc_info=error)
            _close(sockets)

    async def _serve(self, bound: socket.socket | None, health: socket.socket | None) -> None:
        await asyncio.to_thread(importlib.import_module, "raftmq.web.app")
        self._server = self._create()
        await self._server.start(bound, health)


def _close(sockets: list[socket.socket]) -> None:
    for listener in sockets:
        listener.close()
