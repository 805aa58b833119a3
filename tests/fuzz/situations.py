"""Deeds that need more than frames: connections in numbers, silence, slowness, sizes.

Each is done to one node while nothing else is sent to it, so that what it costs in memory and CPU
time can be told. `BOUNDS` has what it may cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from raftmq.remoting.codes import RequestCode
from tests.fuzz.attack import LAST_REQUEST, Attack
from tests.fuzz.frames import join
from tests.fuzz.plan import Step
from tests.fuzz.watch import PING, Finding
from tests.fuzz.world import GROUPS, Node

MIB = 1 << 20
# What the node's memory may grow by at its highest, and what may stay when it is over.
PEAK_BYTES_MAX = {"bomb": 64 * MIB, "claim": 48 * MIB}
PEAK_BYTES_MAX_ELSE = 192 * MIB
KEPT_BYTES_MAX = 96 * MIB
SETTLE_S = 30.0  # for memory to be given back, connections to be ended
# CPU time of a frame that is no good: that of so many requests, beside that of bytes alone.
CPU_REQUESTS = 2_000
SILENT = 600  # more than any server's limit on silent connections
UNFINISHED = (60, 14 * MIB)
CHURN = 300


async def perform(attack: Attack, port: str, step: Step) -> None:
    """One situation at one of the port's targets. Raises Finding."""
    rng = random.Random(step.seed)
    node = rng.choice(attack.targets(port))
    before = node.rss()
    node.forget_peak()
    deed: Callable[[Attack, str, Node, random.Random], Awaitable[int]] = DEEDS[step.what]
    with contextlib.suppress(OSError):  # the server ended what it had enough of
        count = await deed(attack, port, node, rng)
        attack.sent[port] += count
    attack.watch.check()
    await attack.well(node)
    peak = node.peak() - before
    what = f"{step.what} on {port}"
    if peak > PEAK_BYTES_MAX.get(step.what, PEAK_BYTES_MAX_ELSE):
        raise Finding("memory", node.name, f"{what} took {peak / MIB:.0f} MB")
    for _ in range(int(SETTLE_S * 10)):
        kept = node.rss() - before
        if kept <= KEPT_BYTES_MAX:
            return
        await asyncio.sleep(0.1)
    raise Finding("memory", node.name, f"{what} left {kept / MIB:.0f} MB behind")


# ---- connections


async def silent(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """More connections than are allowed, which say nothing; then they go."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(rng.randrange(SILENT, SILENT + 100)):
            await _open(attack, port, node, stack)
        await attack.well(node)
    return SILENT


async def churn(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Connections that come and go, in order and by reset, some in the middle of something."""
    for _ in range(CHURN):
        with contextlib.suppress(OSError):
            _, writer = await attack.dial(_plain(port), node)
            if rng.random() < 0.5:
                writer.write(_some_frame(port)[: rng.randrange(1, 40)])
            if rng.random() < 0.5:
                plain = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
    return CHURN


async def unfinished(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Frames that begin and do not end, as large as they may be, on many connections."""
    count, size = UNFINISHED
    head = struct.pack(">II", size + 1, 100)
    if port in ("http", "nameshttp"):
        head = b"PUT /api/v1/topics/Fuzzed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
        head += b"application/json\r\nContent-Length: %d\r\n\r\n" % (size + 1)
    if port in ("raft", "stranger"):
        head = _large_append(size)
    filler = bytes(256 * 1024)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            opened = await _open(attack, port, node, stack)
            if opened is None:
                continue
            with contextlib.suppress(OSError, TimeoutError):
                opened.write(head)
                for _ in range(size // len(filler) - 1):
                    opened.write(filler)
                    async with asyncio.timeout(2):  # a server that reads no more is right
                        await opened.drain()
        await attack.well(node)
    return count


async def slow(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """A good request, byte by byte, and others in between."""
    reader, writer = await attack.dial(port, node)
    frame = LAST_REQUEST if port in ("http", "nameshttp") else PING
    for at in range(len(frame)):
        writer.write(frame[at : at + 1])
        await asyncio.sleep(0.005)
    async with asyncio.timeout(SETTLE_S):
        if not await reader.read(1):
            raise Finding("refused", node.name, "a slow request got no answer")
    writer.close()
    return 1


async def unread(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Requests with long answers from clients that never read."""
    if port in ("http", "nameshttp"):
        frames = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50
    else:
        code = (
            RequestCode.GET_BROKER_CLUSTER_INFO
            if port == "names"
            else RequestCode.GET_BROKER_CONFIG
        )
        frames = _command(code, {}) * 100
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            opened = await _open(attack, port, node, stack, limit=1)
            if opened is None:
                continue
            opened.transport.pause_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(10):
                    opened.write(frames)
                    async with asyncio.timeout(0.5):
                        await opened.drain()
                    await attack.well(node)
        await attack.well(node)
    return 20


async def oneway(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Sends of the largest size that want no answer, faster than any disk."""
    ext = dict(
        zip("abcdefghi", ("fuzz", "Fuzzed", "TBW102", "4", "0", "0", "1", "0", ""), strict=True)
    )
    frame = _command(RequestCode.SEND_MESSAGE_V2, ext, bytes(4 * MIB - 1_000), flag=2)
    async with contextlib.AsyncExitStack() as stack:
        writers = [await _open(attack, port, node, stack) for _ in range(8)]

        async def pour(writer: asyncio.StreamWriter | None) -> None:
            if writer is None:
                return
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(12):
                    writer.write(frame)
                    async with asyncio.timeout(5):
                        await writer.drain()

        await asyncio.gather(*map(pour, writers))
        await attack.well(node)
    return 8 * 12


# ---- sizes


async def fields(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Headers of very many fields."""
    count = rng.choice((100_000, 1_000_000))
    if port in ("http", "nameshttp"):
        lines = b"".join(b"X-%d: 1\r\n" % n for n in range(count // 10))
        frames = [
            b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lines + b"\r\n",
            b"GET /api/v1/topics?" + b"a=1&" * (count // 10) + b" HTTP/1.1\r\n\r\n",
        ]
    else:
        text = b'{"code":%d,"flag":0,"language":"OTHER","opaque":1,"version":0,"extFields":{%s}}'
        many = b",".join(b'"k%d":"v"' % n for n in range(count))
        key = struct.pack(">H1sI1s", 1, b"k", 1, b"v")
        ext = key * count
        binary = struct.pack(">hbhii", 310, 0, 0, 1, 0) + struct.pack(">II", 0, len(ext)) + ext
        frames = [join(text % (code, many), b"") for code in (310, 4_242)] + [join(binary, b"", 1)]
    return await _cheaply(attack, port, node, frames)


async def nesting(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """JSON that goes deep, wherever JSON is read."""
    depth = rng.choice((900, 3_000, 100_000, 1_000_000))
    deep = rng.choice((b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth,
                       b"[" * depth + b"]" * depth, b'{"a":[' * depth))  # fmt: skip
    if port in ("http", "nameshttp"):
        frames = [
            b"PUT /api/v1/topics/Fuzzed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
            b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(deep), deep)
        ]
        return await _cheaply(attack, port, node, frames)
    frames = [join(b'{"code":310,"flag":0,"opaque":1,"extFields":%s}' % deep, b""), join(deep, b"")]
    codes = (34, 41, 46, 103, 200, 217, 25, 12) if port != "names" else (103, 217, 318, 904)
    ext = {"clientID": "c", "consumerGroup": "fuzz", "topic": "Fuzzed", "brokerName": "fuzzed",
           "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}  # fmt: skip
    for value in (deep, b"[" * 3_000):  # where no field is known, for readers that skip it
        head = b'{"code":310,"flag":0,"opaque":1,"x":%s,"extFields":{}}' % value
        frames.append(join(head, b""))
    frames += [_command(code, ext, deep) for code in codes]
    return await _cheaply(attack, port, node, frames)


async def bomb(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """A little that unpacks to very much."""
    packed = zlib.compress(bytes(rng.choice((60, 250)) * MIB), 9)
    ext = {"brokerName": "fuzzed", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0",
           "compressed": "true", "bodyCrc32": str(zlib.crc32(packed) & 0x7FFFFFFF)}  # fmt: skip
    frames = [_command(103, ext, packed)]
    if port != "names":
        send = {"a": "fuzz", "b": "Fuzzed", "c": "TBW102", "d": "4", "e": "0", "f": "1", "g": "1",
                "h": "0", "i": ""}  # fmt: skip
        frames = [
            _command(310, send, packed),
            _command(320, send, packed),
            _command(34, {}, packed),
        ]
    for frame in frames:
        await _one(attack, port, node, frame)
    return len(frames)


async def long(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Numbers and texts of very many characters, names that are repeated."""
    size = rng.choice((10_000, 1_000_000))
    if port in ("http", "nameshttp"):
        frames = [b"GET /api/v1/topics/%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % (b"9" * size),
                  b"GET /api/v1/topics?limit=%s HTTP/1.1\r\n\r\n" % (b"9" * size)]  # fmt: skip
        return await _cheaply(attack, port, node, frames)
    head = b'{"code":310,"flag":0,"opaque":%s,"extFields":{"a":"%s","e":"%s"}}'
    digits, letters = b"9" * size, b"x" * size
    frames = [
        join(head % (digits, b"a", b"0"), b""),
        join(head % (b"1", letters, digits), b"x"),
        join(b'{"code":310,' + b'"opaque":1,' * (size // 10) + b'"flag":0}', b"x"),
        join(b'{"code":11,"flag":0,"opaque":1,"extFields":{"queueId":"%s"}}' % digits, b""),
    ]
    return await _cheaply(attack, port, node, frames)


async def claim(attack: Attack, port: str, node: Node, rng: random.Random) -> int:
    """Somebody says that it leads a group of ours, in the highest of all terms, and goes."""
    for group in GROUPS:
        for term in (2**63 - 1, 2**48, rng.randrange(1 << 62)):
            ext = {"brokerName": group, "brokerAddr": "127.0.0.1:9", "clusterName": "FuzzCluster",
                   "brokerId": "0", "compressed": "false", "bodyCrc32": "0", "raftTerm": str(term),
                   "raftRole": "leader", "haServerAddr": "127.0.0.1:9"}  # fmt: skip
            body = orjson.dumps(
                {
                    "topicConfigSerializeWrapper": {
                        "dataVersion": {"counter": 2**31, "timestamp": 2**62},
                        "topicConfigTable": {},
                    }
                }
            )
            await _one(attack, port, node, _command(103, ext, body))
    return len(GROUPS) * 3


DEEDS: dict[str, Callable[[Attack, str, Node, random.Random], Awaitable[int]]] = {
    "silent": silent, "churn": churn, "unfinished": unfinished, "slow": slow, "unread": unread,
    "oneway": oneway, "fields": fields, "nesting": nesting, "bomb": bomb, "long": long,
    "claim": claim,
}  # fmt: skip


async def _cheaply(attack: Attack, port: str, node: Node, frames: list[bytes]) -> int:
    """Each alone, and none costs the loop more than as many bytes of an ordinary request and some
    requests beside. Raises Finding."""
    for frame in frames:
        spent = [await _spent(attack, port, node, frame) for _ in range(2)]
        plain = PING if port not in ("http", "nameshttp") else LAST_REQUEST
        if port not in ("http", "nameshttp"):
            plain = join(PING[8:], bytes(len(frame)))
        bytes_alone = min([await _spent(attack, port, node, plain) for _ in range(2)])
        allowed = CPU_REQUESTS * attack.watch.cost_ns[node.name] + 2 * bytes_alone
        if min(spent) > allowed:
            raise Finding(
                "cpu",
                node.name,
                f"{len(frame)} bytes that begin {frame[8:68]!r} took "
                f"{min(spent) / 1e6:.0f} ms of CPU, {allowed / 1e6:.0f} allowed",
            )
    return len(frames)


async def _spent(attack: Attack, port: str, node: Node, frame: bytes) -> int:
    """CPU time, in ns, that the loop had while it dealt with a frame."""
    before = node.loop_ns()
    await _one(attack, port, node, frame)
    attack.watch.check()
    return node.loop_ns() - before


async def _one(attack: Attack, port: str, node: Node, frame: bytes) -> None:
    """A frame on a connection of its own, until it has been dealt with."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await attack.dial(port, node)
        try:
            writer.write(frame)
            async with asyncio.timeout(5):
                await writer.drain()
                await reader.read(1)
        finally:
            writer.close()
    await attack.well(node)


async def _open(
    attack: Attack, port: str, node: Node, stack: contextlib.AsyncExitStack, **options: Any
) -> asyncio.StreamWriter | None:
    """A connection that is open until the stack ends; None if the server wants no more."""
    try:
        _, writer = await attack.dial(_plain(port), node, **options)
    except (OSError, TimeoutError):
        return None
    stack.callback(_abort, writer)
    return writer


def _abort(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.transport.abort()


def _plain(port: str) -> str:
    """Where connections are counted no greeting is needed; on the Raft port by its group it is."""
    return "broker" if port == "tls" else port


def _some_frame(port: str) -> bytes:
    return LAST_REQUEST if port in ("http", "nameshttp") else PING


def _command(code: int, ext: dict[str, str], body: bytes = b"", flag: int = 0) -> bytes:
    header = {"code": int(code), "flag": flag, "language": "OTHER", "opaque": 1, "version": 409,
              "extFields": ext}  # fmt: skip
    return join(orjson.dumps(header), body)


def _large_append(size: int) -> bytes:
    """The head of an AppendRequest that has much behind it; its checksum is right."""
    from google_crc32c import value as crc32c

    from raftmq.dledger.transport import wire

    shape = wire.KINDS[wire.APPEND_REQUEST].head
    head = shape.pack(shape.size + size, wire.MESSAGE_VERSION, wire.APPEND_REQUEST, 1, 1, 1, 0, 1)
    return head + struct.pack(">I", crc32c(head))
