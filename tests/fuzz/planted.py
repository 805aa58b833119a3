"""`python -m tests.fuzz.planted NAME -- broker.cli ARGUMENTS…`: a server with one fault put back.

Each fault is one that was there once, or one that a check of the fuzzer's is about. It is planted
by taking away what mends it, in this process only.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable
from typing import Any


def opaque() -> None:
    """The opaque of a plain send may be anything, and an answer that fails ends the broker."""
    import msgspec

    from raftmq.broker.error_isolation import Contained
    from raftmq.broker.send import service
    from raftmq.broker.send.fast_path import PlainSend

    class Loose(PlainSend):
        opaque: Any

    def failed(self: Contained, what: str, error: Exception, connection: object = None) -> None:
        raise error

    service.decode_plain = msgspec.json.Decoder(Loose).decode  # type: ignore[attr-defined]
    Contained.failed = failed  # type: ignore[method-assign]


def refusal() -> None:
    """An HTTP connection makes room for another one by way of an assertion that uvloop does not
    meet."""
    from raftmq.web import app

    honest = app._abort

    def abort(connection: Any) -> None:
        assert isinstance(connection.transport, asyncio.WriteTransport)
        honest(connection)

    app._abort = abort


def term() -> None:
    """A peer may say any term."""
    from raftmq.dledger.transport import wire

    wire._TERM_BITS = wire._NUMBER_BITS = 64


def unfinished() -> None:
    """Break it so that unfinished frames are held without a limit."""
    from raftmq.remoting.memory_limits import Holding

    Holding._free = lambda self: None  # type: ignore[method-assign]


def fields() -> None:
    """A header may be as long as its size word lets it, and have as many fields."""
    from raftmq.remoting import codec

    codec.HEADER_SIZE_BYTES_MAX = 0xFFFFFF
    codec.HEADER_FIELDS_MAX = 1 << 30


def nesting() -> None:
    """A header that is nested too deeply is no malformed header."""
    from raftmq.broker.send import service

    class Never(Exception):
        """Raised by nobody."""

    service.RecursionError = Never  # type: ignore[attr-defined]


def misplaced() -> None:
    """Now and then an acknowledgement names another place than the message's."""
    from raftmq.broker.send.responses import AnswerFormat

    honest = AnswerFormat.plain

    def plain(self: Any, opaque: int, position: int, queue: int, offset: int, key: str) -> bytes:
        return honest(self, opaque, position, queue, offset - offset % 2, key)

    AnswerFormat.plain = plain  # type: ignore[method-assign, assignment]


def oneway() -> None:
    """All that comes is read at once, and as many sends may wait as come."""
    from raftmq.broker.send.queue import Backlog
    from raftmq.remoting.fair_scheduling import Turns

    honest = Backlog.__init__

    def init(self: Backlog, bytes_max: int) -> None:
        honest(self, 1 << 40)

    Backlog.__init__ = init  # type: ignore[method-assign]
    Turns.start = lambda self: True  # type: ignore[method-assign]
    Turns.is_over = False  # type: ignore[method-assign, assignment]


def leak() -> None:
    """Break it so that what a connection had is kept when it has gone."""
    from raftmq.remoting.server import RemotingServer

    kept = []
    honest = RemotingServer._opened

    def opened(self: Any, connection: Any) -> None:
        kept.append(bytearray(1 << 20))
        honest(self, connection)

    RemotingServer._opened = opened  # type: ignore[method-assign]


def talkative() -> None:
    """Every request is a line in the log."""
    import logging

    from raftmq.remoting.connection import Connection

    honest = Connection._serve

    def serve(self: Any, request: Any) -> None:
        sys.stderr.write(f"request {request!r}\n")
        logging.getLogger("raftmq.remoting").debug("request")
        honest(self, request)

    Connection._serve = serve  # type: ignore[method-assign]


def bomb() -> None:
    """A registration is unpacked to whatever it unpacks to."""
    from raftmq.namesrv.config import NameServerConfig
    from raftmq.remoting.registration import BodyLimits

    NameServerConfig.body_limits = BodyLimits(1 << 40)  # type: ignore[assignment]


def claim() -> None:
    """Anybody's claim to lead a group counts, and for good."""
    from raftmq.namesrv.routes import RouteTable

    RouteTable._check_signed = lambda self, claim, group: None  # type: ignore[method-assign]
    RouteTable._forget_claim = lambda self, group, now_ms: None  # type: ignore[method-assign]


_ALL = (opaque, refusal, term, unfinished, fields, nesting, bomb, claim, misplaced, oneway, leak,
        talkative)  # fmt: skip
FAULTS: dict[str, Callable[[], None]] = {fault.__name__: fault for fault in _ALL}


def main() -> None:
    name, program = sys.argv[1], sys.argv[3]
    FAULTS[name]()
    sys.argv = [program, *sys.argv[4:]]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
