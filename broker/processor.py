"""Dispatch of frames, of sends directly, and of all other requests by a table of request codes.

`on_raw` gets all frames of an arrival. A plain send may use the fast path (broker.send.fast_path).
Every other frame is decoded once (`remoting.codec.decode_command`, the only check of headers) for
its handler. The sends of an arrival are proposed together, those of a long arrival in several
parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.remoting.codec import RawFrame
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection, Handler
from raftmq.remoting.errors import HeaderError
from raftmq.remoting.fair_scheduling import Steps

from .errors import Refused
from .messages.send_request import packed_address, v2_fields
from .scheduler import Activity
from .send.service import BATCH_CODES, SendPath

SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_WRITER_BATCH = int(RequestCode.SEND_WRITER_BATCH)
SEND_V1 = int(RequestCode.SEND_MESSAGE)
NAMESPACE = "ns"  # an ext field of Java clients since 5.2 (ClientConfig.setNamespaceV2)
NOT_SEPARATE = (
    "namespaceV2 {!r} separates nothing here, nor at Apache's brokers: use setNamespace, which puts"
    " the namespace before the names of topics and groups"
)
# Sends proposed before the next are parsed, so that followers write while the leader parses. This
# is a quarter of a client's usual window of 256. Measured sends per second: 62,000 with complete
# arrivals, 65,000 with 64, 74,000 to 84,000 with 128.
SENDS_PER_CUT = 128


class Processor:
    """Dispatches a broker's requests. `handlers` is the server's table."""

    def __init__(
        self, sends: SendPath, handlers: dict[int, Handler], activity: Activity | None = None
    ) -> None:
        self._sends = sends
        self._activity = activity or Activity()
        self.handlers: Mapping[int, Handler] = handlers
        for code in (SEND_V1, SEND_V2, SEND_BATCH, SEND_WRITER_BATCH):
            handlers[code] = self._send
        for code, handler in handlers.items():
            handlers[code] = _without_namespace(handler)

    def on_raw(self, connection: Connection, frames: list[RawFrame]) -> None:
        """Handle all frames of one arrival."""
        self._activity.note()
        sends = self._sends
        born_host = _born_host_of(connection)
        at, left = 0, SENDS_PER_CUT
        while at < len(frames):
            count = sends.admit_plain(connection, frames[at : at + left], born_host)
            at += count
            left -= count
            if left and at < len(frames):
                if not connection.dispatch(frames[at]):
                    break  # malformed, so the rest is ignored
                at += 1
                left -= 1
                if connection.turn_is_over and at < len(frames):
                    connection.put_off(frames[at:])
                    break
            if not left:
                sends.wake(at_once=True)
                left = SENDS_PER_CUT
        sends.wake()

    def _send(self, connection: Connection, command: RemotingCommand) -> Steps[None] | None:
        """Handle a send that did not use the fast path. A batch runs in steps."""
        ext = command.ext
        if ext is None:
            raise HeaderError("a send without extFields")
        if command.code == SEND_V1:
            ext = v2_fields(ext)
        if "b" not in ext:
            raise HeaderError("the custom field <topic> is null")
        sender = (connection, command.opaque, command.is_oneway, command.serialize_type)
        born_host = _born_host_of(connection)
        arguments = sender, ext, command.body, born_host, command.code
        if command.code in BATCH_CODES:
            return self._send_batch(self._sends.receive_batch(*arguments))
        self._sends.receive(*arguments)
        self._sends.wake()
        return None

    def _send_batch(self, steps: Steps[None]) -> Steps[None]:
        yield from steps
        self._sends.wake()


def _without_namespace(handler: Handler) -> Handler:
    """Return the handler, which rejects requests with a namespaceV2. Such a client expects topics
    and groups of its own, and would share everybody's."""

    def handle(connection: Connection, command: RemotingCommand) -> Answer:
        namespace = (command.ext or {}).get(NAMESPACE)
        if namespace:
            raise Refused(ResponseCode.INVALID_PARAMETER, NOT_SEPARATE.format(namespace[:64]))
        return handler(connection, command)

    return handle


def _born_host_of(connection: Connection) -> bytes:
    """Return BORNHOST of the connection's peer, packed once."""
    known: bytes | None = connection.attachment
    if known is None:
        known = connection.attachment = packed_address(connection.peer_address)
    return known
