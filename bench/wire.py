"""A thin load generator with real frames on a connection and a fixed number in flight.

It measures the cluster and not a client. Each request has its own UNIQ_KEY, time stamp and opaque
and is a SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320) in the Java client's form; each response
is parsed for code and opaque. Latency counts from the request's encoding to its response's arrival.

`run_paced` sends at a fixed rate instead, whether or not responses arrive (an open loop). A request
that is late by more than the loop's timers are counts from the time when it was due. Its body
begins with that time, so that a consumer on this machine can tell how long the message took.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
import sys
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

_LENGTHS = struct.Struct(">ii")
_RESPONSE = re.compile(rb'"code":(-?\d+).*?"opaque":(\d+)', re.S)
_PROPERTIES = b"UNIQ_KEY\\u0001%016X%016X\\u0002WAIT\\u0001true\\u0002"  # as JSON writes them
_ITEM = struct.Struct(">iiiii")
STAMP = struct.Struct(">q")  # at the start of a paced body: when it was due, perf_counter_ns
TICK_S = 0.001
PACED = sys.maxsize  # the count of a load whose requests follow a clock
TIMER_NS = 2_000_000  # a timer of uvloop is at most this late


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run's result: `messages` acknowledged in `seconds`, a latency in ns per request."""

    messages: int
    seconds: float
    latencies_ns: array[int]

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    def percentile_ms(self, share: float) -> float:
        return self.percentiles_ms(share)[0]

    def percentiles_ms(self, *shares: float) -> list[float]:
        ordered = sorted(self.latencies_ns)
        last = len(ordered) - 1
        return [ordered[min(last, int(len(ordered) * share))] / 1e6 for share in shares]

    @classmethod
    def together(cls, results: Sequence[LoadResult]) -> LoadResult:
        """Return the combined result of concurrent runs."""
        latencies = array("q")
        for result in results:
            latencies.extend(result.latencies_ns)
        return cls(
            sum(result.messages for result in results),
            max(result.seconds for result in results),
            latencies,
        )


class Pace:
    """The due times of messages at `rate` per second for `seconds`, from now on."""

    def __init__(self, rate: float, seconds: float) -> None:
        self._interval_ns = 1e9 / rate
        self._count = max(1, int(rate * seconds))
        self._given = 0
        self._start_ns = time.perf_counter_ns()

    @property
    def ended(self) -> bool:
        return self._given == self._count

    def due(self) -> list[int]:
        """Return the start times, in ns, of the messages that have become due since the last
        call."""
        now_ns = time.perf_counter_ns()
        first = self._given
        self._given = min(self._count, int((now_ns - self._start_ns) / self._interval_ns))
        planned = (self._start_ns + int(n * self._interval_ns) for n in range(first, self._given))
        return [at_ns if now_ns - at_ns > TIMER_NS else now_ns for at_ns in planned]

    async def ticks(self) -> AsyncIterator[list[int]]:
        """Yield `due` at every tick, until all are given."""
        while not self.ended:
            yield self.due()
            await asyncio.sleep(TICK_S)


def stamped(body: bytes, due_ns: int) -> bytes:
    """Return a paced message's body."""
    return STAMP.pack(due_ns) + body[STAMP.size :]


class _Load(asyncio.Protocol):
    """Keeps `in_flight` requests on the wire until `count` are answered. The topics take turns."""

    def __init__(self, topics: Sequence[str], queues: int, body: bytes, batch: int) -> None:
        self._topics = [topic.encode() for topic in topics]
        self._queues = queues
        self._batch = batch
        code = 320 if batch else 310
        flag_m = "true" if batch else "false"
        self._header = (  # a template for topic, queue, born time, properties and opaque
            f'{{"code":{code},"extFields":{{"a":"bench","b":"%b","c":"TBW102","d":"4",'
            f'"e":"%d","f":"0","g":"%d","h":"0","i":"%b","j":"0","k":"false","m":"{flag_m}"}},'
            '"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
        ).encode()
        self._body = body
        self._items = b""
        if batch:
            self._items = b"".join(self._item(body, n) for n in range(batch))
        self._buffer = b""
        self._sent = 0
        self._answered = 0
        self._count = 0
        self.refused = 0
        self.first_refusal = b""
        self._starts: array[int] = array("q")
        self.latencies: array[int] = array("q")
        self._end = math.inf
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._salt = time.time_ns() & 0xFFFFFFFF

    def _item(self, body: bytes, number: int) -> bytes:
        properties = b"UNIQ_KEY\x01FD00%028X\x02WAIT\x01true\x02" % number
        size = 20 + len(body) + 2 + len(properties)
        head = _ITEM.pack(size, 0, 0, 0, len(body))
        return head + body + struct.pack(">h", len(properties)) + properties

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the broker closed the connection"))

    def start(self, count: int, in_flight: int, seconds: float) -> None:
        """Start sending; stop after `seconds` even if `count` is not reached."""
        self._count = count
        self._end = time.perf_counter() + seconds
        self._send(min(in_flight, count))

    async def run_paced(self, pace: Pace) -> None:
        """Send as `pace` says, and return when all is answered."""
        self._count = PACED
        async for due in pace.ticks():
            if due:
                self._send(len(due), due)
            if self.done.done():
                break
        self._count = self._sent
        if self._answered == self._sent and not self.done.done():
            self.done.set_result(None)
        await self.done

    def _send(self, number: int, due: Sequence[int] = ()) -> None:
        out = []
        now_ms = time.time_ns() // 1_000_000
        payload = self._items or self._body
        for index, opaque in enumerate(range(self._sent, self._sent + number)):
            unique = b"" if self._batch else _PROPERTIES % (self._salt, opaque)
            turn, topic = divmod(opaque, len(self._topics))
            queue = turn % self._queues
            header = self._header % (self._topics[topic], queue, now_ms, unique, opaque)
            out.append(_LENGTHS.pack(4 + len(header) + len(payload), len(header)))
            out.append(header)
            if due:
                payload = stamped(self._body, due[index])
            out.append(payload)
            self._starts.append(due[index] if due else time.perf_counter_ns())
        self._sent += number
        self._transport.write(b"".join(out))

    def result(self, seconds: float, batch: int = 0) -> LoadResult:
        """Return the run's result. Raises RuntimeError if sends were refused."""
        if self.refused:
            raise RuntimeError(f"{self.refused} sends refused; the first: {self.first_refusal!r}")
        messages = len(self.latencies) * max(1, batch)
        return LoadResult(messages, seconds, self.latencies)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        at = 0
        end = len(data)
        now = time.perf_counter_ns()
        answered = 0
        while end - at >= 4:
            length = int.from_bytes(data[at : at + 4], "big") + 4
            if end - at < length:
                break
            result = _RESPONSE.search(data, at + 8, at + length)
            assert result is not None, data[at : at + length]
            if result[1] != b"0":
                self.refused += 1
                self.first_refusal = self.first_refusal or data[at : at + length]
            self.latencies.append(now - self._starts[int(result[2])])
            answered += 1
            at += length
        self._buffer = data[at:]
        self._answered += answered
        if now > self._end * 1e9:
            self._count = self._sent
        if self._answered >= self._count:
            if not self.done.done():
                self.done.set_result(None)
        elif answered and self._count != PACED:
            self._send(min(answered, self._count - self._sent))


async def run_load(
    address: str,
    topics: str | Sequence[str],
    *,
    queues: int,
    body: bytes,
    count: int,
    in_flight: int,
    batch: int = 0,
    seconds: float = math.inf,
) -> LoadResult:
    """Send `count` requests (of `batch` messages each, or single messages if 0), but at most for
    `seconds`, and wait for all responses."""
    async with _connected(address, topics, queues, body, batch) as load:
        started = time.perf_counter()
        load.start(count, in_flight, seconds)
        await load.done
        return load.result(time.perf_counter() - started, batch)


async def run_paced(
    address: str, topic: str, *, queues: int, body: bytes, rate: float, seconds: float
) -> LoadResult:
    """Send `rate` requests per second for `seconds`, and wait for all responses."""
    async with _connected(address, topic, queues, body) as load:
        started = time.perf_counter()
        await load.run_paced(Pace(rate, seconds))
        return load.result(time.perf_counter() - started)


@asynccontextmanager
async def _connected(
    address: str, topics: str | Sequence[str], queues: int, body: bytes, batch: int = 0
) -> AsyncIterator[_Load]:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, load = await loop.create_connection(
        lambda: _Load([topics] if isinstance(topics, str) else topics, queues, body, batch),
        *(host, int(port)),
    )
    try:
        yield load
    finally:
        transport.close()
