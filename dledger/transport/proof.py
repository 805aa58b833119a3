"""Lets two replicas prove to each other that they have their group's secret, before anything else
is sent. Pure: bytes in, bytes out; the random numbers are handed in.

    challenge  dialler → acceptor    off size field
                                     0   4    magic "RMQS"
                                     4   1    version 1
                                     5   1    purpose: 1 Raft's links, 2 the HA stream
                                     6   1    length of the group's name
                                     7   1    length of the sender's id
                                     8   1    length of the receiver's id
                                     9   32   the dialler's random bytes
                                     41  n    group, sender, receiver, UTF-8
    answer     acceptor → dialler    magic "RMQT", version 1, the acceptor's 32 random bytes
    proof      dialler → acceptor    32: HMAC-SHA-256(secret, "…dialler" | challenge | answer)
    proof      acceptor → dialler    32: HMAC-SHA-256(secret, "…acceptor" | challenge | answer)

After that the connection is used as if it had just been made. The dialler proves itself first: a
dialler without the secret gets nothing but random bytes, whatever it sends. Both random numbers are
in both proofs, so a recorded proof is of no use in another connection; the labels differ, so a
proof sent back to its maker proves nothing; and the names are in it, so a proof for one replica,
group or port is not accepted at another. Wrong bytes, and bytes too early, end the connection
(ProofError); so no more than one read and CHALLENGE_SIZE_BYTES_MAX are ever kept.

It does not protect what follows: an attacker who can change packets between two replicas can take
over their connection after the proof, and one who can read them reads everything. TLS protects
against that.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

VERSION = 1
RANDOM_SIZE_BYTES = 32
PROOF_SIZE_BYTES = 32
SECRET_SIZE_BYTES_MIN = 16  # anyone who has seen one connection can guess a short one
_CHALLENGE_MAGIC = b"RMQS"
_ANSWER_MAGIC = b"RMQT"
_CHALLENGE = struct.Struct(">4sBBBBB32s")
_ANSWER = struct.Struct(">4sB32s")
_DIALLER = b"raftmq peer proof, dialler\0"
_ACCEPTOR = b"raftmq peer proof, acceptor\0"
CHALLENGE_SIZE_BYTES_MAX = _CHALLENGE.size + 3 * 255


class ProofError(Exception):
    """The other end has not proven that it has the secret; the connection must end."""


class Purpose(IntEnum):
    """The use of a connection."""

    RAFT = 1
    HA = 2


class Secret:
    """A group's secret. Its repr does not contain it, so that no log or traceback can."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Raises ValueError if it is too short; the error does not contain it."""
        if len(value) < SECRET_SIZE_BYTES_MIN:
            raise ValueError(f"it must have at least {SECRET_SIZE_BYTES_MIN} bytes")
        self._value = value

    def proof(self, label: bytes, transcript: bytes) -> bytes:
        """Return the proof that one knows the secret, for a label and the bytes said so far."""
        return hmac.digest(self._value, label + transcript, "sha256")

    def proves(self, proof: bytes, label: bytes, transcript: bytes) -> bool:
        """Return whether `proof` is right, compared in constant time."""
        return hmac.compare_digest(proof, self.proof(label, transcript))

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a dialler: its id, the id of the replica that it dials, group and purpose."""

    purpose: Purpose
    group: str
    sender: str
    receiver: str


class Dialling:
    """The dialler's side: `opening` must be sent first."""

    def __init__(self, secret: Secret, claim: Claim, random: bytes) -> None:
        assert len(random) == RANDOM_SIZE_BYTES, len(random)
        names = [name.encode() for name in (claim.group, claim.sender, claim.receiver)]
        for name in names:
            assert 0 < len(name) <= 255, name
        head = (_CHALLENGE_MAGIC, VERSION, claim.purpose, *map(len, names), random)
        self.opening = _CHALLENGE.pack(*head) + b"".join(names)
        self.answered = False  # the other end knows what a challenge is
        self.done = False
        self.rest = b""  # the bytes behind the proof
        self._secret = secret
        self._transcript = b""
        self._buffer = b""

    def receive_data(self, data: bytes) -> bytes:
        """Take data; return the bytes to send in return. Raises ProofError."""
        self._buffer += data
        if not self.answered:
            _check_magic(self._buffer, _ANSWER_MAGIC)
            if len(self._buffer) < _ANSWER.size:
                return b""
            answer, self._buffer = self._buffer[: _ANSWER.size], self._buffer[_ANSWER.size :]
            if self._buffer:
                raise ProofError("it says more before it has heard a proof")
            self.answered = True
            self._transcript = self.opening + answer
            return self._secret.proof(_DIALLER, self._transcript)
        if len(self._buffer) >= PROOF_SIZE_BYTES and not self.done:
            proof, self.rest = self._buffer[:PROOF_SIZE_BYTES], self._buffer[PROOF_SIZE_BYTES:]
            if not self._secret.proves(proof, _ACCEPTOR, self._transcript):
                raise ProofError("its proof is wrong: it has another secret")
            self.done = True
        return b""


class Accepting:
    """The acceptor's side. `plain`: the other end began with something other than a challenge;
    `rest` then holds all that it sent."""

    def __init__(
        self, secret: Secret, purpose: Purpose, group: str, node_id: str, random: bytes
    ) -> None:
        assert len(random) == RANDOM_SIZE_BYTES, len(random)
        self.claim: Claim | None = None  # not proven before `done`
        self.done = False
        self.plain = False
        self.rest = b""
        self._secret = secret
        self._expected = (purpose, group, node_id)
        self._answer = _ANSWER.pack(_ANSWER_MAGIC, VERSION, random)
        self._transcript = b""
        self._buffer = b""

    def receive_data(self, data: bytes) -> bytes:
        """Take data; return the bytes to send in return. Raises ProofError."""
        self._buffer += data
        if self.claim is None:
            if self._buffer[:4] != _CHALLENGE_MAGIC[: len(self._buffer)]:
                self.plain, self.rest = True, self._buffer
                return b""
            return self._take_challenge()
        if len(self._buffer) >= PROOF_SIZE_BYTES and not self.done:
            proof, self.rest = self._buffer[:PROOF_SIZE_BYTES], self._buffer[PROOF_SIZE_BYTES:]
            if not self._secret.proves(proof, _DIALLER, self._transcript):
                raise ProofError("its proof is wrong: it has another secret")
            if self.rest:
                raise ProofError("it says more before it has heard a proof")
            self.done = True
            return self._secret.proof(_ACCEPTOR, self._transcript)
        return b""

    def _take_challenge(self) -> bytes:
        _check_magic(self._buffer, _CHALLENGE_MAGIC)
        if len(self._buffer) < _CHALLENGE.size:
            return b""
        _, _, purpose, group, sender, receiver, _ = _CHALLENGE.unpack_from(self._buffer)
        if not (group and sender and receiver):
            raise ProofError("its challenge has an empty name")
        end = _CHALLENGE.size + group + sender + receiver
        if len(self._buffer) < end:
            return b""
        if len(self._buffer) > end:
            raise ProofError("it says more before it has heard an answer")
        names = self._buffer[_CHALLENGE.size : end]
        try:
            texts = names[:group].decode(), names[group:-receiver].decode()
            claim = Claim(Purpose(purpose), *texts, names[-receiver:].decode())
        except ValueError as error:  # UnicodeDecodeError is one
            raise ProofError(f"its challenge cannot be read: {error}") from error
        if (claim.purpose, claim.group, claim.receiver) != self._expected:
            raise ProofError(f"it means to reach {claim.receiver!r} of {claim.group!r}")
        self.claim = claim
        self._transcript = self._buffer + self._answer
        self._buffer = b""
        return self._answer


def _check_magic(data: bytes, magic: bytes) -> None:
    """Refuse at the first wrong byte of magic and version."""
    if data[:4] != magic[: len(data)]:
        raise ProofError("it does not speak of proofs")
    if len(data) > 4 and data[4] != VERSION:
        raise ProofError(f"its proofs are of version {data[4]}, this program knows {VERSION}")
