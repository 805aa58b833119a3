"""A process that generates more load than a broker can handle, for `bench.overload`.

Its argument is a line of JSON (`Plan`), its output the result as JSON (`Flood.report`). All frames
are encoded ahead, so that a send only costs a copy; their opaques and UNIQ_KEYs repeat. The
generator is an open loop and never waits for responses. Frames that TCP does not accept (more than
UNSENT_BYTES_MAX wait in this process) are counted as *held back* and not queued. A sender can
notice such back pressure, and this process must not measure its own memory.

    nothing       no load
    sends         frames at a rate, spread evenly over the connections; responses counted by result
    deaf          the same with pulls of 32 messages, without ever reading a response
    slow senders  each connection sends a large frame at full speed but for its last bytes, and
                  those at a byte per second
    one-way       each connection sends large one-way frames at full speed
"""

from __future__ import annotations

import asyncio
import re
import resource
import struct
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import cast

import orjson
import uvloop

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader

NOTHING, SENDS, DEAF, SLOW, ONE_WAY = "nothing", "sends", "deaf", "slow senders", "one-way"
RING = 512  # frames encoded ahead, for all connections
TICK_S = 0.005
UNSENT_BYTES_MAX = 1 << 20
SETTLE_S = 4.0  # after the last frame; every send is decided after 3 s
CONNECTING = 64  # at a time
_LENGTHS = struct.Struct(">ii")
_CODE = re.compile(rb'"code":(-?\d+)')
_TAG = re.compile(rb'"remark":"\[([A-Z_]+)\]')
_PROPERTIES = b"UNIQ_KEY\\u0001%032X\\u0002WAIT\\u0001true\\u0002"  # as JSON writes them


@dataclass(frozen=True, slots=True)
class Plan:
    """The load to generate. `rate` counts frames per second in all (0 without a rate). `settle_s`
    is the time for responses after the last frame."""

    kind: str
    address: str
    topic: str
    seconds: float
    connections: int
    rate: float
    body_bytes: int
    settle_s: float = SETTLE_S


@dataclass(slots=True)
class Report:
    """The load's figures. `due` counts an open loop's frames, `sent` those given to TCP, and
    `held_back` those that TCP had no room for. `outcomes` counts responses by "stored" or the tag
    of the error."""

    connected: int = 0
    refused: int = 0
    due: int = 0
    sent: int = 0
    held_back: int = 0
    bytes_sent: int = 0
    closed_by_broker: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)


def send_frame(topic: str, opaque: int, body: bytes, queue: int, one_way: bool) -> bytes:
    """Return a SEND_MESSAGE_V2 frame as the Java client sends it."""
    header = (
        f'{{"code":310,"extFields":{{"a":"overload","b":"{topic}","c":"TBW102","d":"4",'
        f'"e":"{queue}","f":"0","g":"{time.time_ns() // 1_000_000}","h":"0","i":"'
    ).encode()
    header += _PROPERTIES % (time.time_ns() << 20 | opaque)
    header += (
        f'","j":"0","k":"false","m":"false"}},"flag":{2 if one_way else 0},"language":"JAVA",'
        f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":479}}'
    ).encode()
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def pull_frame(topic: str, opaque: int, queue: int) -> bytes:
    """Return a PULL_MESSAGE frame from a queue's beginning, which is answered at once."""
    header = PullHeader("overload", topic, queue, 0, 32, 4, 0, 0, "*", 0)
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
    command.opaque = opaque
    return encode_command(command)


class Link(asyncio.Protocol):
    """A connection that counts responses."""

    def __init__(self, outcomes: Counter[str]) -> None:
        self._outcomes = outcomes
        self._rest = b""
        self.transport: asyncio.Transport | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True

    @property
    def takes(self) -> bool:
        """True if TCP accepts more now."""
        transport = self.transport
        return (
            transport is not None
            and not self.closed
            and transport.get_write_buffer_size() < UNSENT_BYTES_MAX
        )

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while end - at >= 4:
            length = int.from_bytes(data[at : at + 4], "big") + 4
            if end - at < length:
                break
            self._outcomes[outcome_of(data, at, at + length)] += 1
            at += length
        self._rest = data[at:]


def outcome_of(data: bytes, at: int, end: int) -> str:
    """Return the kind of a response, in a word."""
    code = _CODE.search(data, at + 8, end)
    if code is None:
        return "no answer of a broker"
    if code[1] == b"0":
        return "stored"
    tag = _TAG.search(data, at + 8, end)
    return tag[1].decode() if tag is not None else f"code {code[1].decode()}"


class Flood:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcomes: Counter[str] = Counter()
        self._links: list[Link] = []
        self.report = Report()
        body = bytes(plan.body_bytes)
        count = RING if plan.kind in (SENDS, DEAF) else 1
        one_way = plan.kind == ONE_WAY
        if plan.kind == DEAF:
            self._ring = [pull_frame(plan.topic, n, n % 4) for n in range(count)]
        else:
            self._ring = [send_frame(plan.topic, n, body, n % 4, one_way) for n in range(count)]

    async def run(self) -> None:
        await self._connect()
        print("ready", flush=True)
        started = time.monotonic()
        if self._plan.kind in (SENDS, DEAF):
            await self._at_a_rate(started)
        elif self._plan.kind == SLOW:
            await self._slowly(started)
        elif self._plan.kind == NOTHING:
            await asyncio.sleep(self._plan.seconds)
        else:
            await self._large(started)
        self.report.seconds = time.monotonic() - started
        print("ended", flush=True)
        if self._plan.kind == SENDS:
            await asyncio.sleep(self._plan.settle_s)
        self.report.closed_by_broker = sum(link.closed for link in self._links)
        self.report.outcomes = dict(self._outcomes)
        for link in self._links:
            if link.transport is not None:
                link.transport.abort()

    async def _connect(self) -> None:
        host, _, port = self._plan.address.rpartition(":")
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(CONNECTING)

        async def connect() -> None:
            link = Link(self._outcomes)
            async with places:
                try:
                    await loop.create_connection(lambda: link, host, int(port))
                except OSError:
                    self.report.refused += 1
                    return
            if self._plan.kind == DEAF and link.transport is not None:
                link.transport.pause_reading()
            self._links.append(link)

        await asyncio.gather(*(connect() for _ in range(self._plan.connections)))
        self.report.connected = len(self._links)

    async def _at_a_rate(self, begun: float) -> None:
        report, links, ring = self.report, self._links, self._ring
        rate, end = self._plan.rate, begun + self._plan.seconds
        turn = 0
        # Few frames at a time to many connections, many to few, because a write has its cost.
        share = max(1, min(RING // 2, int(rate * TICK_S / max(1, len(links)))))
        while (now := time.monotonic()) < end:
            owed = int((now - begun) * rate) - report.due
            report.due += owed
            while owed > 0:
                count = min(owed, share)
                owed -= count
                link = links[turn % len(links)]
                turn += 1
                if not link.takes:
                    report.held_back += count
                    continue
                first = turn * share % (RING - count)
                data = b"".join(ring[first : first + count])
                link.write(data)
                report.sent += count
                report.bytes_sent += len(data)
            await asyncio.sleep(TICK_S)

    async def _slowly(self, begun: float) -> None:
        frame = self._ring[0]
        end = begun + self._plan.seconds
        head, tail = frame[: -int(self._plan.seconds) - 8], frame[-int(self._plan.seconds) - 8 :]
        for link in self._links:
            if not link.closed:
                link.write(head)
                self.report.sent += 1
                self.report.bytes_sent += len(head)
        second = 0
        while time.monotonic() < end:
            await asyncio.sleep(1)
            for link in self._links:
                if not link.closed and link.takes:
                    link.write(tail[second : second + 1])
            second += 1

    async def _large(self, begun: float) -> None:
        frame = self._ring[0]
        while time.monotonic() < begun + self._plan.seconds:
            for link in self._links:
                if link.takes:
                    link.write(frame)
                    self.report.sent += 1
                    self.report.bytes_sent += len(frame)
            await asyncio.sleep(TICK_S)


def main() -> None:
    """Carry out the plan in the first argument."""
    plan = Plan(**orjson.loads(sys.argv[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def run() -> Report:
        flood = Flood(plan)
        await flood.run()
        return flood.report

    print(orjson.dumps(asdict(uvloop.run(run()))).decode(), flush=True)


if __name__ == "__main__":
    main()
