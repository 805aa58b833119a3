"""Running a scenario on both event loops, with servers on ephemeral ports."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import pytest
import uvloop

from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.server import RemotingServer

Scenario = Callable[..., Coroutine[Any, Any, None]]
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def on_both_loops(scenario: Scenario) -> Callable[..., None]:
    """Run an async test on uvloop and on asyncio's loop; what a loop reports fails the test."""

    @pytest.mark.parametrize("loop_name", LOOPS)
    @functools.wraps(scenario)
    def test(loop_name: str) -> None:
        reports: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reports.append(context))
            async with asyncio.timeout(240):  # a hung test is a failed test, not a speed limit
                await scenario()

        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(watched())
        assert not reports, reports

    del test.__wrapped__  # pytest would look for the scenario's own parameters
    return test


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler], **options: Any
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(handlers, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response_to(request, ext=request.ext or {}, body=request.body)


class RawPeer:
    """A peer that writes bytes and reads frames, with no connection logic of ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()

    @classmethod
    async def connect(cls, address: str, **options: Any) -> RawPeer:
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port), **options))

    async def command(self) -> RemotingCommand | None:
        """The next command; None when the other side has closed."""
        while True:
            frame = self._frames.next_frame()
            if frame is not None:
                return decode_command(frame)
            data = await self.reader.read(65536)
            if not data:
                return None
            self._frames.receive_data(data)

    async def answer(self) -> RemotingCommand:
        """The next command, when the other side does not close first."""
        command = await self.command()
        assert command is not None
        return command

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):  # the other side may have been first
            await self.writer.wait_closed()
