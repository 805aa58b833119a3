"""The connections of a replica's links: those that peers dial, those that it dials, and the
`Dialer` that keeps the latter up. Shell.

The owner (peers.py) decides which messages pass and which peers are welcome; the `Network` decides
how a connection is made. Malformed data closes the connection it came over, and does nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from raftmq.dledger.gate import Gate
from raftmq.dledger.identity import GroupIdentity
from raftmq.dledger.messages import NodeId
from raftmq.dledger.network import FROM_PEER, Network, PlainNetwork, tune
from raftmq.dledger.state import Random
from raftmq.dledger.wire import (
    GROUP_ID_VERSION,
    Hello,
    HelloAnswer,
    PeerMessage,
    WireError,
    decode_answer,
    decode_hello,
    decode_identity,
    encode_answer,
    encode_hello,
    encode_identity,
    spoken,
)

log = logging.getLogger("raftmq.dledger.peers")

HELLO_SIZE_BYTES_MAX = 1024  # more than the longest hello: 8 + 3 * 255 + 4
ASK_AGAIN_MS = 2_000  # at least between two new dials of one peer for its group's id


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a replica listens for its peers. `host` is a name or an address, not resolved here."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Settings of the links: time-outs in milliseconds, limits in bytes."""

    backoff_ms_min: int = 20
    backoff_ms_max: int = 500
    connect_timeout_ms: int = 1_000  # resolve, connect and hello together
    unacknowledged_ms_max: int = 2_000  # after that TCP gives up: its own back-off is far longer
    send_buffer_bytes_max: int = 32 << 20  # 4 times what the core keeps in flight to a peer
    listen_host: str | None = None  # None: the host of this node's own entry among the peers
    network: Network = field(default_factory=PlainNetwork)
    gate: Gate | None = None  # the one before `network`


class LinkHandler(Protocol):
    """Receives the links' events. Called on the loop, directly from the connection's callbacks."""

    def on_messages(self, messages: list[PeerMessage]) -> None:
        """Take all messages of one read, in order, all from one peer."""

    def on_opened(self, peer: NodeId) -> None:
        """Note that messages to `peer` go out from now on."""

    def on_closed(self, peer: NodeId) -> None:
        """Note that an established connection to or from `peer` was lost."""

    def on_failed(self, error: BaseException) -> None:
        """Note that a bug ended the task that keeps a link up."""


class Reader(Protocol):
    """Splits the bytes of one peer's connection into messages, as `wire.MessageReader` does."""

    def receive_data(self, data: bytes) -> list[Any]:
        """Return all messages that `data` completes. Raises WireError: the connection is then
        closed."""
        ...


class Owner(Protocol):
    """The links that a connection belongs to, as the connection sees them."""

    node_id: NodeId
    group: str
    config: LinkConfig
    handler: LinkHandler
    identity: GroupIdentity
    make_reader: Callable[[NodeId, NodeId], Reader]
    refused: int

    def refusal(self, hello: Hello, transport: asyncio.BaseTransport) -> str:
        """Return why a dialler is not welcome; empty if it is."""
        ...

    def judge(self, connection: Connection, peer: NodeId, dialled: bool) -> str:
        """Return why the two replicas' groups forbid them to talk; empty if they may."""
        ...

    def announce(self, connection: Dialled, peer: NodeId) -> None:
        """Tell a peer this end's group id if that changed since the connection's handshake."""
        ...

    def accepted_opened(self, connection: Accepted) -> bool:
        """Count a new connection; return False if it is one too many."""
        ...

    def accepted_welcome(self, connection: Accepted, peer: NodeId) -> None:
        """Note that the connection brings messages of `peer` from now on."""
        ...

    def accepted_lost(self, connection: Accepted) -> None: ...

    def report_closed(self, peer: NodeId) -> None: ...


class Connection(asyncio.Protocol):
    """The part common to both ends: the transport, and a future that is done when it is closed."""

    def __init__(self, links: Owner) -> None:
        self.links = links
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.group_id = b""  # of the other end; empty: not known

    @property
    def where(self) -> str:
        """The other end's address."""
        name = self.transport and self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple | list) else str(name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tune(self.transport, self.links.config.unacknowledged_ms_max)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Accepted(Connection):
    """A connection that a peer dialled: brings the peer's hello, then its messages."""

    def __init__(self, links: Owner) -> None:
        super().__init__(links)
        self.peer: NodeId | None = None
        self._hello: Hello | None = None
        self._reader: Reader | None = None
        self._opening = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.links.accepted_opened(self):
            self.links.refused += 1
            self.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.links.config.connect_timeout_ms / 1000, self.abort)

    def data_received(self, data: bytes) -> None:
        try:
            if self._reader is None:
                data = self._receive_hello(data)
            if self._reader is not None and data:
                messages = self._reader.receive_data(data)
                if messages:
                    self.links.handler.on_messages(messages)
        except WireError as error:
            self.links.refused += 1
            where = self.peer or self.where
            log.warning("peer_refused from=%s reason=%s", where, error.reason, extra=FROM_PEER)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        self.links.accepted_lost(self)

    def _receive_hello(self, data: bytes) -> bytes:
        """Consume the hello and the dialler's group id; return the bytes behind them. Raises
        WireError if they are malformed."""
        self._opening += data
        assert self.transport is not None
        if self._hello is None:
            decoded = decode_hello(self._opening)
            if decoded is None:
                if len(self._opening) > HELLO_SIZE_BYTES_MAX:
                    raise WireError("a hello that does not end")
                return b""
            hello, size = decoded
            self._opening = self._opening[size:]
            if not self._answer(hello, self.links.refusal(hello, self.transport)):
                return b""
            self._hello = hello
            if spoken(hello) < GROUP_ID_VERSION:
                return self._welcome(hello)
            self.transport.write(encode_identity(self.links.identity.group_id))
        said = decode_identity(self._opening)
        if said is None:
            return b""
        self.group_id, size = said
        self._opening = self._opening[size:]
        if not self._answer(self._hello, self.links.judge(self, self._hello.sender, False)):
            return b""
        return self._welcome(self._hello)

    def _answer(self, hello: Hello, reason: str) -> bool:
        """Answer the hello: a refusal if there is a `reason`. Return whether it is a welcome."""
        assert self.transport is not None
        self.transport.write(encode_answer(HelloAnswer(reason, spoken(hello))))
        if reason:
            self.links.refused += 1
            if not self.group_id:  # otherwise `judge` has logged it if that was due
                log.warning("peer_refused from=%s reason=%s", self.where, reason, extra=FROM_PEER)
            self.transport.close()  # not abort: the reason shall arrive
        return not reason

    def _welcome(self, hello: Hello) -> bytes:
        self._stop_timer()
        rest, self._opening = self._opening, b""
        self.peer = hello.sender
        self._reader = self.links.make_reader(hello.sender, self.links.node_id)
        self.links.accepted_welcome(self, hello.sender)
        return rest

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Dialled(Connection):
    """The connection to a peer: sends a hello, receives the answer, exchanges group ids, and from
    then on only sends."""

    def __init__(self, links: Owner, dialer: Dialer) -> None:
        super().__init__(links)
        self._dialer = dialer
        self._opening = b""
        self.version = 0  # of the protocol, as agreed; 0: not answered yet
        self.said: bytes | None = None  # the group id this end sent; None: nothing sent yet
        self._doubt = ""  # why this end does not want to talk
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self._dialer.connection = self
        hello = Hello(self.links.group, self.links.node_id, self._dialer.address.node_id)
        self.transport.write(encode_hello(hello))

    def data_received(self, data: bytes) -> None:
        self._opening += data
        try:
            if self.welcome.done():
                raise WireError("the peer speaks on a connection that is ours to speak on")
            if not self._receive_answers():
                return
            if self._opening:
                raise WireError("the answer to the hello does not end")
        except WireError as error:
            if not self.welcome.done():
                self.welcome.set_exception(error)
            self.abort()
            return
        self.welcome.set_result(None)
        self._dialer.opened(self)

    def _receive_answers(self) -> bool:
        """Consume the peer's answers; return whether all are there. Raises WireError if either end
        refuses the other. Our group id is sent before we close, so that both sides log the
        reason."""
        if not self.version:
            answer = self._take_answer()
            if answer is None:
                return False
            self.version = answer.version
            if self.version < GROUP_ID_VERSION:
                return True
        if self.said is None:
            theirs = decode_identity(self._opening)
            if theirs is None:
                return False
            self.group_id, size = theirs
            self._opening = self._opening[size:]
            assert self.transport is not None
            self.said = self.links.identity.group_id
            self.transport.write(encode_identity(self.said))
            self._doubt = self.links.judge(self, self._dialer.address.node_id, True)
        return self._take_answer() is not None

    def _take_answer(self) -> HelloAnswer | None:
        """Return the answer, None while it is incomplete. Raises WireError for a refusal."""
        decoded = decode_answer(self._opening)
        if decoded is None:
            return None
        answer, size = decoded
        if answer.reason or self._doubt:
            raise WireError(self._doubt or f"refused: {answer.reason}")
        self._opening = self._opening[size:]
        return answer

    def give_up(self) -> None:
        """Close the connection and treat it as lost at once: if a dial is cancelled before uvloop
        has reported its connection, the transport is closed but `connection_lost` is never
        called."""
        self.welcome.cancel()
        self.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.welcome.done():
            why = self._doubt or "closed before the answer to the hello"
            self.welcome.set_exception(ConnectionError(why))
        self._dialer.closed(self)


class Dialer:
    """Keeps one connection to one peer up, by a task that it owns."""

    def __init__(self, links: Owner, address: PeerAddress, rng: Random) -> None:
        self.address = address
        self.transport: asyncio.Transport | None = None  # set while messages may go out
        self.connection: Dialled | None = None
        self.error = ""
        self.dropped = 0
        self.version = 0
        self._links = links
        self._rng = rng
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ask_again_ms = 0.0  # not before

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report the task's end unless it was cancelled: any other end is a bug."""
        if not task.cancelled():
            error = task.exception()
            assert error is not None, "a dialler never returns"
            self._links.handler.on_failed(error)

    async def stop(self) -> None:
        """End the task. The caller closes the open connection, if there is one."""
        self.transport = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def cut(self) -> None:
        """Abort the connection and stop dialling."""
        self.transport = None
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.abort()

    def retire(self) -> None:
        """Stop dialling and reporting, and close the connection once what waits has been sent."""
        self.transport = None
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.close()

    @property
    def is_over(self) -> bool:
        """True if a retired dialer has nothing left to wait for."""
        return self.connection is None and (self._task is None or self._task.done())

    def hurry(self) -> None:
        """Dial now instead of waiting for the back-off to end."""
        self._wake.set()

    def ask_again(self) -> None:
        """Dial the peer anew if it now knows its group's id and did not when it was dialled: its id
        is believed only on a connection dialled from here. At most every ASK_AGAIN_MS, because
        somebody else may dial in under the peer's name."""
        at_ms = now_ms()
        connection = self.connection
        if self.transport is None or connection is None or connection.group_id:
            self.hurry()
        elif at_ms >= self._ask_again_ms:
            self._ask_again_ms = at_ms + ASK_AGAIN_MS
            connection.abort()

    def opened(self, connection: Dialled) -> None:
        self.transport = connection.transport
        self.version = connection.version
        self.error = ""
        self._links.announce(connection, self.address.node_id)
        self._links.handler.on_opened(self.address.node_id)

    def closed(self, connection: Dialled) -> None:
        was_open = self.transport is not None and self.transport is connection.transport
        if self.connection is connection:
            self.connection = None
        if was_open:
            self.transport = None
            self._links.report_closed(self.address.node_id)

    async def _run(self) -> None:
        config = self._links.config
        backoff_ms = config.backoff_ms_min
        while True:
            try:
                connection = await self._connect()
            except (OSError, WireError) as error:  # TimeoutError is an OSError
                self._failed(error)
            else:
                backoff_ms = config.backoff_ms_min
                await connection.lost
            self._wake.clear()
            delay_s = backoff_ms / 1000 * (0.5 + self._rng.random() / 2)
            backoff_ms = min(2 * backoff_ms, config.backoff_ms_max)
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the back-off is over: the usual case

    async def _connect(self) -> Dialled:
        """Resolve, connect and be welcomed, all within the time-out. Raises OSError, WireError."""
        network = self._links.config.network
        try:
            async with asyncio.timeout(self._links.config.connect_timeout_ms / 1000):
                connection = await network.dial(
                    lambda: Dialled(self._links, self),
                    self.address.host,
                    self.address.port,
                    self.address.node_id,
                )
                assert isinstance(connection, Dialled), connection
                await connection.welcome
                return connection
        except BaseException:
            if self.connection is not None:
                self.connection.give_up()
            raise

    def _failed(self, error: OSError | WireError) -> None:
        text = str(error) or type(error).__name__
        if text != self.error:  # once per reason, not once per attempt
            log.warning("peer_unreachable peer=%s reason=%s", self.address.node_id, text)
        self.error = text


def now_ms() -> float:
    """Return the time of the loop's clock, in milliseconds."""
    return asyncio.get_running_loop().time() * 1000
