"""The challenge of two replicas: who has the secret passes, nobody else does."""

import random

import pytest

from raftmq.dledger.transport.proof import (
    CHALLENGE_SIZE_BYTES_MAX,
    Accepting,
    Claim,
    Dialling,
    ProofError,
    Purpose,
    Secret,
)

SECRET = Secret(b"the secret of this group")
OTHER = Secret(b"the secret of another one")
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


def test_who_has_the_secret_passes_on_both_sides() -> None:
    one, other = dialling(), accepting()
    challenge, answer, proof, counter_proof, end = converse(one, other)
    assert one.done and other.done
    assert other.claim == CLAIM
    assert (len(answer), len(proof), len(counter_proof), end) == (37, 32, 32, b"")
    assert not other.plain and not one.rest and not other.rest
    assert all(b"the secret" not in said for said in (challenge, answer, proof, counter_proof))


def test_one_byte_at_a_time_it_is_the_same() -> None:
    one, other = dialling(), accepting()
    to_other, to_one = one.opening, b""
    while to_other or to_one:
        replies = [other.receive_data(to_other[at : at + 1]) for at in range(len(to_other))]
        to_other, to_one = b"", b"".join(replies)
        replies = [one.receive_data(to_one[at : at + 1]) for at in range(len(to_one))]
        to_one, to_other = b"", b"".join(replies)
    assert one.done and other.done


def test_what_comes_behind_the_last_proof_is_for_whom_the_connection_is() -> None:
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    one.receive_data(other.receive_data(proof) + b"first words")
    assert one.rest == b"first words"


def test_another_secret_is_refused_and_the_acceptor_proves_nothing_to_it() -> None:
    one, other = dialling(OTHER), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="another secret"):
        other.receive_data(proof)
    assert not other.done


def test_an_acceptor_with_another_secret_is_refused() -> None:
    one, other = dialling(), accepting(OTHER)
    one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="another secret"):
        one.receive_data(OTHER.proof(b"raftmq peer proof, acceptor\0", one._transcript))


def test_one_s_own_proof_sent_back_proves_nothing() -> None:
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError):
        one.receive_data(proof)
    with pytest.raises(ProofError, match="does not speak of proofs"):
        dialling().receive_data(one.opening)  # the challenge itself


def test_a_recorded_conversation_is_of_no_use() -> None:
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
def test_a_challenge_for_another_port_group_or_replica_gets_no_answer(claim: Claim) -> None:
    with pytest.raises(ProofError, match="means to reach"):
        accepting().receive_data(dialling(claim=claim).opening)


@pytest.mark.parametrize("said", [b"RMQP\x04", b"\0\0\0\0\0\0\0\0", b"GET /", b"RMQ!" * 99])
def test_who_begins_with_something_else_is_plain_and_nothing_of_it_is_lost(said: bytes) -> None:
    for size in (1, 3, len(said)):
        other, given = accepting(), 0
        while not other.plain:
            assert other.receive_data(said[given : given + size]) == b""
            given += size
        assert other.rest == said[: min(given, len(said))]


def test_made_up_bytes_never_pass_nor_raise_anything_else() -> None:
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


def test_bytes_before_their_time_end_it() -> None:
    with pytest.raises(ProofError, match="more before it has heard an answer"):
        accepting().receive_data(dialling().opening + b"hello")
    one, other = dialling(), accepting()
    proof = one.receive_data(other.receive_data(one.opening))
    with pytest.raises(ProofError, match="more before it has heard a proof"):
        other.receive_data(proof + b"hello")
    eager = dialling()
    with pytest.raises(ProofError, match="more before it has heard a proof"):
        eager.receive_data(accepting().receive_data(eager.opening) + b"hello")


def test_a_secret_is_long_enough_and_never_shown() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes") as raised:
        Secret(b"too short")
    assert "too short" not in str(raised.value)
    assert "secret of" not in f"{SECRET!r} {SECRET} {SECRET!s}"
