"""From frames to handlers: the raw entry for sends, the table by request code for everything else.

`on_raw` sees all frames of one arrival. JSON sends are parsed here once and go straight to the
send path; every other frame takes the connection's usual way to `handlers`. When all frames of the
arrival are through, the sends among them are cut together, long arrivals in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orjson import loads

from broker.errors import Refused
from broker.send import SendPath
from broker.sendrequest import v2_fields
from remoting.codec import RawFrame
from remoting.codes import RequestCode
from remoting.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from remoting.connection import Connection, Handler
from remoting.errors import HeaderError
from store.record import pack_host

SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_V1 = int(RequestCode.SEND_MESSAGE)
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"  # the property of a message that wants a reply
REQUEST_MARK = REPLY_TO_CLIENT.encode()
# Of a long arrival so many are proposed before the next are parsed: the followers write these
# while the leader parses those. Half of a client's usual window of 256: measured 62,000 sends a
# second with whole arrivals, 65,000 with 64, 74,000 to 84,000 with 128.
SENDS_PER_CUT = 128


class Processor:
    """The request side of one broker. `handlers` is the server's table."""

    def __init__(
        self,
        sends: SendPath,
        handlers: dict[int, Handler],
        on_request: Callable[[Connection, Mapping[str, str]], None] = lambda *_: None,
    ) -> None:
        """`on_request(connection, V2 header fields)` is told of messages that want a reply."""
        self._sends = sends
        self._on_request = on_request
        self.handlers: Mapping[int, Handler] = handlers
        for code in (SEND_V1, SEND_V2, SEND_BATCH):
            handlers[code] = self._send

    def on_raw(self, connection: Connection, frames: list[RawFrame]) -> None:
        """All frames of one arrival. What is no plain send, or an odd one, goes the usual way,
        which also says what is wrong with it."""
        sends = self._sends
        admit = sends.admit
        born_host = connection.attachment
        if born_host is None:
            born_host = connection.attachment = _born_host(connection.peer_address)
        admitted = 0
        for frame in frames:
            serialize_type, header, body = frame
            if serialize_type == JSON:
                try:
                    fields = loads(header)
                    code = fields["code"]
                    flag = fields["flag"]
                    if (code == SEND_V2 or code == SEND_BATCH) and not flag & RESPONSE_FLAG:
                        sender = (connection, fields["opaque"], flag & ONEWAY_FLAG, JSON)
                        if REQUEST_MARK in header:  # 60 ns; before, for nothing is admitted yet
                            self._on_request(connection, fields["extFields"])
                        admit(sender, fields["extFields"], body, born_host, code)
                        admitted += 1
                        if admitted == SENDS_PER_CUT:
                            sends.wake(at_once=True)
                            admitted = 0
                        continue
                except Refused as refused:
                    sends.refuse(sender, refused)
                    continue
                except (AttributeError, KeyError, TypeError, ValueError):
                    pass  # malformed; nothing was admitted
            connection.dispatch(frame)
        if admitted:
            sends.wake()

    def _send(self, connection: Connection, command: RemotingCommand) -> None:
        """A send that did not take the fast way: binary header, long names, odd JSON."""
        ext = command.ext
        if ext is None:
            raise HeaderError("a send without extFields")
        if command.code == SEND_V1:
            ext = v2_fields(ext)
        if "b" not in ext:
            raise HeaderError("the custom field <topic> is null")
        born_host = connection.attachment
        if born_host is None:
            born_host = connection.attachment = _born_host(connection.peer_address)
        sender = (connection, command.opaque, command.is_oneway, command.serialize_type)
        if REPLY_TO_CLIENT in ext.get("i", ""):
            self._on_request(connection, ext)
        self._sends.receive(sender, ext, command.body, born_host, command.code)
        self._sends.wake()


def _born_host(address: str) -> bytes:
    """BORNHOST of a peer `host:port` or `[ipv6]:port`."""
    host, _, port = address.rpartition(":")
    return pack_host((host.strip("[]").partition("%")[0], int(port)))
