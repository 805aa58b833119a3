"""Whatever arrives, a proxy answers or refuses, and goes on; nothing of it is unforeseen."""

import asyncio
import logging
import random
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from raftmq.proxy.protocol import messaging_pb2 as pb
from tests.certificates import Authority
from tests.proxy.world import PREFIX, UNARY, Caller, World, message

ROUNDS = 25
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def valid(name):
    """A request that could be right."""
    handle = "0 1795577939254 30000 0 0 group-a 0 0 508"
    topic, group = {"name": "T"}, {"name": "cg"}
    where = pb.Endpoints(addresses=[pb.Address(host="h", port=1)])
    fields: dict[str, Any] = {
        "QueryRoute": {"topic": topic, "endpoints": where},
        "QueryAssignment": {"topic": topic, "group": group, "endpoints": where},
        "Heartbeat": {"group": group, "client_type": 2},
        "NotifyClientTermination": {"group": group},
        "SendMessage": {"messages": [message("T", tag="a", keys=["k"], message_group="g")]},
        "RecallMessage": {"topic": topic, "recall_handle": "djEgVCBiIDEgMDE="},
        "EndTransaction": {"topic": topic, "transaction_id": "H1", "resolution": 1},
        "AckMessage": {
            "group": group, "topic": topic, "entries": [{"receipt_handle": handle}] * 3
        },
        "ChangeInvisibleDuration": {
            "group": group, "topic": topic, "receipt_handle": handle,
            "invisible_duration": {"seconds": 1},
        },
        "ForwardMessageToDeadLetterQueue": {
            "group": group, "topic": topic, "receipt_handle": handle
        },
    }  # fmt: skip
    return getattr(pb, f"{name}Request")(**fields[name]).SerializeToString()


def broken(rng, data):
    """The bytes with a few of them changed, or others altogether."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(60))
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        changed[at : at + rng.choice((0, 1))] = rng.randbytes(rng.choice((0, 1, 2)))
        if not changed:
            break
    return bytes(changed)


@pytest.fixture(params=["plain", "tls"])
async def caller(tmp_path, request):
    """A client of a proxy whose one port takes both."""
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("proxy")
    proxy = {"tls_server_cert_path": cert, "tls_server_key_path": key}
    proxy["tls_server_mode"] = "permissive"
    async with World(tmp_path, proxy=proxy) as world:
        await world.topic("T")
        channel = None
        if request.param == "tls":
            roots = await asyncio.to_thread(Path(authority.path).read_bytes)
            roots = grpc.ssl_channel_credentials(roots)
            target = f"localhost:{world.proxies[0].port}"
            channel = grpc.aio.secure_channel(target, roots)
        async with Caller(world.proxies[0], channel=channel) as caller:
            yield caller


@pytest.mark.parametrize("tls", [False, True])
async def test_malformed_bytes_end_only_their_connection(caller, tls):
    rng = random.Random(9)
    port = caller.endpoints.addresses[0].port
    context = ssl._create_unverified_context() if tls else None
    for _ in range(ROUNDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        start = rng.choice((b"", PREFACE, b"\x16\x03\x01"))
        writer.write(start + rng.randbytes(rng.randrange(400)))
        if writer.can_write_eof():
            writer.write_eof()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(reader.read(), 0.05)
        writer.close()
    assert (await caller.send("T")).status.code == pb.Code.OK


async def test_random_requests_are_answered(caller, caplog):
    rng = random.Random(5)
    caplog.set_level(logging.ERROR)
    for name in UNARY:
        method = caller.channel.unary_unary(PREFIX + name)
        calls = [
            method(broken(rng, valid(name)), metadata=caller.metadata, timeout=2)
            for _ in range(ROUNDS)
        ]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, bytes | grpc.aio.AioRpcError), answer
    assert caplog.records == []
    assert (await caller.send("T")).status.code == pb.Code.OK


async def test_malformed_message_is_rejected_with_the_reason(caller, caplog):
    for name in (*UNARY, "ReceiveMessage", "Telemetry"):
        stream = caller.channel.stream_stream(PREFIX + name)(metadata=caller.metadata, timeout=30)
        await stream.write(b"\xff\xff\xff")
        assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (await stream.details()).startswith("not a ")
    assert [one for one in caplog.records if one.exc_info] == []


async def test_random_streams_end(caller, caplog):
    rng = random.Random(7)
    caplog.set_level(logging.ERROR)
    telemetry = caller.channel.stream_stream(PREFIX + "Telemetry")
    for _ in range(ROUNDS):
        stream = telemetry(metadata=caller.metadata, timeout=2)
        try:
            await stream.write(rng.randbytes(rng.randrange(40)))
            await stream.done_writing()
            while await stream.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass  # as it should
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        rng.randbytes(500),
    ):
        port = caller.endpoints.addresses[0].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert caplog.records == []
    assert (await caller.send("T")).status.code == pb.Code.OK
