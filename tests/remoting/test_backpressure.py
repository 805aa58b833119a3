"""Peers that do not read: what stops, what stays bounded, who is closed, and who is not."""

import asyncio
import socket

import pytest

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codec import encode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, ConnectionLimits
from raftmq.remoting.errors import TooManyRequests
from tests.instances import transports_of
from tests.remoting.harness import RawPeer, echo, on_both_loops, serving
from tests.waiting import until

KIB = 1024
ANSWER_BYTES = 64 * KIB


def big(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response_to(request, body=bytes(ANSWER_BYTES))


async def connect_small(address: str) -> RawPeer:
    """A peer with small kernel buffers, so that little data fills them."""
    host, port = address.rsplit(":", 1)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    return RawPeer(*await asyncio.open_connection(sock=raw, limit=16 * KIB))


@on_both_loops
async def test_server_pauses_reading_from_a_client_with_unread_answers() -> None:
    served = []

    def count(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        served.append(request.opaque)
        return big(connection, request)

    limits = ConnectionLimits(write_high_bytes=256 * KIB, write_low_bytes=64 * KIB)
    total = 400  # 25 MB of answers; far more than all kernel buffers take
    async with serving({1: count, 2: echo}, limits=limits) as (server, address):
        peer = await connect_small(address)
        requests = [encode_command(RemotingCommand(1, i, body=b"r" * 900)) for i in range(total)]
        peer.writer.write(b"".join(requests))
        await until(lambda: any(c.unsent_bytes > 256 * KIB for c in server.connections))
        (connection,) = server.connections
        stuck_at = len(served)
        assert stuck_at < total
        # The transport holds as much as the connection before it pauses, and an answer more each.
        assert connection.unsent_bytes <= 2 * (256 * KIB + ANSWER_BYTES + KIB)

        client = RemotingClient()  # somebody else does not notice
        assert (await client.invoke(address, RemotingCommand.request(2), 60_000)).code == 0
        assert len(served) == stuck_at

        for expected in range(total):  # now it reads, and gets everything, in order
            answer = await peer.command()
            assert answer is not None
            assert (answer.opaque, len(answer.body)) == (expected, ANSWER_BYTES)
        assert connection.unsent_bytes == 0
        await client.close()
        await peer.close()


@on_both_loops
async def test_connection_beyond_the_write_limit_is_closed_alone() -> None:
    limits = ConnectionLimits(
        write_high_bytes=64 * KIB, write_low_bytes=16 * KIB, write_bytes_max=1024 * KIB
    )
    async with serving({1: echo}, limits=limits) as (server, address):
        peer = await connect_small(address)
        client = RemotingClient()
        await client.invoke(address, RemotingCommand.request(1), 60_000)
        await until(lambda: len(server.connections) == 2)
        healthy = client.connection(address)
        assert healthy is not None
        (slow,) = [c for c in server.connections if c.peer_address != healthy.local_address]
        push = encode_command(RemotingCommand.request(40, body=bytes(ANSWER_BYTES)))
        largest = 0
        while slow.write(push):  # what a broker pushes without being asked
            await asyncio.sleep(0)
            largest = max(largest, slow.unsent_bytes)
        assert largest <= 1024 * KIB
        await until(lambda: len(server.connections) == 1)
        assert "does not read" in slow.close_reason
        assert (await client.invoke(address, RemotingCommand.request(1), 60_000)).code == 0
        assert client.connection(address) is healthy
        await client.close()
        await peer.close()


@on_both_loops
async def test_client_rejects_requests_that_its_peer_does_not_read() -> None:
    """And what was accepted before is neither lost nor answered out of order."""
    patched = pytest.MonkeyPatch()
    transports = transports_of(patched, Connection)
    gate = asyncio.Event()

    async def hold(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return RemotingCommand.response_to(request)

    accepted: list[Connection] = []

    def stop_reading(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        accepted.append(connection)
        return RemotingCommand.response_to(request)

    limits = ConnectionLimits(
        write_high_bytes=64 * KIB, write_low_bytes=16 * KIB, write_bytes_max=512 * KIB
    )
    async with serving({1: hold, 2: stop_reading}) as (_, address):
        client = RemotingClient(limits=limits)
        connection = await client.connect(address)
        await connection.invoke(RemotingCommand.request(2), 60_000)
        patched.undo()
        transport = transports[accepted[0]]
        transport.pause_reading()
        body = bytes(32 * KIB)
        waits = []
        while True:
            wait = asyncio.ensure_future(
                connection.invoke(RemotingCommand.request(1, body=body), 60_000)
            )
            await asyncio.sleep(0.0001)
            if wait.done():
                with pytest.raises(TooManyRequests):
                    wait.result()
                break
            waits.append(wait)
        assert connection.is_open
        assert 64 * KIB < connection.unsent_bytes <= 512 * KIB
        with pytest.raises(TooManyRequests):
            connection.invoke_oneway(RemotingCommand.request(1, body=bytes(512 * KIB)))
        transport.resume_reading()
        await until(lambda: connection.unsent_bytes == 0)
        connection.invoke_oneway(RemotingCommand.request(1, body=bytes(512 * KIB)))
        gate.set()
        assert {answer.code for answer in await asyncio.gather(*waits)} <= {0, 2}
        await client.close()
