"""Outbound links, with the `Dialer` of each peer, which keeps a connection up.

The `Network` makes connections, `Local.judge` decides whether the two groups may exchange messages.
Malformed data closes only its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from raftmq.ops.connect import within

from ..raft.config import Random
from ..raft.messages import NodeId
from .group_id import GroupIdentity, Meeting
from .link import Line, LinkConfig, LinkHandler, PeerAddress
from .peer_info_message import PeerInfo
from .wire import (
    Hello,
    HelloAnswer,
    WireError,
    decode_answer,
    decode_identity,
    encode_hello,
    encode_identity,
    encode_message,
)

log = logging.getLogger("raftmq.dledger.transport.transport")

ASK_AGAIN_MS = 2_000  # between dials of a peer for its group's id


@dataclass(frozen=True, slots=True)
class Local:
    """This end of every link of a replica, and the current dialers of its peers."""

    node_id: NodeId
    group: str
    address: PeerAddress
    config: LinkConfig
    identity: GroupIdentity
    dialers: dict[NodeId, Dialer] = field(default_factory=dict)

    def judge(self, line: Line, peer: NodeId, dialled: bool) -> str:
        """Return the reason why the two replicas' groups must disconnect, or ""."""
        own, dialer = self.address, self.dialers.get(peer)
        where = line.where
        if dialled and dialer is not None:
            where = f"{dialer.at.host}:{dialer.at.port}"
        meeting = Meeting(
            self.node_id,
            f"{own.host}:{own.port}",
            peer,
            where,
            line.group_id,
            dialled,
            alone=not self.dialers,
        )
        reason = self.identity.judge(meeting, now_ms())
        if reason and not self.identity.group_id and dialer is not None:
            dialer.ask_again()  # its id is taken from a connection dialled from here
        return reason


class Dialled(asyncio.Protocol):
    """The connection to a peer: hello, answer, group ids, and then only sends."""

    def __init__(
        self,
        local: Local,
        peer: NodeId,
        on_opened: Callable[[Dialled], None],
        on_closed: Callable[[Dialled], None],
    ) -> None:
        """`on_opened` is called when messages may be sent, `on_closed` when the connection ends."""
        self.line = Line()
        self._local = local
        self._peer = peer
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._opening = b""
        self.version = 0  # the agreed version; 0: no answer yet
        self.said: bytes | None = None  # the group id that was sent; None: none yet
        self._doubt = ""  # the reason for a refusal by this end
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self.line.made(transport, self._local.config)
        made.write(encode_hello(Hello(self._local.group, self._local.node_id, self._peer)))

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
            self.line.abort()
            return
        self.welcome.set_result(None)
        self._on_opened(self)

    def _receive_answers(self) -> bool:
        """Consume the peer's answers; return whether all are complete. Raises WireError if either
        end refuses. Our group id is sent before we close, so that both sides log the reason."""
        if not self.version:
            answer = self._take_answer()
            if answer is None:
                return False
            self.version = answer.version
        if self.said is None:
            theirs = decode_identity(self._opening)
            if theirs is None:
                return False
            self.line.group_id, size = theirs
            self._opening = self._opening[size:]
            assert self.line.transport is not None
            self.said = self._local.identity.group_id
            self.line.transport.write(encode_identity(self.said))
            self._doubt = self._local.judge(self.line, self._peer, True)
        return self._take_answer() is not None

    def _take_answer(self) -> HelloAnswer | None:
        """Return the answer, or None while it is incomplete. Raises WireError for a refusal."""
        decoded = decode_answer(self._opening)
        if decoded is None:
            return None
        answer, size = decoded
        if answer.reason or self._doubt:
            raise WireError(self._doubt or f"refused: {answer.reason}")
        self._opening = self._opening[size:]
        return answer

    def give_up(self) -> None:
        """Close the connection and treat it as lost. If a dial is cancelled before uvloop has
        reported its connection, the transport is closed but `connection_lost` is never called."""
        self.welcome.cancel()
        self.line.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.line.ended()
        if not self.welcome.done():
            why = self._doubt or "closed before the answer to the hello"
            self.welcome.set_exception(ConnectionError(why))
        self._on_closed(self)


class Dialer:
    """Keeps a connection to a peer up, by a task that it owns. With a `spare` address it dials the
    two in turns, `address` first."""

    def __init__(
        self, local: Local, address: PeerAddress, rng: Random, handler: LinkHandler
    ) -> None:
        self.address = self.at = address  # the configured address, and the last dialled address
        self.spare: PeerAddress | None = None
        self.transport: asyncio.Transport | None = None  # set while messages may go out
        self.connection: Dialled | None = None
        self.error = ""
        self.dropped = 0
        self._local = local
        self._handler = handler
        self._rng = rng
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ask_again_ms = 0.0  # not before
        self._logged: dict[PeerAddress, str] = {}  # why it was not reached, as logged

    @property
    def hosts(self) -> list[str]:
        addresses = (self.address, self.at, self.spare)
        return list(dict.fromkeys(address.host for address in addresses if address is not None))

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report the task's end unless it was cancelled, since any other end is a bug."""
        if not task.cancelled():
            error = task.exception()
            assert error is not None, "a dialler never returns"
            self._handler.on_failed(error)

    async def stop(self) -> None:
        """End the task. The caller closes an open connection."""
        self.transport = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def cut(self) -> None:
        self.transport = None
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.line.abort()

    def retire(self) -> None:
        """Stop dialling and reporting, and close the connection after its buffered data."""
        self.transport = None
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.line.close()

    @property
    def is_over(self) -> bool:
        """True if a retired dialer has nothing left to wait for."""
        return self.connection is None and (self._task is None or self._task.done())

    def hurry(self) -> None:
        """Dial now instead of waiting for the back-off to end."""
        self._wake.set()

    def ask_again(self) -> None:
        """Dial the peer again if it now has a group id and had none when it was dialled, since an
        id counts only on a dialled connection. At most every ASK_AGAIN_MS, because a stranger may
        dial in under the peer's name."""
        at_ms = now_ms()
        connection = self.connection
        if self.transport is None or connection is None or connection.line.group_id:
            self.hurry()
        elif at_ms >= self._ask_again_ms:
            self._ask_again_ms = at_ms + ASK_AGAIN_MS
            connection.line.abort()

    def announce(self) -> None:
        """Announce this end's group id if that changed since the connection's handshake."""
        connection, known = self.connection, self._local.identity.group_id
        if connection is None or self.transport is None or connection.said == known:
            return
        connection.said = known
        message = PeerInfo(self._local.node_id, self.address.node_id, group_id=known)
        self.transport.writelines(encode_message(message))

    def _opened(self, connection: Dialled) -> None:
        self.transport = connection.line.transport
        self.error = ""
        self._logged.clear()
        self.announce()
        self._handler.on_opened(self.address.node_id)

    def _closed(self, connection: Dialled) -> None:
        was_open = self.transport is not None and self.transport is connection.line.transport
        if self.connection is connection:
            self.connection = None
        if was_open:
            self.transport = None
            self._handler.on_closed(self.address.node_id)

    async def _run(self) -> None:
        config = self._local.config
        backoff_ms = config.backoff_ms_min
        while True:
            try:
                connection = await self._connect()
            except (OSError, WireError) as error:  # TimeoutError is an OSError
                self._failed(error)
            else:
                opened_ms = now_ms()
                await connection.line.lost
                # A peer that accepts connections only to close them is not dialled faster.
                if now_ms() - opened_ms >= config.backoff_ms_max:
                    backoff_ms = config.backoff_ms_min
            self._wake.clear()
            delay_s = backoff_ms / 1000 * (0.5 + self._rng.random() / 2)
            backoff_ms = min(2 * backoff_ms, config.backoff_ms_max)
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the back-off is over, which is the usual case

    async def _connect(self) -> Dialled:
        """Connect at the next address. Raises OSError, WireError."""
        try:
            return await _welcomed(self._local, self._turn(), self._dialled)
        except BaseException:
            if self.connection is not None:
                self.connection.give_up()
            raise

    def _turn(self) -> PeerAddress:
        failed = bool(self.error) and self.at == self.address
        self.at = self.spare if failed and self.spare is not None else self.address
        return self.at

    def _dialled(self) -> Dialled:
        peer = self.address.node_id
        self.connection = Dialled(self._local, peer, self._opened, self._closed)
        return self.connection

    def _failed(self, error: OSError | WireError) -> None:
        text = str(error) or type(error).__name__
        if self.at != self.address:
            text += f" (at {self.at.host}:{self.at.port}, as this replica's configuration says)"
        if text != self._logged.get(self.at):  # once per reason, not once per attempt
            log.warning("peer_unreachable peer=%s reason=%s", self.address.node_id, text)
        self._logged[self.at] = self.error = text


async def _welcomed(local: Local, address: PeerAddress, make: Callable[[], Dialled]) -> Dialled:
    """Resolve, connect and complete the handshake within the time-out. Raises OSError, WireError;
    the caller gives up the connection then."""
    config = local.config
    async with within(config.connect_timeout_ms):
        connection = await config.network.dial(make, address.host, address.port, address.node_id)
        assert isinstance(connection, Dialled), connection
        await connection.welcome
        return connection


async def why_not_at(local: Local, address: PeerAddress) -> str:
    """Return why a replica is not reached here, or "", by a connection closed at once."""
    made: list[Dialled] = []

    def dialled() -> Dialled:
        made.append(Dialled(local, address.node_id, lambda _: None, lambda _: None))
        return made[-1]

    try:
        await _welcomed(local, address, dialled)
    except (OSError, WireError) as error:  # TimeoutError is an OSError
        return str(error) or type(error).__name__
    finally:
        for connection in made:
            connection.give_up()
    return ""


def now_ms() -> float:
    """Return the time of the loop's clock, in milliseconds."""
    return asyncio.get_running_loop().time() * 1000
