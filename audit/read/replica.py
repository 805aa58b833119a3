"""Reads the log of a running replica, from any process of an audit.

A replica is plain data, so a task gets it with its work, and opens a connection of its own. All
processes share the session that the audit has started at the replica (broker.backup.service). A
replica that has forgotten the session, by a restart, begins it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.online_source import Overtaken, RemoteSource
from raftmq.broker.backup.protocol import GONE, OVERTAKEN, READ_BYTES_MAX, UnitRun
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.tls import Renewed
from raftmq.spark.options import Connection

T = TypeVar("T")
READS_AT_ONCE = 4  # by a task
PATIENCE_S = 60.0  # for a replica that does not answer, for instance during a restart
RETRY_S = 0.5
FAILURES = (BackupError, Overtaken, RemotingError)
LOST = "has stopped answering the audit"


class ReplicaLost(Exception):
    """A replica has stopped answering."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica's log [start, end) in segments of `segment_size_bytes`, as of frame `index`."""

    name: str
    address: str
    connection: Connection
    session: str
    index: int
    start: int
    end: int
    segment_size_bytes: int
    bytes_per_s: int

    def read(self, start: int, end: int) -> bytes:
        """Return the part of [start, end) that the log has. Raises ReplicaLost, BackupError."""
        start, end = max(start, self.start), min(end, self.end)
        return self._run(lambda client: self.read_by(client, start, end)) if start < end else b""

    def digest(self, start: int, end: int) -> bytes:
        """Return the SHA-256 of a range of the log. Raises ReplicaLost, BackupError."""
        return self._run(lambda client: self.digest_by(client, start, end))

    async def read_by(self, client: RemotingClient, start: int, end: int) -> bytes:
        content = bytearray(end - start)
        positions = iter(range(start, end, READ_BYTES_MAX))

        async def read() -> None:
            for position in positions:
                at, behind = position, min(position + READ_BYTES_MAX, end)
                while at < behind:
                    data = await self._request(client, _Read(at, behind - at))
                    content[at - start : at - start + len(data)] = data
                    at += len(data)

        await asyncio.gather(*(read() for _ in range(READS_AT_ONCE)))
        return bytes(content)

    async def digest_by(self, client: RemotingClient, start: int, end: int) -> bytes:
        return await self._request(client, lambda source: source.digest(start, end))

    async def units_by(
        self, client: RemotingClient, runs: Sequence[UnitRun], *, content: bool
    ) -> bytes:
        """Return these ConsumeQueue units, with zeros for absent units, or their SHA-256."""
        return await self._request(client, lambda source: source.units(runs, content=content))

    async def frames_by(self, client: RemotingClient, start: int, end: int) -> tuple[int, int]:
        """Return the bounds of the frames that start in [start, end) of a segment."""
        return await self._request(client, lambda source: source.frames(start, end))

    async def renew_by(self, client: RemotingClient) -> None:
        """Keep the session, or begin it again. Raises BackupError."""
        await self._source(client).renew(self.index)

    async def end_by(self, client: RemotingClient) -> None:
        await self._source(client).end()

    def _source(self, client: RemotingClient) -> RemoteSource:
        return RemoteSource(
            client,
            self.address,
            bytes_per_s=self.bytes_per_s,
            confirm=False,
            shared=self.session,
        )

    async def _request(
        self, client: RemotingClient, ask: Callable[[RemoteSource], Awaitable[T]]
    ) -> T:
        """Ask until the replica answers, or PATIENCE_S. Raises ReplicaLost, BackupError."""
        source, deadline_s = self._source(client), time.monotonic() + PATIENCE_S
        is_gone = False
        while True:
            try:
                if is_gone:
                    await source.renew(self.index)
                return await ask(source)
            except (Overtaken, BackupError) as error:
                is_gone = is_gone or GONE in str(error)
                if OVERTAKEN in str(error) or not (is_gone or isinstance(error, Overtaken)):
                    raise BackupError(str(error)) from error
                if time.monotonic() >= deadline_s:
                    raise ReplicaLost(f"{self.name} {LOST}: {error}") from error
            await asyncio.sleep(RETRY_S)

    def _run(self, work: Callable[[RemotingClient], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with connected(self.connection) as client:
                return await work(client)

        return asyncio.run(run())


@dataclass(frozen=True, slots=True)
class _Read:
    position: int
    size: int

    def __call__(self, source: RemoteSource) -> Awaitable[bytes]:
        return source.read(self.position, self.size)


@asynccontextmanager
async def connected(connection: Connection) -> AsyncIterator[RemotingClient]:
    tls = connection.tls
    client = RemotingClient(
        credentials=connection.credentials,
        tls=None if tls is None else await asyncio.to_thread(Renewed, tls, "client"),
    )
    try:
        yield client
    finally:
        await client.close()
