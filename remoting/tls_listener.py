"""A listener that accepts TLS, plain connections, or both on the same port.

The first byte of a connection decides and is only peeked at (MSG_PEEK): 0x16 is a ClientHello,
anything else a plain client. Then the event loop gets the socket, with or without TLS, so plain
connections cost no more per message than with an ordinary listener.

Limits: at most `arriving_max` connections may wait for their first byte or be in their handshake.
Above, the longest silent connection is closed after `grace_s`, or the longest handshake after
HANDSHAKE_GRACE_S; otherwise nothing is accepted until a connection is handed over or closed.
`patience_s` is the time-out for the first byte, and again for the handshake. A handshake takes
about a millisecond of the loop's time, so only `starts_per_turn` start per turn. Otherwise a
reconnect of all clients would delay, for example, a leader's heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raftmq.ops.keepalive import CLIENT_KEEPALIVE

from .connection import FROM_PEER
from .tls import Renewed, TlsMode, tls_reason

LOG = logging.getLogger("raftmq.remoting.tls")

CLIENT_HELLO = 0x16  # the first byte of a TLS handshake record
ACCEPTS_PER_TURN = 64
HANDSHAKE_GRACE_S = 3.0  # then a handshake may be closed for new connections
ACCEPT_PAUSE_S = 1.0  # if process or machine has no descriptors or memory
SOURCES_MAX = 1_024  # remembered sources, against floods of log lines
SILENCE_S = 60.0  # between two log lines of a source
PLAIN_ONLY = (
    "this port takes no TLS: switch TLS off at the client (Java: enableSsl(false)), or have this"
    " port take both (tlsServerMode=permissive, tlsServerCertPath)"
)
TLS_ONLY = (
    "this port takes TLS only: switch TLS on at the client, or have this port take both (mode"
    " permissive)"
)

Factory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class ArrivalLimits:
    """The limits described above, in seconds."""

    arriving_max: int = 1_024
    grace_s: float = 1.0  # genuine clients have sent their first byte by then
    patience_s: float = 10.0
    starts_per_turn: int = 8


@dataclass(slots=True)
class ArrivalCounts:
    """Counts of connections since the start."""

    tls: int = 0  # finished handshakes
    plain: int = 0
    plain_refused: int = 0  # enforcing
    failed: int = 0  # failed, slow or unsupported handshakes
    silent: int = 0  # closed without a first byte


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """The accepted kinds of connections, and the certificate. All listeners of a policy share its
    `counts`."""

    mode: TlsMode
    source: Renewed | None  # None: disabled
    limits: ArrivalLimits = ArrivalLimits()
    counts: ArrivalCounts = field(default_factory=ArrivalCounts)


@dataclass(eq=False, frozen=True, slots=True)
class _Arrival:
    """A connection before its first byte or during its handshake."""

    socket: socket.socket
    source: str  # the remote address without port
    since_s: float  # loop time


class TlsListener:
    def __init__(self, factory: Factory, policy: TlsPolicy) -> None:
        self.counts = policy.counts
        self.sockets: list[socket.socket] = []
        self._factory = factory
        self._policy = policy
        self._limits = policy.limits
        self._loop = asyncio.get_running_loop()
        self._silent: dict[_Arrival, asyncio.TimerHandle] = {}  # longest silent first
        self._waiting: deque[_Arrival] = deque()  # waiting for the start of their handshake
        self._tasks: dict[asyncio.Task[None], _Arrival] = {}
        self._accepting = False
        self._closed = False
        self._resume: asyncio.TimerHandle | None = None
        self._reported_s: dict[str, float] = {}  # source → time of the last log line

    @property
    def arriving(self) -> int:
        """Return the number of connections not handed over yet."""
        return len(self._silent) + len(self._waiting) + len(self._tasks)

    async def listen(
        self,
        host: str,
        port: int,
        *,
        bound: socket.socket | None = None,
        backlog: int = 1024,
    ) -> None:
        """Listen as loop.create_server does, on every address of `host` or on a bound socket.
        Raises OSError."""
        if bound is not None:
            bound.listen(backlog)
            self.sockets.append(bound)
        else:
            infos = await self._loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            try:
                for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
                    self.sockets.append(
                        socket.create_server(address, family=family, backlog=backlog)
                    )
            except OSError:
                self.close()
                raise
        for listener in self.sockets:
            listener.setblocking(False)
            CLIENT_KEEPALIVE.apply(listener)
        self._accept_again()

    def close(self) -> None:
        """Stop accepting, and close connections not handed over; `wait_closed` waits for them."""
        self._closed = True
        self._stop_accepting()
        if self._resume is not None:
            self._resume.cancel()
        for listener in self.sockets:
            listener.close()
        for silent in list(self._silent):
            self._forget(silent)
            silent.socket.close()
        while self._waiting:
            self._waiting.popleft().socket.close()
        for in_handshake in self._tasks.values():
            # Not cancelled, because uvloop would close the transport without connection_lost.
            # Instead the handshake fails, or the connection's owner closes it.
            _hang_up(in_handshake.socket)

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept_again(self) -> None:
        self._resume = None
        if not self._closed and not self._accepting:
            self._accepting = True
            for listener in self.sockets:
                self._loop.add_reader(listener, self._accept, listener)

    def _stop_accepting(self, for_s: float | None = None) -> None:
        """Stop until `_left` is called, for at most `for_s` (None for no limit)."""
        if self._accepting:
            self._accepting = False
            for listener in self.sockets:
                self._loop.remove_reader(listener)
        if for_s is not None:
            self._resume = self._loop.call_later(for_s, self._accept_again)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if not self._has_capacity():
                return
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                LOG.error("accept_failed: %s", error)
                self._stop_accepting(ACCEPT_PAUSE_S)
                return
            if self.arriving >= self._limits.arriving_max:
                self._abandon(next(iter(self._silent)))
            accepted.setblocking(False)
            self._arrive(_Arrival(accepted, str(address[0]), self._loop.time()))

    def _has_capacity(self) -> bool:
        """Return whether a further connection fits, perhaps in place of a silent connection.
        Otherwise pause accepting, and end the longest handshake if it is overdue."""
        if self.arriving < self._limits.arriving_max:
            return True
        now_s = self._loop.time()
        pauses_s = []
        if (silent := next(iter(self._silent), None)) is not None:
            pauses_s.append(silent.since_s + self._limits.grace_s - now_s)
            if pauses_s[0] <= 0:
                return True
        if (slow := next(iter(self._tasks.values()), None)) is not None:
            pauses_s.append(slow.since_s + HANDSHAKE_GRACE_S - now_s)
            if pauses_s[-1] <= 0:
                _hang_up(slow.socket)  # `_left` is called after its handshake failed
                pauses_s[-1] = HANDSHAKE_GRACE_S
        self._stop_accepting(min(pauses_s, default=None))
        return False

    def _left(self) -> None:
        """Accept again, after a connection was handed over or closed."""
        if self._closed or self._accepting:
            return
        if self._resume is not None:
            self._resume.cancel()
        self._accept_again()

    def _arrive(self, arrived: _Arrival) -> None:
        if self._distinguish(arrived):
            return
        self._silent[arrived] = self._loop.call_later(
            self._limits.patience_s, self._abandon, arrived
        )
        self._loop.add_reader(arrived.socket, self._spoke, arrived)

    def _spoke(self, arrived: _Arrival) -> None:
        self._forget(arrived)
        if not self._distinguish(arrived):
            self._arrive(arrived)  # a spurious wake-up
        self._left()

    def _distinguish(self, arrived: _Arrival) -> bool:
        """Handle a connection by its first byte; return False without a byte."""
        try:
            first = arrived.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            first = b""
        if not first:  # closed without data
            arrived.socket.close()
        elif first[0] == CLIENT_HELLO and self._policy.source is None:
            self.counts.failed += 1
            self._report(arrived, "tls_refused", self.counts.failed, PLAIN_ONLY)
            arrived.socket.close()
        elif first[0] == CLIENT_HELLO:
            self._waiting.append(arrived)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._start_some)
        elif self._policy.mode is TlsMode.ENFORCING:
            self.counts.plain_refused += 1
            self._report(arrived, "plain_refused", self.counts.plain_refused, TLS_ONLY)
            arrived.socket.close()
        else:
            self._start(arrived, None)
        return True

    def _abandon(self, silent: _Arrival) -> None:
        self.counts.silent += 1
        self._forget(silent)
        silent.socket.close()
        self._left()

    def _forget(self, silent: _Arrival) -> None:
        self._silent.pop(silent).cancel()
        self._loop.remove_reader(silent.socket)

    def _start_some(self) -> None:
        assert self._policy.source is not None
        for _ in range(min(len(self._waiting), self._limits.starts_per_turn)):
            self._start(self._waiting.popleft(), self._policy.source.context)
        if self._waiting:
            self._loop.call_soon(self._start_some)

    def _start(self, arrived: _Arrival, context: ssl.SSLContext | None) -> None:
        task = self._loop.create_task(self._hand_over(arrived, context))
        self._tasks[task] = arrived
        task.add_done_callback(self._handed_over)

    async def _hand_over(self, arrived: _Arrival, context: ssl.SSLContext | None) -> None:
        if context is None:
            await self._loop.connect_accepted_socket(self._factory, arrived.socket)
            self.counts.plain += 1
            return
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                arrived.socket,
                ssl=context,
                ssl_handshake_timeout=self._limits.patience_s,
            )
        except OSError as error:  # errors of TLS and of the connection
            self.counts.failed += 1
            if not self._closed:
                self._report(arrived, "handshake_failed", self.counts.failed, tls_reason(error))
            return
        self.counts.tls += 1

    def _handed_over(self, task: asyncio.Task[None]) -> None:
        arrived = self._tasks.pop(task)
        self._left()
        if not task.cancelled() and (error := task.exception()) is not None:
            arrived.socket.close()
            context = {"message": "a connection could not be handed over", "exception": error}
            self._loop.call_exception_handler(context)

    def _report(self, arrived: _Arrival, event: str, total: int, reason: str) -> None:
        """Log an event once per source and SILENCE_S."""
        source, now_s = arrived.source, self._loop.time()
        if now_s - self._reported_s.get(source, -SILENCE_S) < SILENCE_S:
            return
        self._reported_s.pop(source, None)
        if len(self._reported_s) >= SOURCES_MAX:
            del self._reported_s[next(iter(self._reported_s))]
        self._reported_s[source] = now_s
        LOG.warning("%s from=%s total=%d reason=%s", event, source, total, reason, extra=FROM_PEER)


def _hang_up(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the peer closed first


def listening_with(
    policy: TlsPolicy | None,
) -> Callable[[Factory, str, int, socket.socket | None], Awaitable[TlsListener]] | None:
    """Return a listen function with TLS for a server that has no TLS code; None for a plain
    listener."""
    if policy is None:
        return None

    async def listen(
        factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> TlsListener:
        listener = TlsListener(factory, policy)
        await listener.listen(host, port, bound=bound)
        return listener

    return listen
