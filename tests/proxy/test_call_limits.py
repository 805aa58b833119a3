"""What strangers hold of a proxy: calls, time and bytes."""

import asyncio
import struct
from contextlib import asynccontextmanager

import grpc
import pytest

from raftmq.proxy import server, service
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import UNREAD_BYTES
from raftmq.proxy.service import CallLimit
from tests.proxy.test_server import signed, with_accounts
from tests.proxy.world import PREFIX, Caller, World
from tests.waiting import until

WINDOW = 65_535  # of HTTP/2, until somebody says otherwise
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_HEADERS, ACK = 4, 1
INITIAL_WINDOW = 4
MESSAGE_BYTES = 4_000_000
USER = signed("user-key", "user-secret")


def frame(kind, flags, stream, payload=b""):
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def headers_of(name):
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": PREFIX + name,
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    text = [word.encode() for field in fields.items() for word in field]
    texts = [bytes([len(word)]) + word for word in text]
    return b"".join(b"\0" + key + value for key, value in zip(texts[::2], texts[1::2], strict=True))


class Stranger:
    """One connection that begins calls and never finishes a message. It takes no answer: its window
    is 0."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._initial, self._granted = WINDOW, {0: WINDOW}
        self.sent = {}  # bytes of each call
        self.ended = set()
        self._pinged = asyncio.Event()

    async def calls(self, name, count):
        for _ in range(count):
            stream = 1 + 2 * len(self.sent)
            self.sent[stream] = 0
            self._granted[stream] = 0
            self._writer.write(frame(HEADERS, END_HEADERS, stream, headers_of(name)))
        await self.settled()

    async def says_all_it_may(self):
        """Send of the messages what the proxy lets in, until it lets in no more."""
        while await self._say():
            await self.settled()

    async def _say(self):
        moved = False
        for stream, sent in self.sent.items():
            left = min(
                MESSAGE_BYTES - sent,
                self._initial + self._granted[stream] - sent,
                self._granted[0] - sum(self.sent.values()),
                16_384,
            )
            if stream not in self.ended and left >= 5:
                start = b"" if sent else b"\0" + struct.pack(">I", MESSAGE_BYTES)
                self._writer.write(frame(DATA, 0, stream, start.ljust(left, b"\0")))
                self.sent[stream] += left
                moved = True
        await self._writer.drain()
        return moved

    async def settled(self):
        """Return once the proxy has seen everything, and had time to answer."""
        for _ in range(2):
            self._pinged.clear()
            self._writer.write(frame(PING, 0, 0, bytes(8)))
            await asyncio.wait_for(self._pinged.wait(), 30)
            await asyncio.sleep(0.1)

    async def read(self):
        while True:
            head = await self._reader.readexactly(9)
            size = int.from_bytes(head[:3])
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
            payload = await self._reader.readexactly(size)
            if kind == WINDOW_UPDATE:
                self._granted[stream] = self._granted.get(stream, 0) + int.from_bytes(payload)
            elif kind == SETTINGS and not flags & ACK:
                for at in range(0, size, 6):
                    key, value = struct.unpack_from(">HI", payload, at)
                    if key == INITIAL_WINDOW:
                        self._initial = value
                self._writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING and flags & ACK:
                self._pinged.set()
            elif kind == PING:
                self._writer.write(frame(PING, ACK, 0, payload))
            elif kind == RESET or (kind == HEADERS and flags & 1):
                self.ended.add(stream)


@asynccontextmanager
async def stranger_of(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    no_answers = struct.pack(">HI", INITIAL_WINDOW, 0)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, no_answers))
    one = Stranger(reader, writer)
    task = asyncio.create_task(one.read())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()


async def health(caller):
    return await caller.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)


async def test_calls_without_an_account_end_and_do_not_block_others(tmp_path):
    """They come with headers only, and with beginnings of messages, and read no answer."""
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path) | {"clients_max": 10}) as world:
        await world.topic("Own")
        (proxy,) = world.proxies
        async with (
            stranger_of(proxy) as stranger,
            Caller(proxy, metadata=USER) as known,
            Caller(proxy, client_id="n") as nobody,
        ):
            for name in ("SendMessage", "ReceiveMessage", "Telemetry"):
                await stranger.calls(name, 40)
            answered_max = service.STRANGERS_MAX // 2  # of one address
            await until(lambda: len(stranger.ended) >= 120 - answered_max)
            await stranger.says_all_it_may()
            assert sum(stranger.sent.values()) <= service.STRANGERS_MAX * UNREAD_BYTES
            assert (await known.send("Own")).status.code == pb.Code.OK
            assert await health(known) == service.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await nobody.send("Own")
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            figures = proxy.figures()
            assert figures.calls == 0
            assert figures.refused["strangers"] == 120 - answered_max + 1
            assert figures.refused["calls"] == 0
        async with Caller(proxy, client_id="n") as nobody:

            async def answered():
                try:
                    return (await nobody.send("Own")).status.code == pb.Code.UNAUTHORIZED
                except grpc.aio.AioRpcError:
                    return False

            await until(answered)


async def test_messages_of_calls_without_an_account_are_not_buffered(tmp_path):
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path)) as world:
        async with stranger_of(world.proxies[0]) as stranger:
            await stranger.calls("SendMessage", service.STRANGERS_MAX)
            await stranger.says_all_it_may()
            assert max(stranger.sent.values()) <= UNREAD_BYTES


async def test_large_message_without_an_account_is_rejected_with_the_reason(tmp_path):
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path)) as world:
        async with Caller(world.proxies[0]) as nobody:
            answer = await nobody.send("Own", b"x" * 3_000_000)
            assert answer.status.code == pb.Code.UNAUTHORIZED
            assert (await nobody.receive("Own")).code == pb.Code.UNAUTHORIZED


@pytest.mark.parametrize("name", ["SendMessage", "ReceiveMessage"])
async def test_call_without_its_message_ends(tmp_path, monkeypatch, caplog, name):
    monkeypatch.setattr(service, "MESSAGE_S", 0.1)
    async with World(tmp_path) as world, Caller(world.proxies[0]) as caller:
        figures = world.proxies[0].figures
        call = caller.channel.stream_stream(PREFIX + name)(metadata=caller.metadata)
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert figures().refused["unfinished"] == 1
        assert "call_unfinished" in caplog.text
        call = caller.channel.stream_stream(PREFIX + name)(metadata=caller.metadata)
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: figures().calls == 0)


async def test_calls_at_the_limit_do_not_block_health_checks(tmp_path, caplog):
    async with (
        World(tmp_path, proxy={"clients_max": 1}) as world,
        Caller(world.proxies[0]) as caller,
    ):
        telemetry = caller.channel.stream_stream(PREFIX + "Telemetry")
        streams = [telemetry(metadata=caller.metadata) for _ in range(2)]
        await until(lambda: world.proxies[0].figures().calls == 2)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await caller.call("Heartbeat")
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "call_bound kind=calls limit=2 total=1" in caplog.text
        assert await health(caller) == service.SERVING
        streams.pop().cancel()
        await until(lambda: world.proxies[0].figures().calls == 1)
        await caller.call("Heartbeat")
        streams.pop().cancel()


async def test_health_checks_per_address_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "CHECKS_MAX", 0)
    async with World(tmp_path) as world, Caller(world.proxies[0]) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health(caller)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_call_limit_counts_by_key_until_the_task_ends():
    bound, ends = CallLimit("calls", 3, 0.5), asyncio.Event()

    async def call(key):
        taken = bound.take("peer", key)
        await ends.wait()
        return taken

    calls = [asyncio.create_task(call(key)) for key in ("a", "a", "b")]
    await asyncio.sleep(0)
    assert (bound.count, bound.refused_count) == (2, 1)
    ends.set()
    assert await asyncio.gather(*calls) == [True, False, True]
    await asyncio.sleep(0)
    assert bound.count == 0
    assert await call("a")


async def test_calls_of_one_client_are_limited_below_the_total(tmp_path):
    """It opens streams and receives as long as they are taken; another account is served."""
    async with World(tmp_path / "b", proxy=with_accounts(tmp_path) | {"clients_max": 25}) as world:
        await world.topic("Own")
        (proxy,) = world.proxies
        async with (
            Caller(proxy, metadata=USER) as greedy,
            Caller(proxy, client_id="admin", metadata=signed("admin-key", "admin-secret")) as admin,
        ):
            telemetry = greedy.channel.stream_stream(PREFIX + "Telemetry")
            streams = [telemetry(metadata=greedy.metadata) for _ in range(80)]
            await until(lambda: proxy.figures().refused["calls"] > 0 and proxy.figures().calls > 40)
            assert proxy.figures().calls < 50
            assert (await admin.send("Own")).status.code == pb.Code.OK
            assert await health(admin) == service.SERVING
            for stream in streams:
                stream.cancel()


async def test_connection_without_ping_answers_is_closed(tmp_path, monkeypatch):
    """Its machine is gone, or its process is stopped."""
    assert server.PING_MS + server.PING_TIMEOUT_MS < 20_000
    monkeypatch.setattr(server, "PING_MS", 200)
    monkeypatch.setattr(server, "PING_TIMEOUT_MS", 200)
    async with World(tmp_path) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.proxies[0].port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        async with asyncio.timeout(30):  # gRPC's own time-out of a ping is a minute
            assert b"ping_timeout" in await reader.read()
        writer.close()
