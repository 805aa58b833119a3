"""Limits of an HTTP server's connections, requests, streams and bytes of bodies.

Ordinary requests, event streams and bytes of bodies have separate limits. Each account, or address
of callers without an account, gets a share of each limit (`ops.fairness`). Requests and streams
leave a quarter of the connections free, and a full server closes an idle connection for a new one.
Health and metrics have no limit, so they are always answered.

A connection is accepted when its client has shown a valid token or session, or without tokens with
its first request. A connection that is not accepted is a stranger. Idle strangers are closed after
some seconds, and strangers are closed first when there are too many connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from raftmq.ops.fairness import Evictor, SharedLimit

from .problem import busy

STREAMS_MAX = 64
STREAM_SHARE = 0.5  # of the free streams; an account alone gets 21 of 64
REQUEST_SHARE = 1.0
BODIES_SHARE = 1.0


@dataclass(eq=False, slots=True)
class Tracked:
    """One open connection."""

    handler: RequestHandler
    last_active_s: float  # of the connection's start, or its last request's start or end
    account: str = ""
    has_account: bool = False
    is_busy: bool = False

    @property
    def is_open(self) -> bool:
        transport = self.handler.transport
        return transport is not None and not transport.is_closing()

    @property
    def holder(self) -> str:
        return self.account or address_of(self.handler)


@dataclass(slots=True)
class _Request:
    """A request in progress, and the amounts that it has taken of limits."""

    holder: str
    grants: list[tuple[SharedLimit, str, int]] = field(default_factory=list)


class Admission:
    """The limits and connections of a server. `with_tokens` means that callers show a token."""

    def __init__(self, connections_max: int, bodies_bytes_max: int, *, with_tokens: bool) -> None:
        self.requests = SharedLimit(max(1, connections_max // 2), REQUEST_SHARE)
        self.streams = SharedLimit(max(1, min(STREAMS_MAX, connections_max // 4)), STREAM_SHARE)
        self.bodies = SharedLimit(bodies_bytes_max, BODIES_SHARE)
        self._connections_max = connections_max
        self._with_tokens = with_tokens
        self._requests: dict[int, _Request] = {}  # by the request's identity
        self._tracked: dict[RequestHandler, Tracked] = {}
        self._evictor: Evictor[Tracked] = Evictor(with_accounts=True)

    def opened(self, handler: RequestHandler, now_s: float) -> None:
        """Add a new connection."""
        tracked = self._tracked[handler] = Tracked(handler, now_s)
        self._evictor.added(tracked)

    def evict(self) -> RequestHandler | None:
        """Return the connection to close for a new one; None if all have requests in progress."""
        chosen = self._evictor.choose(self._connections_max)
        return None if chosen is None else chosen.handler

    def idle_strangers(
        self, live: Sequence[RequestHandler], now_s: float, idle_s: float
    ) -> list[RequestHandler]:
        """Return the strangers without a request for `idle_s`, and drop closed connections."""
        for handler in self._tracked.keys() - set(live):
            self._evictor.removed(self._tracked.pop(handler))
        return [
            handler
            for handler, one in self._tracked.items()
            if not one.has_account and not one.is_busy and one.last_active_s <= now_s - idle_s
        ]

    def record_request(self, request: web.BaseRequest, now_s: float) -> None:
        """Register the start of a request."""
        self._requests[id(request)] = _Request(address_of(request.protocol))
        if (tracked := self._tracked.get(request.protocol)) is not None:
            tracked.last_active_s, tracked.is_busy = now_s, True
            tracked.has_account = tracked.has_account or not self._with_tokens

    def accepted(self, request: web.BaseRequest, account: str) -> None:
        """Register the account of a request, which is charged for it."""
        self._requests[id(request)].holder = account
        if (tracked := self._tracked.get(request.protocol)) is not None:
            tracked.account, tracked.has_account = account, True

    def take(
        self, request: web.BaseRequest, limit: SharedLimit, nouns: str, amount: int = 1
    ) -> None:
        """Count an amount for the request's caller until its answer. Raises ApiProblem."""
        taking = self._requests[id(request)]
        holder = taking.holder
        if not limit.take(holder, amount):
            raise busy(
                f"{limit.used} of {limit.limit} {nouns}, {limit.held_by(holder)} of them of"
                f" {holder}: its share has no room for {amount} more"
            )
        taking.grants.append((limit, holder, amount))

    def answered(self, request: web.BaseRequest, now_s: float) -> None:
        """Register the end of a request, and release its amounts."""
        for limit, holder, amount in self._requests.pop(id(request)).grants:
            limit.give_back(holder, amount)
        if (tracked := self._tracked.get(request.protocol)) is not None:
            tracked.last_active_s, tracked.is_busy = now_s, False


def address_of(handler: RequestHandler) -> str:
    """Return a connection's remote address; "" once it is closed."""
    transport = handler.transport
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if isinstance(name, tuple | list) and name else ""
