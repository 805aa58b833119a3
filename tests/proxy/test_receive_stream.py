"""Answers on their way: their bytes, what a client that does not read holds, and what it gets."""

import asyncio

import grpc
import pytest

from raftmq.proxy import receive_message as receives
from raftmq.proxy import server
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.receive_stream import CLIENT_PARTS, ByteLimit, ResponseWriter, Unread
from tests.proxy.world import PREFIX, Caller, World
from tests.waiting import until

MIB = 1 << 20
A, B, C = ("", "a"), ("", "b"), ("", "c")


def test_answer_bytes_are_limited_per_client_with_one_answer_for_each():
    room = ByteLimit(100)
    assert room.take(A, 20) and room.take(A, 5)
    assert not room.take(A, 1) and not room.has(A)
    assert room.has(B) and room.take(B, 60)  # one that is larger than its part
    assert not room.has(B)
    assert not room.take(C, 16) and room.take(C, 15)
    assert room.held_bytes == 100
    for who in (A, B, C, ("", "d")):
        assert not room.has(who)
    room.release(A, 25)
    assert room.has(A, 100 // CLIENT_PARTS)
    room.release(B, 60)
    room.release(C, 15)
    assert room.held_bytes == 0 and room.take(A, 101)  # one that is larger than all


async def test_ended_answer_stops_writing_and_returns_the_remainder():
    written = []
    free = asyncio.Semaphore(2)  # of the status and a message

    async def write(answer):
        await free.acquire()
        written.append(answer.WhichOneof("content"))

    telling = ResponseWriter(
        ["x", "", "y", "z"], lambda body: pb.Message() if body else None, write
    )
    writing = asyncio.create_task(telling.run())
    await until(lambda: len(written) == 2)
    await asyncio.sleep(0)
    assert list(telling.left) == ["y", "z"] and telling.written == 1
    telling.end()
    for _ in range(9):
        free.release()
    with pytest.raises(Unread):
        await writing
    assert written == ["status", "message", "message"]


@pytest.fixture
async def world(tmp_path, monkeypatch):
    monkeypatch.setattr(receives, "ANSWER_BYTES_MAX", 8 * MIB)
    monkeypatch.setattr(server, "CALL_LIMIT_S", 0.5)
    async with World(tmp_path) as world:
        await world.topic("T", queues=1)
        await world.topic("Other")
        yield world


@pytest.fixture
async def good(world):
    async with Caller(world.proxies[0], client_id="good") as caller:
        yield caller


@pytest.fixture
async def bad(world):
    options = [
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 65_536),
        ("grpc.max_receive_message_length", -1),
    ]
    channel = grpc.aio.insecure_channel(f"ipv4:127.0.0.1:{world.proxies[0].port}", options=options)
    async with Caller(world.proxies[0], client_id="bad", channel=channel) as caller:
        yield caller


def unread(caller, count, batch_size):
    """Receives without a deadline that nobody reads."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="cg"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name="T")),
        batch_size=batch_size,
    )
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromMilliseconds(0)
    method = caller.channel.unary_stream(
        PREFIX + "ReceiveMessage",
        pb.ReceiveMessageRequest.SerializeToString,
        pb.ReceiveMessageResponse.FromString,
    )
    calls = [method(request, metadata=caller.metadata) for _ in range(count)]
    caller.streams += calls
    return calls


async def test_client_that_does_not_read_does_not_block_another(world, good, bad):
    (proxy,) = world.proxies
    for _ in range(4):
        await good.send("T", b"x" * (3 * MIB))
    unread(bad, count=4, batch_size=1)
    await until(lambda: proxy.figures().returned == 3)  # for want of room for this client
    assert proxy.figures().answer_bytes == 3 * MIB
    await good.send("Other", b"y")
    (one,) = await good.received("Other")
    assert one.body == b"y"
    for call in bad.streams:
        call.cancel()
    await until(lambda: proxy.figures().answer_bytes == 0)


async def test_unread_messages_are_returned_in_time_and_the_call_ends(
    world, good, bad, monkeypatch
):
    monkeypatch.setattr(receives, "READ_S_MIN", 0.5)
    (proxy,) = world.proxies
    size = 80_000  # more than a client takes unread, and few enough for one pop
    for number in range(3):
        await good.send("T", b"%d" % number * size)
    (call,) = unread(bad, count=1, batch_size=3)
    await until(lambda: proxy.figures().answer_bytes == 3 * size)
    # Of three messages one is on its way until somebody reads it; gRPC cannot take it back.
    await until(lambda: proxy.figures().answer_bytes == size)
    assert proxy.figures().returned == 3
    again = await good.received("T", count=3)
    assert [one.body[:1] for one in again] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: proxy.figures().answer_bytes == 0)
    assert proxy.figures().returned == 3


async def test_unread_messages_of_a_cancelled_call_are_returned_once(world, good, bad, monkeypatch):
    monkeypatch.setattr(receives, "READ_S_MIN", 0.5)
    (proxy,) = world.proxies
    await good.send("T", b"x" * MIB)
    (call,) = unread(bad, count=1, batch_size=1)
    await until(lambda: proxy.figures().returned)
    call.cancel()
    await until(lambda: proxy.figures().answer_bytes == 0)
    assert proxy.figures().returned == 1
