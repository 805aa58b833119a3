"""Slow links for brokers in this process, a TCP proxy for each directed peer link."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from raftmq.chaos.pysyncobj.member import PYSYNCOBJ
from tests.broker.cluster import Group

CHUNK_BYTES = 4096


class SlowLink:
    """A port that leads to `target_port`, behind `delay_s` and at `rate` bytes per second (0 for no
    limit). Only the dialler's direction is slow, because only a hello's answer flows back."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.delay_s = 0.0
        self.rate = 0.0
        self.cut = False
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Break every connection and lose the bytes in flight."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        for work in (
            self._gather(reader, due),
            self._forward(due, far_writer),
            self._back(far_reader, writer),
        ):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _gather(
        self, reader: asyncio.StreamReader, due: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            due.put_nowait((loop.time() + self.delay_s, data))

    async def _forward(
        self, due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            at, data = await due.get()
            if self.rate:
                at = max(at, loop.time() + len(data) / self.rate)
            if at > loop.time():
                await asyncio.sleep(at - loop.time())
            if not data or writer.transport.is_closing():
                writer.transport.abort()
                return
            writer.write(data)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b"-"
        while data and not writer.transport.is_closing():
            with contextlib.suppress(OSError):
                data = await reader.read(CHUNK_BYTES)
                writer.write(data)
                continue
            break
        writer.transport.abort()


class SyncObjGroup(Group):
    """A Group over pysyncobj."""

    replication = PYSYNCOBJ


class SlowGroup(Group):
    """A Group with SlowLinks between its peers."""

    def __init__(self, root: Any, count: int = 3, **settings: Any) -> None:
        super().__init__(root, count, **settings)
        self.links = {
            (a, b): SlowLink(self.ports[b]) for a in self.names for b in self.names if a != b
        }

    async def __aenter__(self) -> SlowGroup:
        for link in self.links.values():
            await link.start()
        await super().__aenter__()
        return self

    async def __aexit__(self, *what: object) -> None:
        await super().__aexit__(*what)
        for link in self.links.values():
            await link.stop()

    def config(self, name: str) -> Any:
        ports = {n: self.ports[n] if n == name else self.links[name, n].port for n in self.names}
        peers = ";".join(f"{n}-127.0.0.1:{port}" for n, port in ports.items())
        kept, self.settings = self.settings, {"dLegerPeers": peers, **self.settings}
        try:
            return super().config(name)
        finally:
            self.settings = kept

    def between(self, a: str, b: str) -> tuple[SlowLink, SlowLink]:
        return self.links[a, b], self.links[b, a]

    def cut(self, a: str, b: str) -> None:
        for link in self.between(a, b):
            link.cut = True
            link.reset()

    def heal(self) -> None:
        for link in self.links.values():
            link.cut, link.delay_s, link.rate = False, 0.0, 0.0
