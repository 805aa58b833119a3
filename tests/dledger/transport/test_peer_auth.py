"""Links behind a gate: with the secret they come up, without it nothing is said or done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from raftmq.dledger.transport import peer_auth as gate_module
from raftmq.dledger.transport.link import LinkConfig
from raftmq.dledger.transport.network import PlainNetwork
from raftmq.dledger.transport.peer_auth import (
    CHALLENGE_SIZE_BYTES_MAX,
    HANDSHAKING_MAX,
    Accepting,
    Claim,
    Dialling,
    Gate,
    GuardedNetwork,
    ProofError,
    Purpose,
    Secret,
)
from raftmq.dledger.transport.wire import Hello, encode_hello, encode_identity, encode_message
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


async def test_replicas_with_the_same_secret_connect(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    await net.start("n1", config=config("n1"))
    await both_open(net)
    for own in ("n0", "n1"):
        seen = gate_of(net, own).admissions
        assert (seen.refused_count, seen.unproven_count) == (0, 0)


@pytest.mark.parametrize("theirs", [OTHER, None], ids=["another", "none"])
async def test_replica_without_the_peer_secret_gets_no_connection(
    net: Net, theirs: Secret | None
) -> None:
    await net.start("n0", config=config("n0"))
    await net.start("n1", config=config("n1", theirs))
    links, gate = net.links, gate_of(net, "n0")
    await until(lambda: bool(gate.admissions.refused_count and links["n0"].last_error("n1")))
    assert not net.seen["n0"].opened and not net.seen["n1"].opened
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
async def test_unproven_peer_gets_only_random_bytes(net: Net, opening: bytes) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(opening)
    heard = await said(reader)
    assert heard == b"" or (heard[:5] == b"RMQT\x01" and len(heard) == 37)  # random bytes
    assert not net.seen["n0"].messages
    assert gate_of(net, "n0").admissions.refused_count == 1
    writer.close()


async def test_peer_with_a_wrong_proof_gets_only_random_bytes(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(Dialling(OTHER, Claim(Purpose.RAFT, "g", "n1", "n0"), bytes(32)).opening)
    assert len(await reader.readexactly(37)) == 37
    writer.write(bytes(32))
    assert await said(reader) == b""
    writer.close()


async def test_silent_peer_is_closed_in_time_and_does_not_block_another(net: Net) -> None:
    await net.start("n0", config=config("n0", timeout_s=0.2))
    silent = [await raw(net) for _ in range(3)]
    silent[1][1].write(b"RMQS\x01\x01")  # and then nothing more
    for reader, writer in silent:
        assert await said(reader) == b""
        writer.close()
    await net.start("n1", config=config("n1"))
    await both_open(net)


async def test_oldest_silent_connection_is_closed_at_the_limit(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    silent = [await raw(net) for _ in range(HANDSHAKING_MAX + 1)]
    assert await said(silent[0][0]) == b""
    await net.start("n1", config=config("n1"))  # two connections more: each passes
    await both_open(net)
    assert gate_of(net, "n0").handshaking_count <= HANDSHAKING_MAX
    for _, writer in silent:
        writer.close()


async def test_plain_hello_in_single_bytes_is_accepted_in_accept_mode(net: Net) -> None:
    await net.start("n0", config=config("n0", accept=True))
    _, writer = await raw(net)
    hello = encode_hello(Hello("g", "n1", "n0")) + encode_identity(b"")
    hello += encode_message(beat("n1", "n0"))[0]
    for at in range(len(hello)):
        writer.write(hello[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0)
    a = net.seen["n0"]
    await a.until(lambda: a.messages == [beat("n1", "n0")])
    assert gate_of(net, "n0").admissions.unproven_count == 1
    writer.close()


def test_peer_auth_works_on_uvloop() -> None:
    async def scenario() -> None:
        net = Net(2)
        try:
            await net.start("n0", config=config("n0"))
            await net.start("n1", config=config("n1"))
            await both_open(net)
            reader, writer = await raw(net)
            writer.write(encode_hello(Hello("g", "n1", "n0")))
            assert await said(reader) == b""
            writer.close()
        finally:
            await net.close()

    uvloop.run(scenario())


@pytest.mark.parametrize("tls", [False, True])
async def test_connection_closed_over_tls_reports_a_possible_certificate_refusal(tls: bool) -> None:
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


async def test_cancelled_dial_closes_its_connection(net: Net) -> None:
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


async def test_stopped_gate_closes_unproven_connections(net: Net) -> None:
    await net.start("n0", config=config("n0"))
    reader, writer = await raw(net)
    writer.write(b"RMQS")
    await until(lambda: gate_of(net, "n0").handshaking_count > 0)
    await net.stop("n0")
    assert await said(reader) == b""
    writer.close()


async def test_gate_log_has_neither_the_secret_nor_received_bytes(
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


# -- the challenge and its proofs ------------------------------------------------------------------

CLAIM = Claim(Purpose.RAFT, "g", "n0", "n1")


def dialling(secret: Secret = SECRET, claim: Claim = CLAIM, number: int = 1) -> Dialling:
    return Dialling(secret, claim, bytes([number]) * 32)


def accepting(secret: Secret = SECRET, number: int = 2) -> Accepting:
    return Accepting(secret, Purpose.RAFT, "g", "n1", bytes([number]) * 32)


def converse(one: Dialling, other: Accepting) -> list[bytes]:
    """All that is said, the dialler's first."""
    said = [one.opening]
    for _ in range(2):
        said.append(other.receive_data(said[-1]))
        said.append(one.receive_data(said[-1]))
    return said


def test_mutual_proof_succeeds_with_the_same_secret() -> None:
    one, other = dialling(), accepting()
    challenge, answer, proof, counter_proof, end = converse(one, other)
    assert one.done and other.done
    assert other.claim == CLAIM
    assert (len(answer), len(proof), len(counter_proof), end) == (37, 32, 32, b"")
    assert not other.plain and not one.rest and not other.rest
    assert all(b"the secret" not in said for said in (challenge, answer, proof, counter_proof))


def test_mutual_proof_succeeds_with_single_bytes() -> None:
    one, other = dialling(), accepting()
    to_other, to_one = one.opening, b""
    while to_other or to_one:
        replies = [other.receive_data(to_other[at : at + 1]) for at in range(len(to_other))]
        to_other, to_one = b"", b"".join(replies)
        replies = [one.receive_data(to_one[at : at + 1]) for at in range(len(to_one))]
        to_one, to_other = b"", b"".join(replies)
    assert one.done and other.done


def test_bytes_after_the_last_proof_go_to_the_connection() -> None:
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    one.receive_data(other.receive_data(proof) + b"first words")
    assert one.rest == b"first words"


def test_acceptor_rejects_another_secret_and_sends_no_proof() -> None:
    one, other = dialling(OTHER), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="another secret"):
        other.receive_data(proof)
    assert not other.done


def test_dialler_rejects_an_acceptor_with_another_secret() -> None:
    one, other = dialling(), accepting(OTHER)
    one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="another secret"):
        one.receive_data(OTHER.proof(b"raftmq peer proof, acceptor\0", one._transcript))


def test_reflected_proof_is_rejected() -> None:
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError):
        one.receive_data(proof)
    with pytest.raises(ProofError, match="does not speak of proofs"):
        dialling().receive_data(one.opening)  # the challenge itself


def test_replayed_conversation_is_rejected() -> None:
    challenge, answer, proof, counter_proof, _ = converse(dialling(), accepting())
    later = accepting(number=3)
    later.receive_data(challenge)
    with pytest.raises(ProofError, match="another secret"):
        later.receive_data(proof)
    dials = dialling(number=4)
    dials.receive_data(answer)
    with pytest.raises(ProofError, match="another secret"):
        dials.receive_data(counter_proof)


@pytest.mark.parametrize(
    "claim",
    [
        Claim(Purpose.HA, "g", "n0", "n1"),
        Claim(Purpose.RAFT, "h", "n0", "n1"),
        Claim(Purpose.RAFT, "g", "n0", "n2"),
    ],
)
def test_challenge_for_another_port_group_or_replica_is_rejected(claim: Claim) -> None:
    with pytest.raises(ProofError, match="means to reach"):
        accepting().receive_data(dialling(claim=claim).opening)


@pytest.mark.parametrize("said", [b"RMQP\x04", b"\0\0\0\0\0\0\0\0", b"GET /", b"RMQ!" * 99])
def test_opening_without_a_challenge_is_plain_and_keeps_its_bytes(said: bytes) -> None:
    for size in (1, 3, len(said)):
        other, given = accepting(), 0
        while not other.plain:
            assert other.receive_data(said[given : given + size]) == b""
            given += size
        assert other.rest == said[: min(given, len(said))]


def test_random_bytes_never_pass_a_proof_and_raise_only_proof_errors() -> None:
    rng = random.Random(7)
    for _ in range(4_000):
        other = accepting()
        data = bytearray(dialling().opening)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(1, len(data) + 1)] + rng.randbytes(rng.choice((0, 0, 9, 900)))
        try:
            for at in range(0, len(data), 40):
                other.receive_data(bytes(data[at : at + 40]))
                assert len(other._buffer) <= CHALLENGE_SIZE_BYTES_MAX + 40 or other.plain
        except ProofError:
            pass
        assert not other.done
    for _ in range(2_000):
        one = dialling()
        answer = bytearray(accepting().receive_data(one.opening))
        answer[rng.randrange(len(answer))] ^= 1 << rng.randrange(8)
        try:
            one.receive_data(bytes(answer))
            one.receive_data(rng.randbytes(32))
        except ProofError:
            pass
        assert not one.done


def test_bytes_before_the_expected_step_are_rejected() -> None:
    with pytest.raises(ProofError, match="more before it has heard an answer"):
        accepting().receive_data(dialling().opening + b"hello")
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="more before it has heard a proof"):
        other.receive_data(proof + b"hello")
    eager = dialling()
    with pytest.raises(ProofError, match="more before it has heard a proof"):
        eager.receive_data(accepting().receive_data(eager.opening) + b"hello")


def test_short_secret_is_rejected_and_never_printed() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes") as raised:
        Secret(b"too short")
    assert "too short" not in str(raised.value)
    assert "secret of" not in f"{SECRET!r} {SECRET} {SECRET!s}"
