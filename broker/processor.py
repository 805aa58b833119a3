"""From frames to handlers: the raw entry for sends, the table by request code for everything else.

`on_raw` sees all frames of one arrival. JSON sends are parsed here and go straight to the send
path, by the quick way (broker.sending.plainsend) if they can; every other frame takes the
connection's usual way to `handlers`. When all frames of the arrival are through, the sends among
them are cut together, long arrivals in parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import MsgspecError
from orjson import loads

from broker.errors import Refused
from broker.sending.plainsend import PLAIN_START, decode_plain
from broker.sending.send import SendPath
from broker.sending.sendrequest import v2_fields
from remoting.codec import RawFrame
from remoting.codes import RequestCode
from remoting.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from remoting.connection import Connection, Handler
from remoting.errors import HeaderError
from store.record import pack_host

SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_V1 = int(RequestCode.SEND_MESSAGE)
# Of a long arrival so many are proposed before the next are parsed: the followers write these
# while the leader parses those. Half of a client's usual window of 256: measured 62,000 sends a
# second with whole arrivals, 65,000 with 64, 74,000 to 84,000 with 128.
SENDS_PER_CUT = 128


class Processor:
    """The request side of one broker. `handlers` is the server's table."""

    def __init__(self, sends: SendPath, handlers: dict[int, Handler]) -> None:
        self._sends = sends
        self.handlers: Mapping[int, Handler] = handlers
        for code in (SEND_V1, SEND_V2, SEND_BATCH):
            handlers[code] = self._send

    def on_raw(self, connection: Connection, frames: list[RawFrame]) -> None:
        """All frames of one arrival. What is no plain send, or an odd one, goes the usual way,
        which also says what is wrong with it."""
        sends = self._sends
        admit_plain = sends.admit_plain
        born_host = connection.attachment
        if born_host is None:
            born_host = connection.attachment = _born_host(connection.peer_address)
        admitted = 0
        for frame in frames:
            serialize_type, header, body = frame
            taken = False
            if serialize_type == JSON:
                if header.startswith(PLAIN_START):
                    try:
                        send = decode_plain(header)
                        if send.code == SEND_V2 and not send.flag:
                            taken = admit_plain(connection, send, body, born_host)
                    except (MsgspecError, ValueError):
                        pass  # not plain, or malformed; nothing was admitted
                taken = taken or self._admit(connection, header, body, born_host)
            if not taken:
                connection.dispatch(frame)
                continue
            admitted += 1
            if admitted == SENDS_PER_CUT:
                sends.wake(at_once=True)
                admitted = 0
        if admitted:
            sends.wake()

    def _admit(self, connection: Connection, header: bytes, body: bytes, born_host: bytes) -> bool:
        """Any send with a JSON header of V2's names; False: it is none, or malformed."""
        try:
            fields = loads(header)
            code, flag = fields["code"], fields["flag"]
            if code not in (SEND_V2, SEND_BATCH) or flag & RESPONSE_FLAG:
                return False
            sender = (connection, fields["opaque"], flag & ONEWAY_FLAG, JSON)
            self._sends.admit(sender, fields["extFields"], body, born_host, code)
        except Refused as refused:
            self._sends.refuse(sender, refused)
        except (AttributeError, KeyError, TypeError, ValueError):
            return False  # malformed; nothing was admitted
        return True

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
        self._sends.receive(sender, ext, command.body, born_host, command.code)
        self._sends.wake()


def _born_host(address: str) -> bytes:
    """BORNHOST of a peer `host:port` or `[ipv6]:port`."""
    host, _, port = address.rpartition(":")
    return pack_host((host.strip("[]").partition("%")[0], int(port)))
