"""Peer authentication, by which both ends of a connection prove their group's secret.

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

The connection is then handed to its protocol as if it had just been made; before that none of that
protocol's data is sent or read. The dialler proves itself first. Without the secret it gets nothing
but random bytes. Both random numbers are in both proofs, so a recorded proof is useless in another
connection. The labels differ, so a proof sent back to its maker proves nothing. The names are in
it, so a proof for one replica, group or port is not accepted at another. Wrong bytes, and early
bytes, end the connection (ProofError), so at most one read and CHALLENGE_SIZE_BYTES_MAX are kept.
Unauthenticated connections are bounded in time, and in number. Beyond HANDSHAKING_MAX the oldest is
closed. Neither the secret nor bytes from a stranger are logged.

The proof does not protect the data that follows. After the proof an attacker with access to the
packets can read them, or hijack the connection. TLS protects against that.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from raftmq.ops.listening import Listening

from .network import Factory, Network, other_end

log = logging.getLogger("raftmq.dledger.transport.peer_auth")

HANDSHAKING_MAX = 64
HANDSHAKE_TIMEOUT_S = 3.0  # the limit of a dial with TLS (broker.replication.engine)
VERSION = 1
RANDOM_SIZE_BYTES = 32
PROOF_SIZE_BYTES = 32
SECRET_SIZE_BYTES_MIN = 16  # a recorded connection reveals a short secret
_CHALLENGE_MAGIC = b"RMQS"
_ANSWER_MAGIC = b"RMQT"
_CHALLENGE = struct.Struct(">4sBBBBB32s")
_ANSWER = struct.Struct(">4sB32s")
_DIALLER = b"raftmq peer proof, dialler\0"
_ACCEPTOR = b"raftmq peer proof, acceptor\0"
CHALLENGE_SIZE_BYTES_MAX = _CHALLENGE.size + 3 * 255
Connect = Callable[[Factory], Awaitable[asyncio.BaseProtocol]]


class ProofError(Exception):
    """The other end has not proven that it has the secret; the connection must end."""


class Purpose(IntEnum):
    RAFT = 1
    HA = 2


class Secret:
    """A group's secret. Its repr does not contain it, so no log or traceback can."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Raises ValueError if it is too short; the error does not contain it."""
        if len(value) < SECRET_SIZE_BYTES_MIN:
            raise ValueError(f"it must have at least {SECRET_SIZE_BYTES_MIN} bytes")
        self._value = value

    def proof(self, label: bytes, transcript: bytes) -> bytes:
        """Return the proof of the secret for a label and the bytes sent before."""
        return hmac.digest(self._value, label + transcript, "sha256")

    def proves(self, proof: bytes, label: bytes, transcript: bytes) -> bool:
        """Return whether `proof` is right, compared in constant time."""
        return hmac.compare_digest(proof, self.proof(label, transcript))

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a dialler: its id, the receiver's id, group and purpose."""

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
        self.answered = False  # the other end has answered the challenge
        self.done = False
        self.rest = b""  # the bytes behind the proof
        self._secret = secret
        self._transcript = b""
        self._buffer = b""

    def receive_data(self, data: bytes) -> bytes:
        """Handle data; return the bytes to send. Raises ProofError."""
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
    """The acceptor's side. If the other end sends something other than a challenge, `plain` is set
    and `rest` holds all its bytes."""

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
        """Handle data; return the bytes to send. Raises ProofError."""
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


class Unproven(ConnectionError):
    """The other end of a dial did not prove itself; the text has the reason."""


class Gate:
    """The gate of a port: `accepting` guards a listener, `dial` guards outgoing connections.
    `accept_unproven` admits diallers that send something other than a challenge, as the slaves of
    Apache's brokers do."""

    def __init__(
        self,
        secret: Secret,
        purpose: Purpose,
        group: str,
        node_id: str,
        *,
        accept_unproven: bool = False,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self.admissions = Admissions(accept_unproven)
        self._secret = secret
        self._purpose = purpose
        self._group = group
        self._node_id = node_id
        self._handshakes = _Handshakes(timeout_s)

    def accepting(self, factory: Factory) -> Factory:
        """Return a factory for a listener, by which the protocols of `factory` get only
        authenticated connections."""

        def arriving() -> _Arriving:
            random = secrets.token_bytes(RANDOM_SIZE_BYTES)
            side = Accepting(self._secret, self._purpose, self._group, self._node_id, random)
            return _Arriving(side, factory, self.admissions, self._handshakes)

        return arriving

    async def dial(self, connect: Connect, factory: Factory, receiver: str) -> asyncio.BaseProtocol:
        """Return a protocol of `factory`, connected to `receiver`, which has proven itself.
        `connect(factory)` makes a connection. Raises OSError; may be cancelled."""
        claim = Claim(self._purpose, self._group, self._node_id, receiver)
        side = Dialling(self._secret, claim, secrets.token_bytes(RANDOM_SIZE_BYTES))
        link = _Leaving(side, receiver, factory, self.admissions)
        try:
            await connect(lambda: link)
            return await link.passed
        except BaseException:
            link.abort()
            raise

    @property
    def handshaking_count(self) -> int:
        """Accepted connections that are not authenticated yet, at most HANDSHAKING_MAX."""
        return len(self._handshakes)

    def close(self) -> None:
        """Abort the accepted connections that are not authenticated."""
        self._handshakes.abort()


class Admissions:
    """Counts of the connections that a gate refused, or admitted without a proof."""

    def __init__(self, accepts_unproven: bool) -> None:
        self.accepts_unproven = accepts_unproven
        self.refused_count = 0
        self.unproven_count = 0

    def refuse(self, where: str, reason: str) -> None:
        """Count a connection that is closed because the other end gave no valid proof."""
        self.refused_count += 1
        if _is_due(self.refused_count):
            log.warning(
                "peer_not_proven from=%s total=%d reason=%s", where, self.refused_count, reason
            )

    def admit_unproven(self, where: str) -> None:
        """Count an accepted connection without a proof."""
        self.unproven_count += 1
        if _is_due(self.unproven_count):
            log.warning("peer_accepted_unproven from=%s total=%d", where, self.unproven_count)


class GuardedNetwork:
    """A `Network` behind a gate."""

    def __init__(self, network: Network, gate: Gate) -> None:
        self.inner = network
        self.gate = gate

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> Listening:
        accepting = self.gate.accepting(factory)
        return GuardedListening(await self.inner.listen(accepting, host, port, bound), self.gate)

    async def dial(self, factory: Factory, host: str, port: int, peer: str) -> asyncio.BaseProtocol:
        return await self.gate.dial(
            lambda made: self.inner.dial(made, host, port, peer), factory, peer
        )

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        return self.inner.doubt(transport, host)


class GuardedListening:
    def __init__(self, listening: Listening, gate: Gate) -> None:
        self.sockets = listening.sockets
        self._listening = listening
        self._gate = gate

    def close(self) -> None:
        self._listening.close()
        self._gate.close()

    async def wait_closed(self) -> None:
        await self._listening.wait_closed()
        self._gate.close()  # also connections accepted just before


class _Handshakes:
    """The accepted connections that are not authenticated yet, bounded in number and in time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timers: dict[_Arriving, asyncio.TimerHandle] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, connection: _Arriving) -> None:
        """Add a connection. It is refused after its time-out, or when too many newer connections
        arrive."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._timeout_s, connection.refuse, "it took too long")
        self._timers[connection] = timer
        if len(self._timers) > HANDSHAKING_MAX:
            next(iter(self._timers)).refuse("too many others came after it")

    def end(self, connection: _Arriving) -> None:
        """Remove a connection that is authenticated or closed. Idempotent."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def abort(self) -> None:
        for connection in list(self._timers):
            connection.abort()


class _Arriving(asyncio.Protocol):
    """An accepted connection before its authentication."""

    def __init__(
        self, side: Accepting, factory: Factory, admissions: Admissions, handshakes: _Handshakes
    ) -> None:
        self._side = side
        self._factory = factory
        self._admissions = admissions
        self._handshakes = handshakes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handshakes.start(self)

    def data_received(self, data: bytes) -> None:
        side, transport = self._side, self._transport
        if transport is None or transport.is_closing():
            return
        try:
            said = side.receive_data(data)
        except ProofError as error:
            self.refuse(str(error))
            return
        if said:
            transport.write(said)
        if side.plain and not self._admissions.accepts_unproven:
            self.refuse("it gives no proof")
        elif side.plain:
            self._admissions.admit_unproven(self._where)
            self._pass(transport)
        elif side.done:
            self._pass(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshakes.end(self)
        self._transport = None

    def refuse(self, reason: str) -> None:
        """Count this connection as refused, and abort it."""
        self._admissions.refuse(self._where, reason)
        self.abort()

    def abort(self) -> None:
        self._handshakes.end(self)
        if self._transport is not None:
            self._transport.abort()

    @property
    def _where(self) -> str:
        return other_end(self._transport)

    def _pass(self, transport: asyncio.Transport) -> None:
        self._handshakes.end(self)
        _hand_over(transport, self._factory(), self._side.rest)


class _Leaving(asyncio.Protocol):
    """A dialled connection before its authentication."""

    def __init__(
        self, side: Dialling, receiver: str, factory: Factory, admissions: Admissions
    ) -> None:
        self.passed: asyncio.Future[asyncio.BaseProtocol]
        self.passed = asyncio.get_running_loop().create_future()
        self._side = side
        self._receiver = receiver
        self._factory = factory
        self._admissions = admissions
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._side.opening)

    def data_received(self, data: bytes) -> None:
        side, transport = self._side, self._transport
        if transport is None or self.passed.done():
            return
        try:
            said = side.receive_data(data)
        except ProofError as error:
            self._admissions.refuse(self._receiver, str(error))
            self.passed.set_exception(Unproven(f"{self._receiver} did not prove itself: {error}"))
            self.abort()
            return
        if said:
            transport.write(said)
        if side.done:
            inner = self._factory()
            self.passed.set_result(inner)
            _hand_over(transport, inner, side.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if self.passed.done():
            return
        if self._side.answered:
            why = Unproven("closed at our proof: the other end has another secret")
        else:
            # With TLS 1.3 the handshake ends for a dialler before its certificate is checked.
            tls = transport is not None and transport.get_extra_info("ssl_object") is not None
            refuses = "refuses our certificate, or " if tls else ""
            why = Unproven(
                f"closed at our challenge: the other end {refuses}has no secret, or is another"
                " replica than the address in dLegerPeers is of"
            )
        self.passed.set_exception(why)

    def abort(self) -> None:
        if not self.passed.done():
            self.passed.cancel()
        elif not self.passed.cancelled():
            self.passed.exception()  # retrieved, even without a waiter
        if self._transport is not None:
            self._transport.abort()


def _hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass the connection to `protocol`, as if it had just been made."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data and not transport.is_closing():
        cast(asyncio.Protocol, protocol).data_received(data)


def _is_due(count: int) -> bool:
    """Return whether to log this occurrence (1, 2, 4, 8, …), so that the log is not flooded."""
    return count & (count - 1) == 0
