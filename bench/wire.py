"""The thinnest honest load generator: real frames on one connection, a fixed number in flight.

It measures the cluster rather than a client: each request has its own UNIQ_KEY, time stamp and
opaque and is a SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320) as the Java client sends it;
each response is parsed for code and opaque. Latency runs from the request's encoding to its
response's arrival.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from array import array
from dataclasses import dataclass
from typing import cast

_LENGTHS = struct.Struct(">ii")
_RESPONSE = re.compile(rb'"code":(-?\d+).*?"opaque":(\d+)', re.S)
_PROPERTIES = b"UNIQ_KEY\\u0001%016X%016X\\u0002WAIT\\u0001true\\u0002"  # as JSON writes them
_ITEM = struct.Struct(">iiiii")


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of one run: `messages` acknowledged in `seconds`; latencies in ns, one a
    request."""

    messages: int
    seconds: float
    latencies_ns: array[int]
    refused: int

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6


class _Load(asyncio.Protocol):
    """Keeps `in_flight` requests on the wire until `count` are answered."""

    def __init__(self, topic: str, queues: int, body: bytes, batch: int) -> None:
        self._queues = queues
        self._batch = batch
        code = 320 if batch else 310
        flag_m = "true" if batch else "false"
        self._header = (  # a template: queue, born time, properties, opaque are filled in
            f'{{"code":{code},"extFields":{{"a":"bench","b":"{topic}","c":"TBW102","d":"4",'
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

    def start(self, count: int, in_flight: int) -> None:
        self._count = count
        self._send(min(in_flight, count))

    def _send(self, number: int) -> None:
        out = []
        now_ms = time.time_ns() // 1_000_000
        payload = self._items or self._body
        for opaque in range(self._sent, self._sent + number):
            unique = b"" if self._batch else _PROPERTIES % (self._salt, opaque)
            header = self._header % (opaque % self._queues, now_ms, unique, opaque)
            out.append(_LENGTHS.pack(4 + len(header) + len(payload), len(header)))
            out.append(header)
            out.append(payload)
            self._starts.append(time.perf_counter_ns())
        self._sent += number
        self._transport.write(b"".join(out))

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
            found = _RESPONSE.search(data, at + 8, at + length)
            assert found is not None, data[at : at + length]
            if found[1] != b"0":
                self.refused += 1
                self.first_refusal = self.first_refusal or data[at : at + length]
            self.latencies.append(now - self._starts[int(found[2])])
            answered += 1
            at += length
        self._buffer = data[at:]
        self._answered += answered
        if self._answered >= self._count:
            if not self.done.done():
                self.done.set_result(None)
        elif answered:
            self._send(min(answered, self._count - self._sent))


async def run_load(
    address: str,
    topic: str,
    *,
    queues: int,
    body: bytes,
    count: int,
    in_flight: int,
    batch: int = 0,
) -> LoadResult:
    """Send `count` requests (each of `batch` messages, or one when 0) and wait for all answers."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, load = await loop.create_connection(
        lambda: _Load(topic, queues, body, batch), host, int(port)
    )
    try:
        begun = time.perf_counter()
        load.start(count, in_flight)
        await load.done
        seconds = time.perf_counter() - begun
    finally:
        transport.close()
    if load.refused:
        raise RuntimeError(f"{load.refused} sends refused; the first: {load.first_refusal!r}")
    return LoadResult(count * max(1, batch), seconds, load.latencies, load.refused)
