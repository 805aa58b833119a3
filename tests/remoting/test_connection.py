"""Connections over real sockets: dispatch, damage, time-outs, loss, both directions."""

import asyncio
import socket
import struct
import warnings
from contextlib import suppress

import pytest

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codec import RawFrame, decode_command, encode_command, join_frame
from raftmq.remoting.codes import BODY_BYTES_MAX, ResponseCode
from raftmq.remoting.command import BINARY, RemotingCommand
from raftmq.remoting.connection import Connection, ConnectionLimits, Handler
from raftmq.remoting.errors import (
    ConnectError,
    ConnectionLost,
    HeaderError,
    SendTimeout,
    TooManyRequests,
)
from raftmq.remoting.server import ServerLimits
from tests.instances import transports_of
from tests.remoting.harness import RawPeer, echo, on_both_loops, serving
from tests.waiting import until

REQUEST = RemotingCommand.request


def silent(connection: Connection, request: RemotingCommand) -> None:
    return None


@on_both_loops
async def test_handlers_answer_later_raise_or_are_missing() -> None:
    async def slow(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return RemotingCommand.response_to(request, 0, "slow")

    def later(connection: Connection, request: RemotingCommand) -> None:
        answer = RemotingCommand.response_to(request, 0, "later")
        asyncio.get_running_loop().call_soon(connection.reply, request, answer)

    def refuses(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise HeaderError("the custom field <x> is null", code=13)

    def fails(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise KeyError("oh")

    async def fails_later(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise KeyError("oh")

    handlers: dict[int, Handler] = {
        1: echo,
        2: slow,
        3: later,
        4: refuses,
        5: fails,
        6: fails_later,
    }
    async with serving(handlers) as (_, address):
        client = RemotingClient()
        answers = [await client.invoke(address, REQUEST(code, {"a": "b"}, b"x"), 60_000)
                   for code in range(1, 8)]  # fmt: skip
        assert answers[0].ext == {"a": "b"}
        assert answers[0].body == b"x"
        assert [a.remark for a in answers[1:3]] == ["slow", "later"]
        assert (answers[3].code, answers[3].remark) == (13, "the custom field <x> is null")
        assert [a.code for a in answers[4:6]] == [1, 1]
        assert "KeyError" in (answers[4].remark or "")
        assert (answers[6].code, answers[6].remark) == (3, "request type 7 not supported")
        assert [a.opaque for a in answers] == list(range(7))
        await client.close()


@on_both_loops
async def test_one_way_requests_are_never_answered() -> None:
    seen = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        seen.append(request.code)
        if request.code == 2:
            raise KeyError("oh")
        return RemotingCommand.response_to(request)

    async with serving({1: note, 2: note, 9: echo}) as (_, address):
        peer = await RawPeer.connect(address)
        for opaque, code in enumerate((1, 2, 3)):  # answers, fails, is not known
            peer.writer.write(encode_command(RemotingCommand(code, opaque, flag=2)))
        peer.writer.write(encode_command(RemotingCommand(9, 77)))
        answer = await peer.command()
        assert answer is not None
        assert answer.opaque == 77
        assert seen == [1, 2]
        await peer.close()


@on_both_loops
async def test_answer_uses_the_header_codec_of_its_request() -> None:
    async with serving({1: echo}) as (_, address):
        peer = await RawPeer.connect(address)
        peer.writer.write(encode_command(RemotingCommand(1, 5, ext={"a": "b"}), BINARY))
        answer = await peer.command()
        assert answer is not None
        assert (answer.serialize_type, answer.ext) == (BINARY, {"a": "b"})
        await peer.close()


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"\x00\x00\x00\x02\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff\x00\x00\x00\x00",
    join_frame(b"not json"),
    join_frame(b"\x00", b"", BINARY),
]


@pytest.mark.parametrize("damage", MALFORMED)
def test_malformed_frame_closes_only_its_connection(damage: bytes) -> None:
    @on_both_loops
    async def scenario() -> None:
        async with serving({1: echo}) as (server, address):
            client = RemotingClient()
            healthy = await client.connect(address)
            peer = await RawPeer.connect(address)
            good = encode_command(RemotingCommand(1, 5))
            peer.writer.write(good + damage + good)
            answer = await peer.command()
            assert answer is not None  # what came in front of the damage is answered
            assert answer.opaque == 5
            assert await peer.command() is None  # and then the connection ends
            await peer.close()
            assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
            assert client.connection(address) is healthy
            assert len(server.connections) == 1
            await client.close()

    for loop_name in ("uvloop", "asyncio"):
        scenario(loop_name)


@on_both_loops
async def test_frame_above_the_limit_closes_the_connection() -> None:
    limits = ConnectionLimits(frame_size_max=1000)
    async with serving({1: echo}, limits=limits) as (_, address):
        client = RemotingClient()
        room = 1000 - len(encode_command(REQUEST(1)))
        assert (await client.invoke(address, REQUEST(1, body=b"b" * room), 60_000)).code == 0
        with pytest.raises(ConnectionLost) as caught:
            await client.invoke(address, REQUEST(1, body=b"b" * (room + 1)), 60_000)
        assert caught.value.outcome_unknown
        await client.close()


async def test_only_message_and_table_requests_may_have_large_bodies() -> None:
    async with serving({34: echo, 310: echo}) as (_, address):
        client = RemotingClient()
        for code, size, answer in (
            (34, BODY_BYTES_MAX, 0),
            (34, BODY_BYTES_MAX + 1, ResponseCode.MESSAGE_ILLEGAL),
            (310, BODY_BYTES_MAX + 1, 0),
        ):
            response = await client.invoke(address, REQUEST(code, body=bytes(size)), 60_000)
            assert response.code == answer, (code, size)
        await client.close()


@on_both_loops
async def test_requests_time_out_separately_and_late_answers_are_dropped() -> None:
    kept: list[tuple[Connection, RemotingCommand]] = []

    def keep(connection: Connection, request: RemotingCommand) -> None:
        kept.append((connection, request))

    async with serving({1: keep, 2: echo}) as (_, address):
        client = RemotingClient()
        await client.connect(address)  # or the time may be over before anything is sent
        waits = [client.invoke(address, REQUEST(1), ms) for ms in (60_000, 30, 10)]
        long, *short = [asyncio.ensure_future(wait) for wait in waits]
        for wait in short:
            with pytest.raises(SendTimeout) as caught:
                await wait
            assert caught.value.outcome_unknown
        await until(lambda: len(kept) == 3)
        for connection, request in kept[1:]:
            connection.reply(request, RemotingCommand.response_to(request, 0, "too late"))
        assert (await client.invoke(address, REQUEST(2), 60_000)).code == 0
        assert not long.done()
        kept[0][0].reply(kept[0][1], RemotingCommand.response_to(kept[0][1], 0, "in time"))
        assert (await long).remark == "in time"
        own = client.connection(address)
        assert own is not None
        assert own.outstanding == 0
        await client.close()


@on_both_loops
async def test_cancelled_request_leaves_no_entry() -> None:
    async with serving({1: silent}) as (_, address):
        client = RemotingClient()
        connection = await client.connect(address)
        wait = asyncio.ensure_future(connection.invoke(REQUEST(1), 60_000))
        await until(lambda: connection.outstanding == 1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert connection.outstanding == 0
        await client.close()


@on_both_loops
async def test_broken_connection_fails_its_requests_at_once() -> None:
    arrived: list[Connection] = []

    def note(connection: Connection, request: RemotingCommand) -> None:
        arrived.append(connection)

    async with serving({1: note}) as (_, address):
        client = RemotingClient()
        ended = []
        client.on_close(lambda connection, reason: ended.append(reason))
        wait = asyncio.ensure_future(client.invoke(address, REQUEST(1), 3_600_000))
        await until(lambda: bool(arrived))
        connection = client.connection(address)
        assert connection is not None
        arrived[0].abort("test")
        with pytest.raises(ConnectionLost) as caught:
            await wait
        assert caught.value.outcome_unknown
        assert len(ended) == 1
        assert client.connection(address) is None
        with pytest.raises(ConnectionLost) as closed:
            await connection.invoke(REQUEST(1), 1_000)
        assert not closed.value.outcome_unknown
        await client.close()


@on_both_loops
async def test_unsent_request_is_known_not_to_be_executed() -> None:
    async with serving({1: silent}) as (_, address):
        client = RemotingClient()
        connection = await client.connect(address)
        first = asyncio.ensure_future(connection.invoke(REQUEST(1), 3_600_000))
        await until(lambda: connection.sent_bytes > 0)

        async def send_and_abort() -> None:
            second = connection.invoke(REQUEST(1), 3_600_000)
            asyncio.get_running_loop().call_soon(connection.abort, "test")  # in this iteration
            await second

        outcomes = await asyncio.gather(first, send_and_abort(), return_exceptions=True)
        errors = [error for error in outcomes if isinstance(error, ConnectionLost)]
        assert [error.outcome_unknown for error in errors] == [True, False]
        await client.close()


@on_both_loops
async def test_server_sends_requests_on_the_clients_connection() -> None:
    async def ask_back(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = await connection.invoke(REQUEST(307, {"clientId": "c"}), 60_000)
        connection.invoke_oneway(REQUEST(40, {"consumerGroup": "g"}))
        return RemotingCommand.response_to(request, 0, body=answer.body)

    notified = []

    def notify(connection: Connection, request: RemotingCommand) -> None:
        notified.append(request.ext)

    def info(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, 0, body=b"running")

    async with serving({1: ask_back}) as (server, address):
        client = RemotingClient({307: info})
        client.register(40, notify)
        # Both sides count their opaques from 0: neither may take the other's for its own.
        assert (await client.invoke(address, REQUEST(1), 60_000)).body == b"running"
        await until(lambda: notified == [{"consumerGroup": "g"}])
        (accepted,) = server.connections
        connection = client.connection(address)
        assert connection is not None
        assert accepted.peer_address == connection.local_address
        await client.close()


@on_both_loops
async def test_outstanding_requests_are_limited() -> None:
    async with serving({1: silent}) as (_, address):
        client = RemotingClient(limits=ConnectionLimits(requests_max=2))
        connection = await client.connect(address)
        waits = [asyncio.ensure_future(connection.invoke(REQUEST(1), 60_000)) for _ in range(2)]
        await until(lambda: connection.outstanding == 2)
        with pytest.raises(TooManyRequests) as caught:
            await connection.invoke(REQUEST(1), 60_000)
        assert caught.value.retriable
        assert not caught.value.outcome_unknown
        await client.close()
        for wait in waits:
            with pytest.raises(ConnectionLost):
                await wait


@on_both_loops
async def test_slow_requests_are_limited_and_end_with_their_connection() -> None:
    cancelled = []

    async def stuck(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.opaque)
            raise
        raise AssertionError("not reached")

    limits = ConnectionLimits(tasks_max=2)
    async with serving({1: stuck}, limits=limits) as (server, address):
        peer = await RawPeer.connect(address)
        for opaque in range(3):
            peer.writer.write(encode_command(RemotingCommand(1, opaque)))
        answer = await peer.command()
        assert answer is not None
        assert (answer.opaque, answer.code) == (2, 2)
        assert (answer.remark or "").startswith("[BUSY]")
        await peer.close()
        await until(lambda: not server.connections)
        await until(lambda: sorted(cancelled) == [0, 1])


@on_both_loops
async def test_slow_request_that_has_not_begun_ends_with_its_connection() -> None:
    async def slow() -> RemotingCommand:
        raise AssertionError("not reached")

    def reset(connection: Connection, request: RemotingCommand) -> None:
        transports[connection].abort()  # the loop reports the loss before it starts tasks

    handlers: dict[int, Handler] = {1: reset, 2: lambda connection, request: slow()}
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        transports = transports_of(patched, Connection)
        async with serving(handlers) as (_, address):
            peer = await RawPeer.connect(address)
            peer.writer.write(b"".join(encode_command(RemotingCommand(code, 0)) for code in (1, 2)))
            with suppress(ConnectionError):
                assert await peer.command() is None
            await peer.close()
    assert not [each for each in caught if "never awaited" in str(each.message)]


@on_both_loops
async def test_raw_handler_gets_all_frames_of_an_arrival_and_writes_once() -> None:
    arrivals: list[int] = []

    def raw(connection: Connection, frames: list[RawFrame]) -> None:
        arrivals.append(len(frames))
        answers = []
        for frame in frames:
            command = decode_command(frame)
            if command.code == 10:
                answers.append(encode_command(RemotingCommand.response_to(command, 0, "fast")))
            else:
                connection.dispatch(frame)
        connection.write_many(answers)

    async with serving({1: echo}, on_raw=raw) as (_, address):
        peer = await RawPeer.connect(address)
        peer.writer.write(
            b"".join(encode_command(RemotingCommand(c, i)) for i, c in enumerate((10, 1, 10, 5)))
        )
        answers = [await peer.command() for _ in range(4)]
        assert arrivals == [4]
        result = {a.opaque: (a.code, a.remark) for a in answers if a is not None}
        assert result[0] == result[2] == (0, "fast")
        assert result[1] == (0, None)
        assert result[3][0] == 3
        await peer.close()


@on_both_loops
async def test_writes_of_one_loop_iteration_share_a_transport_write() -> None:
    class Counting:
        """A transport with its writes counted."""

        def __init__(self, transport: asyncio.Transport) -> None:
            self.transport = transport
            self.sizes: list[int] = []

        def __getattr__(self, name: str) -> object:
            return getattr(self.transport, name)

        def write(self, data: bytes) -> None:
            self.sizes.append(len(data))
            self.transport.write(data)

    with pytest.MonkeyPatch.context() as patched:
        transports = transports_of(patched, Connection, Counting)
        async with serving({1: echo}) as (_, address):
            client = RemotingClient()
            connection = await client.connect(address)
            counting = transports[connection]
            waits = [connection.invoke(REQUEST(1, body=b"x" * i), 60_000) for i in range(20)]
            answers = await asyncio.gather(*waits)
            assert [len(a.body) for a in answers] == list(range(20))
            assert len(counting.sizes) == 1
            await client.close()


def signed(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """An echo to somebody whose account is accepted."""
    connection.has_account = True
    return echo(connection, request)


async def answered(peer: RawPeer, code: int = 1) -> bool:
    """Return whether the peer is answered; if not, it is closed."""
    peer.writer.write(encode_command(RemotingCommand(code, 1)))
    try:
        return await peer.command() is not None
    except ConnectionError:
        return False  # a reset says the same


@on_both_loops
async def test_unsigned_connections_at_the_limit_do_not_block_signed_ones() -> None:
    """They fill the port, and say something now and then. Who has an account keeps its place."""
    limits = ServerLimits(connections_max=3)
    handlers = {1: echo, 2: signed}
    async with serving(handlers, server_limits=limits, with_accounts=True) as (server, address):
        peers = [await RawPeer.connect(address)]
        assert await answered(peers[0], 2)
        for _ in range(5):
            peers.append(await RawPeer.connect(address))
            assert await answered(peers[-1])
        assert server.refused_count == 3
        await until(lambda: len(server.connections) == 3)
        assert [await answered(peer) for peer in peers] == [True, *[False] * 3, True, True]
        for peer in peers[4:]:
            assert await answered(peer, 2)
        await asyncio.sleep(0.01)  # uvloop's clock counts milliseconds
        assert await answered(peers[0], 2)
        peers.append(await RawPeer.connect(address))  # now each has an account: the silent one goes
        assert await answered(peers[-1])
        assert [await answered(peer) for peer in peers[4:]] == [False, True, True]
        assert server.refused_count == 4
        for peer in peers:
            await peer.close()


@on_both_loops
async def test_longest_silent_connection_is_closed_at_the_limit_without_accounts() -> None:
    limits = ServerLimits(connections_max=2)
    async with serving({1: echo}, server_limits=limits) as (server, address):
        peers = [await RawPeer.connect(address) for _ in range(2)]
        assert await answered(peers[1])
        await asyncio.sleep(0.01)  # uvloop's clock counts milliseconds
        assert await answered(peers[0])
        peers.append(await RawPeer.connect(address))
        assert await answered(peers[2])
        assert [await answered(peer) for peer in peers] == [True, False, True]
        assert server.refused_count == 1
        for peer in peers:
            await peer.close()


@on_both_loops
async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    limits = ServerLimits(idle_timeout_s=0.2)
    async with serving({1: echo}, server_limits=limits) as (server, address):
        idle = await RawPeer.connect(address)
        client = RemotingClient()
        connection = await client.connect(address)
        await until(lambda: len(server.connections) == 2)
        while len(server.connections) == 2:
            assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
            await asyncio.sleep(0.005)
        assert connection.is_open
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await idle.reader.readexactly(1)
        await idle.close()
        await client.close()


@on_both_loops
async def test_close_callbacks_run_once_with_the_reason() -> None:
    ended: list[str] = []
    async with serving(
        {1: echo}, on_connection_closed=lambda connection, reason: ended.append(reason)
    ) as (server, address):
        peer = await RawPeer.connect(address)
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        await peer.close()
        await until(lambda: ended == ["closed by the peer"])
        connection.on_close(lambda c, reason: ended.append(f"late: {reason}"))
        assert ended == ["closed by the peer", "late: closed by the peer"]
        assert not connection.write(b"x")
        with pytest.raises(ConnectionLost):
            connection.invoke_oneway(REQUEST(1))
    assert len(ended) == 2


@on_both_loops
async def test_no_request_is_served_without_its_peers_address() -> None:
    """Clients give up while a broker stands still. It then accepts their connections, with what
    they sent, and uvloop knows no address of a peer that has left."""
    served: list[str] = []

    def noted(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        served.append(connection.peer_address)
        return echo(connection, request)

    async with serving({1: noted}) as (server, address):
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(encode_command(REQUEST(1)))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client = RemotingClient()
        await client.invoke(address, REQUEST(1), 60_000)  # accepted after the first
        assert served and all(served)
        await until(lambda: len(server.connections) == 1)
        await client.close()


@on_both_loops
async def test_server_stops_in_order() -> None:
    async with serving({1: echo}) as (server, address):
        client = RemotingClient()
        await client.invoke(address, REQUEST(1), 60_000)
        await server.stop()
        await until(lambda: client.connection(address) is None)
        with pytest.raises(ConnectError) as caught:
            await client.invoke(address, REQUEST(1), 60_000)
        assert caught.value.retriable
        await client.close()


@on_both_loops
async def test_assertion_in_a_handler_fails_only_its_request() -> None:
    """An assertion that a request trips is answered; the process never hears of it."""
    reports: list[object] = []

    def wrong(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise AssertionError("invariant")

    async def wrong_later(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise AssertionError("invariant")

    def closed(connection: Connection, reason: str) -> None:
        raise AssertionError("listener")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    async with serving({1: wrong, 2: wrong_later, 3: echo}, on_connection_closed=closed) as (
        server,
        address,
    ):
        client = RemotingClient()
        for code in (1, 2):
            answer = await client.invoke(address, REQUEST(code), 60_000)
            assert (answer.code, answer.remark) == (1, "AssertionError: invariant")
        assert (await client.invoke(address, REQUEST(3), 60_000)).code == 0
        assert server.budgets.failures == 2
        await client.close()
        await until(lambda: server.budgets.failures == 3)
    assert not reports
