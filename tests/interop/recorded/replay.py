"""Feeds a recorded session to a broker, step by step, and collects what the broker sends.

The broker is alone in its group and its clocks stand still, but for `clock` steps. So what it sends
depends on the steps alone, if each finds the work of the one before it done. That is seen from
outside: a request that no broker knows is answered in its turn, so everything before it on that
connection has been taken up; and the runtime information (GET_BROKER_RUNTIME_INFO) says whether
sends wait and whether all of the log is applied. Then the periodic work has a round, and if that
wrote something to the log, another one.

Answers of one step are compared as a set: work that the clock starts is done in several turns, and
clients tell answers apart by their opaque.

Clients connect from an address of their own, with ports that their connections' numbers decide:
records hold the address of who sent them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import uuid
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

import orjson
import pytest

from raftmq.broker import scheduler as housekeeping
from raftmq.broker.broker import open_broker
from raftmq.broker.consume import offset_commits
from raftmq.remoting.codec import FrameReader, decode_command, encode_command, join_frame
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RESPONSE_FLAG, RemotingCommand
from tests.broker.cluster import Group
from tests.interop.recorded.session import Answer, Session, Step
from tests.steadydisk import SteadyDisk

HOST = "127.0.0.2"  # Linux: all of 127/8 is this machine
PORT_BASE = 20_000  # below the ports that systems choose
NO_SUCH_REQUEST = 31_999
FIRST_OPAQUE = 0x7F000000  # of our own requests; the clients' never come there
ROUND_S = 0.003  # the broker's periodic work has a turn in it: it asks for one each TICK_MS
TICK_MS = 1
WAIT_S = 60.0  # a bound against hanging
LINGERING_S = 0.1  # for answers of which it is not known whether they come
ELECTION_STEP_MS = 20  # a replica takes no more of a sudden for time that has passed
BEGINS_MS = 200_000  # the monotonic clock at the session's beginning: all periodic work was due
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: the port is free at once
SETTINGS = {
    "electionTimeoutMinMs": "150",
    "electionTimeoutMaxMs": "300",
    "enablePropertyFilter": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
}


class Clock:
    """The wall clock and the monotonic one; both stand still while nobody moves them."""

    def __init__(self, wall_ms: int) -> None:
        self._began_ms = wall_ms
        self.passed_ms = 0  # of the session
        self.before_ms = 0  # of the monotonic clock, before the session began

    def wall_ms(self) -> int:
        return self._began_ms + self.passed_ms

    def monotonic_ms(self) -> int:
        return self.before_ms + self.passed_ms


@asynccontextmanager
async def broker_with(root: Path, clock: Clock, port: int):
    """A broker below `root`, alone in its group, that says it is at 127.0.0.1:`port`."""
    group = Group(root, 1, brokerIP1="127.0.0.1", advertisedPort=port, **SETTINGS)
    name = group.names[0]
    with patch.object(offset_commits, "INTERVAL_MS", 100):
        broker = await open_broker(
            group.config(name),
            SteadyDisk(str(root / name)),
            replication_socket=group.listener(name),
            wall_ms=clock.wall_ms,
            clock_ms=clock.monotonic_ms,
        )
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
        group.let_go()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Periodic work is looked at more often, so that a step need not wait long for it. Ids that a
    broker gives to messages without one (Node's) are numbered instead of random."""
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(housekeeping, "TICK_MS", TICK_MS)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
        yield


class Link:
    """One of the client's connections; `arrived` has the frames that nobody took yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived: list[bytes] = []
        self._pongs: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaques = itertools.count(FIRST_OPAQUE)

    async def open(self, port: int) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        client.bind((HOST, PORT_BASE + self.number))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        reader, self._writer = await asyncio.open_connection(sock=client)
        self._reading = asyncio.create_task(self._read(reader))

    def write(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def ask(self, code: int) -> RemotingCommand:
        """Send a request of our own, which is no part of the session; return its answer."""
        command = RemotingCommand.request(code)
        command.opaque = next(self._opaques)
        pong = self._pongs[command.opaque] = asyncio.get_running_loop().create_future()
        self.write(encode_command(command))
        return await asyncio.wait_for(pong, WAIT_S)

    def take(self) -> list[bytes]:
        taken, self.arrived = self.arrived, []
        return taken

    async def close(self) -> None:
        """Return when the broker has seen the end, and closed its side."""
        self._writer.write_eof()
        await asyncio.wait_for(self._reading, WAIT_S)
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for raw in frames.split(data):
                command = decode_command(raw)
                answered = command.flag & RESPONSE_FLAG
                pong = self._pongs.pop(command.opaque, None) if answered else None
                if pong is not None:
                    pong.set_result(command)
                else:
                    kind, header, body = raw
                    self.arrived.append(join_frame(header, body, kind))


class Replay:
    """One session at one broker, which listens at `port`: `perform` each step in order."""

    def __init__(self, clock: Clock, port: int) -> None:
        self._clock = clock
        self._port = port
        self._control = Link(0)
        self._links: dict[int, Link] = {}

    async def begin(self) -> None:
        """Return when the broker leads and has nothing left to do."""
        await self._control.open(self._port)
        async with asyncio.timeout(WAIT_S):
            while (await self._info())["raftLeaderReady"] != "true":
                self._clock.before_ms += ELECTION_STEP_MS
                await asyncio.sleep(ROUND_S)
        self._clock.before_ms = BEGINS_MS
        await self._settle()

    async def perform(self, step: Step, surely: bool = False) -> list[Answer]:
        """Return what the broker sent, once that is as much as `step.answers`; `surely`: it is not
        known how much that will be, so wait longer."""
        if step.do == "clock":
            self._clock.passed_ms = step.at_ms
        elif step.do == "open":
            link = self._links[step.of] = Link(step.of)
            await link.open(self._port)
        elif step.do == "frame":
            self._links[step.of].write(step.frame)
            await self._links[step.of].ask(NO_SUCH_REQUEST)
        else:
            await self._links.pop(step.of).close()
        await self._settle()
        if surely:
            await asyncio.sleep(LINGERING_S)
            await self._settle()
        else:
            await self._wait_for(step.answers)
        return sorted((n, frame) for n, link in self._links.items() for frame in link.take())

    async def end(self) -> None:
        for link in (*self._links.values(), self._control):
            await link.close()

    async def _wait_for(self, answers: Iterable[Answer]) -> None:
        """Until as many frames are there; or they do not come, and the caller sees which."""
        expected = [of for of, _ in answers]
        for _ in range(int(WAIT_S / ROUND_S)):
            if all(len(link.arrived) >= expected.count(n) for n, link in self._links.items()):
                return
            await asyncio.sleep(ROUND_S)

    async def _info(self) -> dict[str, str]:
        answer = await self._control.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table: dict[str, str] = orjson.loads(answer.body)["table"]
        return table

    async def _settle(self) -> None:
        """Return when everything is applied, and a round of periodic work added nothing: the first
        look wakes it, and it has its turn before the second one, however slow this machine is."""
        before = ""
        async with asyncio.timeout(WAIT_S):
            while True:
                await asyncio.sleep(ROUND_S)
                info = await self._info()
                last = info["raftLastIndex"]
                idle = info["sendThreadPoolQueueSize"] == "0" and info["raftAppliedIndex"] == last
                if idle and last == before:
                    return
                before = last if idle else ""


@asynccontextmanager
async def replaying(session: Session, root: Path):
    """A Replay that has begun, at a new broker below `root`."""
    clock = Clock(session.wall_ms)
    with in_this_process():
        async with broker_with(root, clock, session.port) as broker:
            replay = Replay(clock, broker.port)
            await replay.begin()
            yield replay
            await replay.end()


async def first_difference(session: Session, root: Path) -> str:
    """Replay all of it; return where a new broker below `root` answers otherwise, "" if nowhere."""
    async with replaying(session, root) as run:
        for number, step in enumerate(session.steps):
            answers = await run.perform(step)
            if tuple(answers) != step.answers:
                return f"step {number}, {shown([(step.of, step.frame)])}:\n" + "\n".join(
                    ["was answered", *shown(step.answers), "and is now", *shown(answers)]
                )
    return ""


def shown(answers: Iterable[Answer]) -> list[str]:
    return [f"  connection {of}: {frame!r}" for of, frame in answers]
