"""Sends steps to the nodes they are for, and counts what arrived.

Frames that leave a connection open go out many in one write, behind them a request whose answer
says that all have been worked off; each that closes it, by the product's own decoder, goes on a
connection of its own, every other one right behind an ordinary send: what comes in one arrival is
treated together. What does not happen within a time is nobody's fault here: `watch` has that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.errors import RemotingProtocolError
from tests.fuzz.peerframes import is_readable
from tests.fuzz.peerlink import NotWelcome, greet
from tests.fuzz.plan import SPOKEN, TARGETS, Step
from tests.fuzz.samples import load
from tests.fuzz.watch import MARKED, PING, STUCK_S, Finding, Watch, has_ended
from tests.fuzz.world import HOST, Node, World

CHUNK = 60  # frames of one write
CLOSERS_AT_ONCE = 8
HTTP_AT_ONCE = 6  # connections
QUIET_S = 0.3  # a server that has said nothing for so long waits for more
LAST_REQUEST = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attack:
    """All connections of a run. `sent`: frames by port that a server has read."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.sent: Counter[str] = Counter()
        self.world = world
        self.watch = watch
        self._lines: dict[tuple[str, str], Streams] = {}

    def targets(self, port: str) -> list[Node]:
        return [self.world.nodes[name] for name in TARGETS[port] if name in self.world.nodes]

    async def step(self, port: str, step: Step) -> None:
        """To all of its targets. Raises Finding if something is wrong by then."""
        targets = self.targets(port)
        if step.what == "openings":
            await asyncio.gather(*(self._openings(port, node, step.frames) for node in targets))
        elif port in ("http", "nameshttp"):
            await asyncio.gather(*(self._requests(port, node, step.frames) for node in targets))
        elif port == "raft":
            await asyncio.gather(*(self._messages(port, node, step.frames) for node in targets))
        else:
            await self._frames(port, targets, step.frames)
        self.watch.check()

    async def close(self) -> None:
        for _, writer in self._lines.values():
            writer.close()
        self._lines.clear()

    async def dial(self, port: str, node: Node, **options: Any) -> Streams:
        """A connection, TLS if the port is; a Raft port's has been greeted if this is its group."""
        context = None
        if port == "tls":
            context = ssl.create_default_context(cafile=self.world.ca)
        async with asyncio.timeout(STUCK_S):
            reader, writer = await asyncio.open_connection(
                HOST, node.ports[SPOKEN[port]], ssl=context, **options
            )
            try:
                if port in ("raft", "ha"):
                    await greet(self.world, node, port, (reader, writer))
            except BaseException:
                writer.close()
                raise
        return reader, writer

    # ---- remoting

    async def _frames(self, port: str, targets: list[Node], frames: Sequence[bytes]) -> None:
        """The frames that leave a connection open to all, each of the others to one of them."""
        ordinary = (b"", _send() if port != "names" else b"")
        keepers: list[bytes] = []
        closers: list[bytes] = []
        for frame in frames:
            (keepers if survives(frame) else closers).append(frame)
        await asyncio.gather(*(self._on_lines(port, node, keepers) for node in targets))
        for at in range(0, len(closers), CLOSERS_AT_ONCE):
            some = enumerate(closers[at : at + CLOSERS_AT_ONCE], at)
            await asyncio.gather(
                *(
                    self._alone(port, targets[n % len(targets)], frame, behind=ordinary[n % 2])
                    for n, frame in some
                )
            )

    async def _on_lines(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        for at in range(0, len(frames), CHUNK):
            await self._together(port, node, frames[at : at + CHUNK])

    async def _together(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        line = self._lines.get((port, node.name))
        try:
            if line is None:
                line = self._lines[port, node.name] = await self.dial(port, node)
            reader, writer = line
            writer.write(b"".join(frames) + PING)
            await self._until_marked(reader)
            self.sent[port] += len(frames)
        except OSError:  # closed in between: how many were read is not known
            self.sent[port] += 1
            self._lines.pop((port, node.name), None)
            if line is not None:
                line[1].close()

    async def _until_marked(self, reader: asyncio.StreamReader) -> None:
        """Read and forget until the last request's answer comes. Raises OSError."""
        tail = b""
        async with asyncio.timeout(STUCK_S):
            while True:
                data = await reader.read(1 << 18)
                if not data:
                    raise ConnectionResetError
                tail += data
                if MARKED in tail:
                    return
                tail = tail[-len(MARKED) :]

    async def _alone(self, port: str, node: Node, frame: bytes, behind: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            reader, writer = await self.dial(port, node)
            try:
                writer.write(behind + frame)
                # Behind a whole frame the client stays: what is answered late finds it there.
                if writer.can_write_eof() and not is_whole(frame):
                    writer.write_eof()
                await self._drained(reader)
            finally:
                writer.close()
        self.sent[port] += 1

    async def _drained(self, reader: asyncio.StreamReader) -> bool:
        """Read and forget until the server closes; False: it only has nothing more to say."""
        try:
            while True:
                async with asyncio.timeout(QUIET_S):
                    if not await reader.read(1 << 18):
                        return True
        except TimeoutError:
            return False
        except OSError:
            return True

    # ---- the others

    async def _openings(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        """Each on a connection of its own, in the clear."""
        plain = "broker" if port == "tls" else port
        for at in range(0, len(frames), CLOSERS_AT_ONCE):
            some = frames[at : at + CLOSERS_AT_ONCE]
            await asyncio.gather(*(self._alone(plain, node, frame) for frame in some))
        if plain != port:
            self.sent[port] += len(frames)
            self.sent[plain] -= len(frames)

    async def _messages(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        """Those that can be read on one connection, each of the others at the end of one."""
        readable = [frame for frame in frames if is_readable(frame)]
        for frame in (b"".join(readable), *(f for f in frames if not is_readable(f))):
            with contextlib.suppress(OSError, NotWelcome):
                reader, writer = await self.dial(port, node)
                try:
                    writer.write(frame)
                    writer.write_eof()
                    await self._drained(reader)
                finally:
                    writer.close()
                self.sent[port] += 1
        self.sent[port] += max(0, len(readable) - 1)

    async def _requests(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        """On some connections at once, on each one after the other."""
        await asyncio.gather(
            *(self._asked(port, node, frames[at::HTTP_AT_ONCE]) for at in range(HTTP_AT_ONCE))
        )

    async def _asked(self, port: str, node: Node, frames: Sequence[bytes]) -> None:
        line: Streams | None = None
        for frame in frames:
            self.sent[port] += 1
            try:
                if line is None:
                    line = await self.dial(port, node)
                line[1].write(frame)
                async with asyncio.timeout(QUIET_S):
                    if await line[0].read(1 << 18):
                        continue
            except (OSError, TimeoutError):
                pass  # it waits for more of this, or has closed
            if line is not None:
                line[1].close()
                line = None
        if line is not None:
            line[1].close()

    async def well(self, node: Node) -> None:
        """An ordinary request on a new connection is answered. Raises Finding."""
        try:
            reader, writer = await self.dial("broker", node)
            writer.write(PING)
            await self._until_marked(reader)
            writer.close()
        except (OSError, TimeoutError) as error:
            if await asyncio.to_thread(has_ended, node):
                raise self.watch.died(node) from None
            self.watch.check()
            raise Finding(
                "refused", node.name, f"a new connection got no answer: {error}"
            ) from None


@cache
def _send() -> bytes:
    return next(sample.data for sample in load()["broker"] if sample.kind == "request 310 0")


def is_whole(data: bytes) -> bool:
    """Return whether these bytes are exactly one frame, with any content."""
    reader = FrameReader()
    return len(reader.split(data)) == 1 and reader.error is None and not reader.buffered_bytes


def survives(data: bytes) -> bool:
    """Return whether a server keeps the connection open after these bytes."""
    if not is_whole(data):
        return False
    try:
        decode_command(FrameReader().split(data)[0])
    except (RemotingProtocolError, RecursionError):
        return False
    except Exception:  # what the decoder should not raise: let the server show what it does then
        return False
    return True
