"""Taps: TCP relays on loopback that keep what each side said."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field


@dataclass(slots=True)
class Conversation:
    """One connection through a tap: what who dialled said, and what it heard."""

    port: str
    said: bytearray = field(default_factory=bytearray)
    heard: bytearray = field(default_factory=bytearray)


class Taps:
    """All taps of a recording. `to(kind, port)` may be called before `start`."""

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def to(self, kind: str, port: int) -> int:
        """The port of a tap before `port`, where `kind` is spoken."""
        known = self._sockets.get((kind, port))
        if known is None:
            known = self._sockets[kind, port] = socket.create_server(("127.0.0.1", 0))
        return int(known.getsockname()[1])

    async def start(self) -> None:
        """Relay from now on."""
        for (kind, port), listening in self._sockets.items():
            self._servers.append(await asyncio.start_server(self._of(kind, port), sock=listening))

    async def stop(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _of(self, kind: str, port: int):
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()  # nobody listens there yet: the dialler tries again
                return
            talk = Conversation(kind)
            self.conversations.append(talk)
            try:
                await asyncio.gather(
                    _pass(reader, far_writer, talk.said), _pass(far_reader, writer, talk.heard)
                )
            except asyncio.CancelledError:
                pass  # the recording is over
            finally:
                writer.close()
                far_writer.close()

        return accepted


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    try:
        while data := await reader.read(1 << 16):
            kept += data
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side broke it off: the other one hears of it
    writer.close()
