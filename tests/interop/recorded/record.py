"""`python -m tests.interop.recorded.record [CLIENT ...]`: record a session of each foreign client.

A client works with a broker of this process through a proxy, which notes every frame. Then its part
of the session is replayed (replay.py) to a broker whose clocks stand still, and that broker's
answers are what is kept. `--again` replays the sessions that there are and replaces their answers:
for a change that clients are meant to see, and for nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raftmq.broker.broker import open_broker
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.codec import FrameReader, decode_command, encode_command, join_frame
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.store.record import MAGIC_V1, MAGIC_V2, decode_record, walk_records
from tests.broker.cluster import Group
from tests.interop.driver import Driver
from tests.interop.recorded.replay import SETTINGS, replaying
from tests.interop.recorded.session import CLIENTS, Answer, Session, Step, path_of
from tests.interop.recorded.story import tell
from tests.steadydisk import SteadyDisk

VIP_PORT_BELOW = 2  # Java's client of 4.3 sends there
LATE_MS = 150  # an answer that took so long waited for the clock, or for a message
BEHIND_MS = 100  # of the clock: what was due by then is done
TICK_MS = 1000  # the replayed clock goes on in steps that are no shorter, but for late answers
RECORD_MAGICS = {magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)}
# What names a place in the CommitLog, by the request's code.
PLACES = {
    RequestCode.END_TRANSACTION: "commitLogOffset",
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset",
    RequestCode.VIEW_MESSAGE_BY_ID: "offset",
}


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the proxy saw: `do` as a step's, or "sent" for a frame of the broker."""

    at_ms: int
    do: str
    of: int
    frame: bytes = b""


# ---- recording


class Proxy:
    """Carries all connections to `target_port` and notes what they carry."""

    def __init__(self, target_port: int) -> None:
        self.noted: list[Noted] = []
        self._target_port = target_port
        self._began_s = time.monotonic()
        self._opened = 0

    def now_ms(self) -> int:
        return int((time.monotonic() - self._began_s) * 1000)

    def _note(self, do: str, of: int, frame: bytes = b"") -> None:
        self.noted.append(Noted(self.now_ms(), do, of, frame))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened += 1
        number = self._opened
        self._note("open", number)
        back, forth = await asyncio.open_connection("127.0.0.1", self._target_port)
        answers = asyncio.create_task(self._pump(number, "sent", back, writer))
        try:
            await self._pump(number, "frame", reader, forth)
        except OSError:
            pass  # the client reset it
        self._note("close", number)
        forth.close()
        await answers
        writer.close()

    async def _pump(
        self, number: int, do: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for kind, header, body in frames.split(data):
                self._note(do, number, join_frame(header, body, kind))
            writer.write(data)


@asynccontextmanager
async def recording_broker(root: Path) -> AsyncIterator[tuple[Proxy, int, str]]:
    """A broker behind a proxy: the proxy, its port, the name server's address."""
    held = HeldPorts("127.0.0.1")
    (port,) = held.choose(1, random.Random())
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as namesrv:
        where = {"brokerIP1": "127.0.0.1", "advertisedPort": port, "namesrvAddr": namesrv.address}
        group = Group(root, 1, **where, **SETTINGS)
        name = group.names[0]
        disk = SteadyDisk(str(root / name))
        broker = await open_broker(
            group.config(name), disk, replication_socket=group.listener(name)
        )
        await broker.start()
        proxy = Proxy(broker.port)
        listeners = [
            await asyncio.start_server(proxy.carry, "127.0.0.1", each, reuse_address=True)
            for each in (port, port - VIP_PORT_BELOW)
        ]
        try:
            yield proxy, port, namesrv.address
        finally:
            for listener in listeners:
                listener.close()
            await broker.stop()
            group.let_go()
            held.close()


async def record(client: str, root: Path) -> tuple[Session, list[Noted]]:
    """Return what the client did, without steps yet, and what the proxy saw."""
    async with recording_broker(root / "recorded") as (proxy, port, namesrv):
        wall_ms = time.time_ns() // 1_000_000 - proxy.now_ms()
        driver = Driver(client, root)
        try:
            await asyncio.to_thread(tell, driver, namesrv)
        finally:
            await asyncio.to_thread(driver.close)
        await asyncio.sleep(1)  # for the ends of its connections
        return Session(client, wall_ms, port), list(proxy.noted)


# ---- giving the recording another broker's answers


def steps(noted: Sequence[Noted]) -> Iterator[Step]:
    """The client's part, and the times at which the clock has to have gone on."""
    clock_ms = 0
    requested: dict[tuple[int, int], int] = {}  # connection and opaque → when

    def is_late(seen: Noted) -> bool:
        command = decoded(seen.frame)
        at_ms = requested.get((seen.of, command.opaque)) if command.is_response else None
        return at_ms is None or seen.at_ms > at_ms + LATE_MS

    for seen in noted:
        if seen.do == "frame":
            command = decoded(seen.frame)
            if not command.is_response:
                requested[seen.of, command.opaque] = seen.at_ms
        if seen.do == "sent":
            target_ms = seen.at_ms + BEHIND_MS if is_late(seen) else 0
        else:
            target_ms = seen.at_ms if seen.at_ms >= clock_ms + TICK_MS else 0
        if target_ms > clock_ms:
            clock_ms = target_ms
            yield Step("clock", at_ms=clock_ms)
        if seen.do != "sent":
            yield Step(seen.do, seen.of, seen.frame)


def decoded(frame: bytes) -> RemotingCommand:
    reader = FrameReader()
    (raw,) = reader.split(frame)
    return decode_command(raw)


class Translation:
    """From places and opaques of the recording broker to those of the one that is asked now."""

    def __init__(self, noted: Sequence[Noted]) -> None:
        self._answers: dict[tuple[int, int], RemotingCommand] = {}
        self._requests: dict[tuple[int, int], list[RemotingCommand]] = {}  # of the broker
        self._places: dict[int, int] = {}
        self._opaques: dict[tuple[int, int], int] = {}
        for seen in noted:
            if seen.do == "sent":
                command = decoded(seen.frame)
                if command.is_response:
                    self._answers[seen.of, command.opaque] = command
                else:
                    self._requests.setdefault((seen.of, command.code), []).append(command)

    def learn(self, answers: Sequence[Answer]) -> None:
        """From what is the same in both, but for places and opaques."""
        for of, frame in answers:
            ours = decoded(frame)
            if ours.is_response:
                theirs = self._answers.get((of, ours.opaque))
            else:
                waiting = self._requests.get((of, ours.code))
                theirs = waiting.pop(0) if waiting else None
                if theirs is not None:
                    self._opaques[of, theirs.opaque] = ours.opaque
            if theirs is not None:
                result = places(ours)
                for key, position in places(theirs).items():
                    if key in result:
                        self._places[position] = result[key]

    def translated(self, step: Step) -> Step:
        if step.do != "frame":
            return step
        command = decoded(step.frame)
        if command.is_response:
            opaque = self._opaques.get((step.of, command.opaque))
            return step if opaque is None else changed(step, opaque=opaque)
        field = PLACES.get(RequestCode(command.code)) if known(command.code) else None
        if field is None or command.ext is None:
            return step
        position = self._places.get(int(command.ext[field]))
        if position is None:
            print(f"  a place that nobody was told: {command}", flush=True)
            return step
        return changed(step, ext={**command.ext, field: str(position)})


def known(code: int) -> bool:
    return code in set(RequestCode)


def changed(step: Step, **fields: Any) -> Step:
    command = decoded(step.frame)
    for name, value in fields.items():
        setattr(command, name, value)
    return replace(step, frame=encode_command(command))


def places(command: RemotingCommand) -> dict[object, int]:
    """Places in the CommitLog that an answer or a broker's request names, by what they are of."""
    result: dict[object, int] = {}
    ext = command.ext or {}
    for number, one in enumerate(filter(None, ext.get("msgId", "").split(","))):
        result["msgId", number] = int(one[-16:], 16)
    if "commitLogOffset" in ext:
        result["commitLogOffset"] = int(ext["commitLogOffset"])
    if command.body[4:8] in RECORD_MAGICS:
        for at, _ in walk_records(command.body):
            record = decode_record(command.body, at)
            key = record.topic, record.queue_id, record.queue_offset
            result[key] = record.physical_offset
    return result


async def answered(session: Session, noted: Sequence[Noted], root: Path) -> Session:
    """The session with its steps and the answers of a broker of today."""
    translation = Translation(noted)
    made: list[Step] = []
    async with replaying(session, root) as run:
        for step in steps(noted):
            step = translation.translated(step)
            answers = await run.perform(step, surely=True)
            translation.learn(answers)
            made.append(replace(step, answers=tuple(answers)))
    return replace(session, steps=made)


async def answered_again(session: Session, root: Path) -> Session:
    """The session with the answers of a broker of today."""
    async with replaying(session, root) as run:
        made = [
            replace(step, answers=tuple(await run.perform(step, surely=True)))
            for step in session.steps
        ]
    return replace(session, steps=made)


async def make(client: str, again: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if again:
            session = await answered_again(Session.load(path_of(client)), root)
        else:
            session, noted = await record(client, root)
            session = await answered(session, noted, root / "answered")
    path_of(client).parent.mkdir(exist_ok=True)
    session.save(path_of(client))
    frames = sum(step.do == "frame" for step in session.steps)
    answers = sum(len(step.answers) for step in session.steps)
    size = path_of(client).stat().st_size
    print(f"{client}: {frames} frames, {answers} answers, {size} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="only new answers")
    parser.add_argument("clients", nargs="*", default=CLIENTS)
    arguments = parser.parse_args()
    for client in arguments.clients:
        asyncio.run(make(client, arguments.again))


if __name__ == "__main__":
    main()
