"""The gate before a replica's ports and dials: no connection passes unless both ends have proven
that they have the group's secret (proof.py). Shell.

When both ends have proven themselves the connection is handed to its protocol as if it had just
been made; before that none of that protocol's data is sent or read. Connections that are still
proving themselves are bounded in time, and in number: beyond HANDSHAKING_MAX the oldest one is
closed. Neither the secret nor what others sent in its place is logged.

An older program knows no proofs. For an upgrade from one, a gate with `accept_unproven` accepts
peers that begin with something other than a challenge, and dials again without a challenge if a
peer answered the challenge by closing the connection. Each is counted and, seldom, logged.
`enforce` ends that for good (enforcement.py says when).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from raftmq.dledger.network import Factory, Listening, Network
from raftmq.dledger.proof import (
    RANDOM_SIZE_BYTES,
    Accepting,
    Claim,
    Dialling,
    ProofError,
    Purpose,
    Secret,
)

log = logging.getLogger("raftmq.dledger.gate")

HANDSHAKING_MAX = 64
HANDSHAKE_TIMEOUT_S = 3.0  # a dial with TLS takes no longer (broker.replication.engine)
NAMES_MAX = 64  # of proven nodes; more than a group ever has

Connect = Callable[[Factory], Awaitable[asyncio.BaseProtocol]]


class Unproven(ConnectionError):
    """The other end of a dial did not prove itself; the text says why."""


class _Unanswered(Unproven):
    """The other end closed the connection instead of answering the challenge, as an older program
    does."""


class Gate:
    """The gate of one port: `accepting` guards a listener, `dial` guards outgoing connections."""

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
        self.accepts_unproven = accept_unproven
        self.timeout_s = timeout_s
        self.proven: set[str] = set()  # the nodes proven to this one, in either direction
        self.refused_count = 0
        self.unproven_count = 0  # connections that were taken, or made, without a proof
        self._secret = secret
        self._purpose = purpose
        self._group = group
        self._node_id = node_id
        self._handshaking: dict[_Arriving, None] = {}  # the oldest first
        self._unproven: list[asyncio.Transport] = []

    def accepting(self, factory: Factory) -> Factory:
        """Return a factory for a listener: the protocols of `factory` get only connections that
        have passed."""
        return lambda: _Arriving(self, factory)

    async def dial(self, connect: Connect, factory: Factory, receiver: str) -> asyncio.BaseProtocol:
        """Return the protocol that `factory` made, connected to `receiver`, which has proven itself
        (or is taken without proof). `connect(factory)` makes a connection. Raises OSError; may be
        cancelled."""
        claim = Claim(self._purpose, self._group, self._node_id, receiver)
        link = _Leaving(self, factory, claim)
        try:
            await connect(lambda: link)
            return await link.passed
        except _Unanswered as error:
            if not self.accepts_unproven:
                raise
            self.unproven_count += 1
            if _is_due(self.unproven_count):
                log.warning(
                    "peer_dialled_unproven peer=%s total=%d %s",
                    receiver,
                    self.unproven_count,
                    error,
                )
        except BaseException:
            link.abort()
            raise
        protocol = await connect(lambda: _Unchallenged(self, factory))
        assert isinstance(protocol, _Unchallenged), protocol
        return protocol.inner

    def enforce(self) -> None:
        """Let nobody pass without a proof from now on, and close the connections that did."""
        self.accepts_unproven = False
        for transport in self._unproven:
            transport.abort()
        self._unproven.clear()

    def close(self) -> None:
        """Abort the accepted connections that have not passed yet."""
        for arriving in list(self._handshaking):
            arriving.abort()

    # -- for the connections below --

    def accept(self) -> Accepting:
        random = secrets.token_bytes(RANDOM_SIZE_BYTES)
        return Accepting(self._secret, self._purpose, self._group, self._node_id, random)

    def challenge(self, claim: Claim) -> Dialling:
        return Dialling(self._secret, claim, secrets.token_bytes(RANDOM_SIZE_BYTES))

    def arrived(self, connection: _Arriving) -> None:
        self._handshaking[connection] = None
        if len(self._handshaking) > HANDSHAKING_MAX:
            next(iter(self._handshaking)).refuse("too many others came after it")

    def left(self, connection: _Arriving) -> None:
        self._handshaking.pop(connection, None)

    def passes(self, claim_of: str) -> None:
        if len(self.proven) < NAMES_MAX:
            self.proven.add(claim_of)

    def note_unproven(self, transport: asyncio.Transport) -> None:
        self._unproven = [t for t in self._unproven if not t.is_closing()]
        self._unproven.append(transport)

    def take_unproven(self, transport: asyncio.Transport, where: str) -> None:
        self.note_unproven(transport)
        self.unproven_count += 1
        if _is_due(self.unproven_count):
            log.warning("peer_taken_unproven from=%s total=%d", where, self.unproven_count)

    def note_refused(self, where: str, reason: str) -> None:
        self.refused_count += 1
        if _is_due(self.refused_count):
            log.warning(
                "peer_not_proven from=%s total=%d reason=%s", where, self.refused_count, reason
            )


class GuardedNetwork:
    """A `Network` with a gate before it."""

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
    """A listener that closes its gate with itself."""

    def __init__(self, listening: Listening, gate: Gate) -> None:
        self._listening = listening
        self._gate = gate

    def close(self) -> None:
        self._listening.close()
        self._gate.close()

    async def wait_closed(self) -> None:
        await self._listening.wait_closed()


class _Arriving(asyncio.Protocol):
    """A connection that was accepted and has not passed yet."""

    def __init__(self, gate: Gate, factory: Factory) -> None:
        self._gate = gate
        self._factory = factory
        self._side = gate.accept()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._gate.timeout_s, self.refuse, "it took too long")
        self._gate.arrived(self)

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
        if side.plain and not self._gate.accepts_unproven:
            self.refuse("it gives no proof")
        elif side.plain:
            self._gate.take_unproven(transport, self._where)
            self._end()
            _hand_over(transport, self._factory(), side.rest)
        elif side.done:
            assert side.claim is not None
            self._gate.passes(side.claim.sender)
            self._end()
            _hand_over(transport, self._factory(), side.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._transport = None

    @property
    def _where(self) -> str:
        name = self._transport and self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple | list) else str(name)

    def refuse(self, reason: str) -> None:
        self._gate.note_refused(self._where, reason)
        self.abort()

    def abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self._gate.left(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Leaving(asyncio.Protocol):
    """A connection that was dialled and has not passed yet."""

    def __init__(self, gate: Gate, factory: Factory, claim: Claim) -> None:
        self.passed: asyncio.Future[asyncio.BaseProtocol]
        self.passed = asyncio.get_running_loop().create_future()
        self._gate = gate
        self._factory = factory
        self._claim = claim
        self._side = gate.challenge(claim)
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
            receiver = self._claim.receiver
            self._gate.note_refused(receiver, str(error))
            self.passed.set_exception(Unproven(f"{receiver} did not prove itself: {error}"))
            self.abort()
            return
        if said:
            transport.write(said)
        if side.done:
            self._gate.passes(self._claim.receiver)
            inner = self._factory()
            self.passed.set_result(inner)
            _hand_over(transport, inner, side.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.passed.done():
            return
        if self._side.answered:
            why = Unproven("closed at our proof: the other end has another secret")
        else:
            text = "closed at our challenge: the other end has no secret, or an older program"
            why = _Unanswered(text)
        self.passed.set_exception(why)

    def abort(self) -> None:
        if not self.passed.done():
            self.passed.cancel()
        elif not self.passed.cancelled():
            self.passed.exception()  # seen, whether or not anybody still waits for it
        if self._transport is not None:
            self._transport.abort()


class _Unchallenged(asyncio.Protocol):
    """A connection that was dialled again, without a challenge."""

    def __init__(self, gate: Gate, factory: Factory) -> None:
        self.inner = factory()
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gate.note_unproven(cast(asyncio.Transport, transport))
        _hand_over(cast(asyncio.Transport, transport), self.inner, b"")


def _hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give the connection to `protocol`, which sees it as if it had just been made."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data and not transport.is_closing():
        cast(asyncio.Protocol, protocol).data_received(data)


def _is_due(count: int) -> bool:
    """Return whether to log this one: at 1, 2, 4, 8, …, so that the log is not flooded."""
    return count & (count - 1) == 0
