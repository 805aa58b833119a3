"""Links behind a gate: with the secret they come up, without it nothing is said or done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from raftmq.dledger.transport import peer_auth as gate_module
from raftmq.dledger.transport.link import LinkConfig
from raftmq.dledger.transport.network import PlainNetwork
from raftmq.dledger.transport.peer_auth import HANDSHAKING_MAX, Gate, GuardedNetwork
from raftmq.dledger.transport.proof import Claim, Dialling, Purpose, Secret
from raftmq.dledger.transport.wire import Hello, encode_hello, encode_message
from tests.dledger.transport.test_group_id import until
from tests.dledger.transport.test_transport import Net, beat

SECRET = Secret(b"the secret of this group")
OTHER = Secret(b"the secret of another one")


def config(
    node: str, secret: Secret | None = SECRET, accept: bool = False, timeout_s: float = 30
) -> LinkConfig:
    if secret is None:
        return LinkConfig()
    gate = Gate(secret, Purpose.RAFT, "g", node, accept_unproven=accept, timeout_s=timeout_s)
    network = GuardedNetwork(PlainNetwork(), gate)
    return LinkConfig(connect_timeout_ms=30_000, network=network, gate=gate)


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    made = Net(2)
    yield made
    await made.close()


async def raw(net: Net, node: str = "n0") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", net.peers[node].port)


async def said(reader: asyncio.StreamReader) -> bytes:
    """All that comes before the connection ends."""
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""


def gate_of(net: Net, node: str) -> Gate:
    gate = net.links[node].local.config.gate
    assert gate is not None
    return gate


async def both_open(net: Net) -> None:
    a, b = net.seen["n0"], net.seen["n1"]
    await a.until(lambda: "n1" in a.opened)
    await b.until(lambda: "n0" in b.opened)
    assert net.links["n0"].send("n1", encode_message(beat("n0", "n1")), droppable=False)
    await b.until(lambda: b.messages == [beat("n0", "n1")])


async def test_replicas_that_have_the_secret_talk(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    await net.start("n1", config=config("n1"))
    await both_open(net)
    for own, other in (("n0", "n1"), ("n1", "n0")):
        seen = gate_of(net, own).admissions
        assert (seen.proven, seen.refused_count, seen.unproven_count) == ({other}, 0, 0)


@pytest.mark.parametrize("theirs", [OTHER, None], ids=["another", "none"])
async def test_a_replica_without_the_secret_gets_no_link(net: Net, theirs: Secret | None) -> None:
    await net.start("n0", config=config("n0"))
    await net.start("n1", config=config("n1", theirs))
    links, gate = net.links, gate_of(net, "n0")
    await until(lambda: bool(gate.admissions.refused_count and links["n0"].last_error("n1")))
    assert not net.seen["n0"].opened and not net.seen["n1"].opened
    assert not gate.admissions.proven
    assert ("another secret" if theirs else "our challenge") in links["n0"].last_error("n1")


@pytest.mark.parametrize(
    "opening",
    [
        encode_hello(Hello("g", "n1", "n0")) + encode_message(beat("n1", "n0"))[0],
        Dialling(OTHER, Claim(Purpose.RAFT, "g", "n1", "n0"), bytes(32)).opening + bytes(32),
        Dialling(SECRET, Claim(Purpose.HA, "g", "n1", "n0"), bytes(32)).opening,
        b"\x16\x03\x01\x02\x00",
        bytes(1 << 20),
    ],
    ids=["hello", "wrong proof", "another port", "TLS", "zeros"],
)
async def test_a_stranger_hears_nothing(net: Net, opening: bytes) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(opening)
    heard = await said(reader)
    assert heard == b"" or (heard[:5] == b"RMQT\x01" and len(heard) == 37)  # random bytes
    assert not net.seen["n0"].messages
    assert gate_of(net, "n0").admissions.refused_count == 1
    writer.close()


async def test_random_bytes_are_all_that_a_wrong_proof_gets(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(Dialling(OTHER, Claim(Purpose.RAFT, "g", "n1", "n0"), bytes(32)).opening)
    assert len(await reader.readexactly(37)) == 37
    writer.write(bytes(32))
    assert await said(reader) == b""
    writer.close()


async def test_who_is_silent_is_closed_in_time_and_who_is_not_passes_meanwhile(net: Net) -> None:
    await net.start("n0", config=config("n0", timeout_s=0.2))
    silent = [await raw(net) for _ in range(3)]
    silent[1][1].write(b"RMQS\x01\x01")  # and then nothing more
    for reader, writer in silent:
        assert await said(reader) == b""
        writer.close()
    await net.start("n1", config=config("n1"))
    await both_open(net)


async def test_beyond_the_bound_the_oldest_silent_one_gives_way(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    silent = [await raw(net) for _ in range(HANDSHAKING_MAX + 1)]
    assert await said(silent[0][0]) == b""
    await net.start("n1", config=config("n1"))  # two connections more: each passes
    await both_open(net)
    assert len(gate_of(net, "n0")._handshakes) <= HANDSHAKING_MAX
    for _, writer in silent:
        writer.close()


async def test_on_the_way_an_older_program_is_taken_and_dialled(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    await net.start("n0", config=config("n0", accept=True))
    await net.start("n1", config=LinkConfig())
    await both_open(net)
    gate = gate_of(net, "n0")
    assert not gate.admissions.proven
    assert gate.admissions.unproven_count >= 2
    assert "peer_taken_unproven" in caplog.text
    assert "peer_dialled_unproven" in caplog.text
    a = net.seen["n0"]
    gate.admissions.enforce()  # ends what is there, and lets nobody in
    await a.until(lambda: len(a.closed) >= 2)
    reader, writer = await raw(net)
    writer.write(encode_hello(Hello("g", "n1", "n0")))
    assert await said(reader) == b""
    writer.close()


async def test_a_plain_hello_in_pieces_loses_nothing_on_the_way(net: Net) -> None:
    await net.start("n0", config=config("n0", accept=True))
    _, writer = await raw(net)
    hello = encode_hello(Hello("g", "n1", "n0", 3)) + encode_message(beat("n1", "n0"))[0]
    for at in range(len(hello)):
        writer.write(hello[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0)
    a = net.seen["n0"]
    await a.until(lambda: a.messages == [beat("n1", "n0")])
    writer.close()


def test_on_uvloop_it_is_the_same() -> None:
    async def scenario(accept: bool) -> None:
        net = Net(2)
        try:
            await net.start("n0", config=config("n0", accept=accept))
            await net.start("n1", config=LinkConfig() if accept else config("n1"))
            await both_open(net)
            gate_of(net, "n0").admissions.enforce()
            reader, writer = await raw(net)
            writer.write(encode_hello(Hello("g", "n1", "n0")))
            assert await said(reader) == b""
            writer.close()
        finally:
            await net.close()

    uvloop.run(scenario(accept=False))
    uvloop.run(scenario(accept=True))


@pytest.mark.parametrize("tls", [False, True])
async def test_who_hangs_up_over_tls_may_have_refused_the_certificate(tls: bool) -> None:
    """With TLS 1.3 a dialler learns of it after the handshake, as the end of the connection."""

    async def hang_up(factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        link = factory()
        link.connection_made(Mute({"ssl_object": object()} if tls else {}))
        link.connection_lost(None)
        return link

    with pytest.raises(ConnectionError) as raised:
        await Gate(SECRET, Purpose.RAFT, "g", "n0").dial(hang_up, asyncio.Protocol, "n1")
    assert ("refuses our certificate" in str(raised.value)) == tls


class Mute(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_a_dial_that_is_given_up_leaves_nothing_open(net: Net) -> None:
    closed = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await said(reader)
        closed.set()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gate = Gate(SECRET, Purpose.RAFT, "g", "n0")
    network = GuardedNetwork(PlainNetwork(), gate)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(network.dial(asyncio.Protocol, "127.0.0.1", port, "n1"), 0.1)
    await asyncio.wait_for(closed.wait(), 60)
    server.close()
    await server.wait_closed()


async def test_stopping_closes_who_has_not_passed(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(b"RMQS")
    await until(lambda: bool(gate_of(net, "n0")._handshakes))
    await net.stop("n0")
    assert await said(reader) == b""
    writer.close()


async def test_the_log_does_not_say_the_secret_nor_what_strangers_send(
    net: Net, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_is_due", lambda count: True)
    await net.start("n0", config=config("n0"))
    for opening in (b"what a stranger says", bytes(50)):
        reader, writer = await raw(net)
        writer.write(opening)
        await said(reader)
        writer.close()
    assert "peer_not_proven" in caplog.text
    assert "stranger says" not in caplog.text and "secret of" not in caplog.text
