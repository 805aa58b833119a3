"""Who holds the connections of an HTTP server, and which of them is given up when it is full.

A place is kept for whoever has shown a token or a session there; where there are none, for whoever
has asked anything. Others are strangers: they lose a place soon when they ask nothing, and first
when others want it. Nobody can keep the rest out by holding connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp.web_protocol import RequestHandler


@dataclass(slots=True)
class _Place:
    active_s: float  # when it was taken, or its last request began or was answered
    under_way: bool = False  # a request
    kept: bool = False


class Places:
    """The places of one server. `with_tokens`: callers show a token."""

    def __init__(self, *, with_tokens: bool) -> None:
        self._with_tokens = with_tokens
        self._places: dict[RequestHandler, _Place] = {}

    def taken(self, connection: RequestHandler, now_s: float) -> None:
        """Note a new connection."""
        self._places[connection] = _Place(now_s)

    def asks(self, connection: RequestHandler, now_s: float) -> None:
        """Note that a request begins."""
        place = self._of(connection, now_s)
        place.active_s, place.under_way = now_s, True
        place.kept = place.kept or not self._with_tokens

    def accepted(self, connection: RequestHandler, now_s: float) -> None:
        """Note that the request under way shows an account that is accepted."""
        self._of(connection, now_s).kept = True

    def answered(self, connection: RequestHandler, now_s: float) -> None:
        """Note that the request has its answer."""
        place = self._of(connection, now_s)
        place.active_s, place.under_way = now_s, False

    def first_to_go(self, live: Sequence[RequestHandler]) -> RequestHandler | None:
        """Return which of the open connections, longest held first, makes room for another: the
        first stranger; without tokens, whoever has asked nothing for longest. None: nobody."""
        places = [(one, self._places[one]) for one in live if one in self._places]
        if self._with_tokens:
            return next((one for one, place in places if not place.kept), None)
        idle = [(place.active_s, one) for one, place in places if not place.under_way]
        return min(idle, key=lambda pair: pair[0])[1] if idle else None

    def idle_strangers(
        self, live: Sequence[RequestHandler], now_s: float, patience_s: float
    ) -> list[RequestHandler]:
        """Return the strangers that have asked nothing for so long; forget who is not open."""
        self._places = {one: self._of(one, now_s) for one in live}
        return [
            one
            for one, place in self._places.items()
            if not place.kept and not place.under_way and place.active_s <= now_s - patience_s
        ]

    def _of(self, connection: RequestHandler, now_s: float) -> _Place:
        return self._places.setdefault(connection, _Place(now_s))
