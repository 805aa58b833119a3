"""Dialling: addresses, names, time-outs, one connection for many callers."""

import asyncio
import socket
from typing import Any

import pytest

from raftmq.ops import connect as dialling
from raftmq.remoting.address import format_address, host_of, parse_address, parse_address_list
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import ConnectError, ConnectionLost, SendTimeout, TooManyRequests
from raftmq.remoting.server import RemotingServer
from tests.remoting.harness import echo, on_both_loops, serving
from tests.waiting import until

REQUEST = RemotingCommand.request


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("broker-0.broker-headless:10911", ("broker-0.broker-headless", 10911)),
        ("[::1]:9876", ("::1", 9876)),
        (" a:1 ", ("a", 1)),
    ],
)
def test_addresses_are_parsed_and_formatted(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed
    assert host_of(address) == parsed[0]
    assert format_address(*parsed) == address.strip()


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:b", "a:65536", "a:-1", "a:٣"])
def test_malformed_address_is_rejected(address: str) -> None:
    with pytest.raises(ConnectError):
        parse_address(address)
    assert host_of(address) == ""


def test_address_lists_are_parsed() -> None:
    assert parse_address_list(" a:1; b:2,c:3;;") == ["a:1", "b:2", "c:3"]


@on_both_loops
async def test_client_reaches_an_address_at_its_mapped_address() -> None:
    async with serving({1: echo}) as (_, address):
        client = RemotingClient(reached_at={"broker-0:10911": address})
        answer = await client.invoke("broker-0:10911", REQUEST(1, body=b"x"), 60_000)
        assert answer.body == b"x"
        connection = client.connection("broker-0:10911")
        assert connection is not None and connection.address == "broker-0:10911"
        await client.close()


@on_both_loops
async def test_concurrent_callers_share_one_connection() -> None:
    async with serving({1: echo}) as (server, address):
        client = RemotingClient()
        answers = await asyncio.gather(
            *(client.invoke(address, REQUEST(1, body=b"%d" % i), 60_000) for i in range(50))
        )
        assert [a.body for a in answers] == [b"%d" % i for i in range(50)]
        assert len(server.connections) == 1
        await client.close()


@on_both_loops
async def test_cancelled_caller_does_not_end_a_shared_dial() -> None:
    async with serving({1: echo}) as (_, address):
        client = RemotingClient()
        first = asyncio.ensure_future(client.connect(address))
        second = asyncio.ensure_future(client.connect(address))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).is_open
        with pytest.raises(asyncio.CancelledError):
            await first
        await client.close()


@on_both_loops
async def test_caller_cancelled_with_its_dial_is_cancelled() -> None:
    """The end of a loop cancels every task. Whoever connects in a loop of retries has to end."""
    async with serving({1: echo}) as (_, address):
        client = RemotingClient()
        caller = asyncio.ensure_future(client.connect(address))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await client.close()


@on_both_loops
async def test_closing_client_fails_waiting_dials() -> None:
    async with serving({1: echo}) as (_, address):
        client = RemotingClient()
        caller = asyncio.ensure_future(client.connect(address))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectError, match="this client was closed"):
            await caller


@on_both_loops
async def test_host_name_is_resolved_at_every_connect() -> None:
    async with serving({1: echo}) as (server, _):
        client = RemotingClient()
        requested = []
        resolve = dialling.addresses_of

        async def watched(host: str, port: int) -> Any:
            requested.append(host)
            return await resolve(host, port)

        address = f"localhost:{server.port}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dialling, "addresses_of", watched)
            for _ in range(2):
                assert (await client.invoke(address, REQUEST(1), 60_000)).code == 0
                (await client.connect(address)).close()
                await until(lambda: client.connection(address) is None)
        assert requested == ["localhost", "localhost"]
        await client.close()


@on_both_loops
async def test_ipv6_address_is_served() -> None:
    server = RemotingServer({1: echo})
    try:
        await server.start("::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    client = RemotingClient()
    answer = await client.invoke(f"[::1]:{server.port}", REQUEST(1), 60_000)
    assert answer.code == 0
    connection = client.connection(f"[::1]:{server.port}")
    assert connection is not None
    assert connection.peer_address == f"[::1]:{server.port}"
    await client.close()
    await server.stop()


@on_both_loops
async def test_connect_without_a_listener_reports_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        client = RemotingClient()
        with pytest.raises(ConnectError) as caught:
            await client.invoke(address, REQUEST(1), 60_000)
        assert str(caught.value) == f"connecting to {address}: Connection refused"
        assert caught.value.retriable
        assert not caught.value.outcome_unknown
        with pytest.raises(ConnectError):
            await client.invoke_oneway(address, REQUEST(1))
        with pytest.raises(ConnectError):
            await client.invoke("nonsense", REQUEST(1))
        await client.close()


@on_both_loops
async def test_connect_has_a_time_limit_and_respects_the_callers() -> None:
    """A listener whose queue is full takes no further connection, and says nothing."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        fill = [socket.socket() for _ in range(3)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        client = RemotingClient(connect_timeout_ms=150)
        with pytest.raises(SendTimeout) as caught:
            await client.invoke(address, REQUEST(1), 20)
        assert not caught.value.outcome_unknown
        with pytest.raises(ConnectError, match="no answer in 150 ms"):
            await client.connect(address)
        patient = RemotingClient(connect_timeout_ms=3_600_000)
        dialling = asyncio.ensure_future(patient.connect(address))
        await asyncio.sleep(0)
        await patient.close()
        with pytest.raises(ConnectError):
            await dialling
        await client.close()
        for one in fill:
            one.close()


@on_both_loops
async def test_client_connections_are_limited() -> None:
    async with serving({1: echo}) as (_, first), serving({1: echo}) as (_, second):
        client = RemotingClient(connections_max=1)
        connection = await client.connect(first)
        with pytest.raises(TooManyRequests):
            await client.connect(second)
        connection.close()
        await until(lambda: client.connection(first) is None)
        await client.close()


@on_both_loops
async def test_new_connection_is_dialled_while_the_old_one_closes() -> None:
    async with serving({1: echo}) as (_, address):
        client = RemotingClient()
        old = await client.connect(address)
        old.close("test")
        new = await client.connect(address)
        assert new is not old
        await old.wait_closed()
        assert client.connection(address) is new
        await client.close()
        assert not new.is_open


@on_both_loops
async def test_closing_client_fails_waiting_requests() -> None:
    def silent(connection: Connection, request: RemotingCommand) -> None:
        return None

    async with serving({1: silent}) as (_, address):
        client = RemotingClient()
        connection = await client.connect(address)
        wait = asyncio.ensure_future(client.invoke(address, REQUEST(1), 3_600_000))
        await until(lambda: connection.outstanding == 1)
        await client.close()
        with pytest.raises(ConnectionLost):
            await wait
        with pytest.raises(ConnectError):
            await client.connect(address)
