"""The gate before a replica's ports and dials: no connection passes unless both ends have proven
that they have the group's secret (proof.py). Shell.

When both ends have proven themselves the connection is handed to its protocol as if it had just
been made; before that none of that protocol's data is sent or read. Connections that are still
proving themselves are bounded in time, and in number: beyond HANDSHAKING_MAX the oldest one is
closed. Neither the secret nor what others sent in its place is logged.

An older program knows no proofs. For an upgrade from one, a gate with `accept_unproven` accepts
peers that begin with something other than a challenge, and dials again without a challenge if a
peer answered the challenge by closing the connection. Each is counted and, seldom, logged.
`Admissions.enforce` ends that for good (peer_auth_enforcement.py says when).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from raftmq.ops.listening import Listening

from .network import Factory, Network, other_end
from .proof import (
    RANDOM_SIZE_BYTES,
    Accepting,
    Claim,
    Dialling,
    ProofError,
    Purpose,
    Secret,
)

log = logging.getLogger("raftmq.dledger.transport.peer_auth")

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
        self.admissions = Admissions(accept_unproven)
        self._secret = secret
        self._purpose = purpose
        self._group = group
        self._node_id = node_id
        self._handshakes = _Handshakes(timeout_s)

    def accepting(self, factory: Factory) -> Factory:
        """Return a factory for a listener: the protocols of `factory` get only connections that
        have passed."""

        def arriving() -> _Arriving:
            random = secrets.token_bytes(RANDOM_SIZE_BYTES)
            side = Accepting(self._secret, self._purpose, self._group, self._node_id, random)
            return _Arriving(side, factory, self.admissions, self._handshakes)

        return arriving

    async def dial(self, connect: Connect, factory: Factory, receiver: str) -> asyncio.BaseProtocol:
        """Return the protocol that `factory` made, connected to `receiver`, which has proven itself
        (or is taken without proof). `connect(factory)` makes a connection. Raises OSError; may be
        cancelled."""
        claim = Claim(self._purpose, self._group, self._node_id, receiver)
        side = Dialling(self._secret, claim, secrets.token_bytes(RANDOM_SIZE_BYTES))
        link = _Leaving(side, receiver, factory, self.admissions)
        try:
            await connect(lambda: link)
            return await link.passed
        except _Unanswered as error:
            if not self.admissions.accepts_unproven:
                raise
            self.admissions.dials_unproven(receiver, error)
        except BaseException:
            link.abort()
            raise
        protocol = await connect(lambda: _Unchallenged(factory(), self.admissions))
        assert isinstance(protocol, _Unchallenged), protocol
        return protocol.inner

    def close(self) -> None:
        """Abort the accepted connections that have not passed yet."""
        self._handshakes.abort()


class Admissions:
    """Notes the peers that a gate let pass or refused, and whether a proof is demanded of them."""

    def __init__(self, accepts_unproven: bool) -> None:
        self.accepts_unproven = accepts_unproven
        self.proven: set[str] = set()  # the nodes proven to this one, in either direction
        self.refused_count = 0
        self.taken_count = self.dialled_count = 0  # connections without a proof
        self._unproven: list[asyncio.Transport] = []

    @property
    def unproven_count(self) -> int:
        """How many connections were taken, or made, without a proof."""
        return self.taken_count + self.dialled_count

    def enforce(self) -> None:
        """Let nobody pass without a proof from now on, and close the connections that did."""
        self.accepts_unproven = False
        for transport in self._unproven:
            transport.abort()
        self._unproven.clear()

    def passes(self, node_id: str) -> None:
        """Note that this node has proven itself."""
        if len(self.proven) < NAMES_MAX:
            self.proven.add(node_id)

    def refuses(self, where: str, reason: str) -> None:
        """Count a connection that is closed because the other end gave no valid proof."""
        self.refused_count += 1
        if _is_due(self.refused_count):
            log.warning(
                "peer_not_proven from=%s total=%d reason=%s", where, self.refused_count, reason
            )

    def takes_unproven(self, transport: asyncio.Transport, where: str) -> None:
        """Count and keep an accepted connection that passes without a proof."""
        self.keep_unproven(transport)
        self.taken_count += 1
        if _is_due(self.taken_count):
            log.warning("peer_taken_unproven from=%s total=%d", where, self.taken_count)

    def dials_unproven(self, receiver: str, why: Exception) -> None:
        """Count a peer that is dialled again without a challenge."""
        self.dialled_count += 1
        if _is_due(self.dialled_count):
            text = "peer_dialled_unproven peer=%s total=%d %s"
            log.warning(text, receiver, self.dialled_count, why)

    def keep_unproven(self, transport: asyncio.Transport) -> None:
        """Keep a connection without a proof, for `enforce` to close."""
        self._unproven = [t for t in self._unproven if not t.is_closing()]
        self._unproven.append(transport)


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
        self.sockets = listening.sockets
        self._listening = listening
        self._gate = gate

    def close(self) -> None:
        self._listening.close()
        self._gate.close()

    async def wait_closed(self) -> None:
        await self._listening.wait_closed()
        self._gate.close()  # what was accepted just before, too


class _Handshakes:
    """The accepted connections that have not passed yet, bounded in number and in time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timers: dict[_Arriving, asyncio.TimerHandle] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def begin(self, connection: _Arriving) -> None:
        """Add a connection: it is refused when its time is over, or too many come after it."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._timeout_s, connection.refuse, "it took too long")
        self._timers[connection] = timer
        if len(self._timers) > HANDSHAKING_MAX:
            next(iter(self._timers)).refuse("too many others came after it")

    def end(self, connection: _Arriving) -> None:
        """Remove a connection that passed or is closed; it may be removed already."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def abort(self) -> None:
        """Abort them all."""
        for connection in list(self._timers):
            connection.abort()


class _Arriving(asyncio.Protocol):
    """A connection that was accepted and has not passed yet."""

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
        self._handshakes.begin(self)

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
            self._admissions.takes_unproven(transport, self._where)
            self._pass(transport)
        elif side.done:
            assert side.claim is not None
            self._admissions.passes(side.claim.sender)
            self._pass(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshakes.end(self)
        self._transport = None

    def refuse(self, reason: str) -> None:
        """Count this connection as refused, and abort it."""
        self._admissions.refuses(self._where, reason)
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
    """A connection that was dialled and has not passed yet."""

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
            self._admissions.refuses(self._receiver, str(error))
            self.passed.set_exception(Unproven(f"{self._receiver} did not prove itself: {error}"))
            self.abort()
            return
        if said:
            transport.write(said)
        if side.done:
            self._admissions.passes(self._receiver)
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
            # With TLS 1.3 a dialler is through before its certificate is judged.
            tls = transport is not None and transport.get_extra_info("ssl_object") is not None
            refuses = "refuses our certificate, or " if tls else ""
            text = (
                f"closed at our challenge: the other end {refuses}has no secret, or an older"
                " program, or is another replica than the address in dLegerPeers is of"
            )
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

    def __init__(self, inner: asyncio.Protocol, admissions: Admissions) -> None:
        self.inner = inner
        self._admissions = admissions

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admissions.keep_unproven(cast(asyncio.Transport, transport))
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
