"""The floor, a server that only splits frames and answers each with a canned success.

A pull gets a stream of queueOffset messages in responses of maxMsgNums, and then a response without
messages. So the server is a socket that sends the bytes of a broker.

It measures the cost of the load generator, loopback and the event loop alone, in the same run as
the cluster, so that the cluster's figure can be given as a ratio.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from typing import cast

import orjson
import uvloop

from raftmq.store.record import MessageRecord, encode_record

_LENGTHS = struct.Struct(">ii")
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_PULL = b'"code":11,'
_SUCCESS, _NOTHING = 0, 19
_PROPERTIES = (
    b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02MSG_REGION\x01R\x02TRACE_ON\x01true\x02CLUSTER\x01C"
)


class _Canned(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._buffer = b""
        self._answer, self._answers = b"", 0  # the streamed response, and its remaining repetitions
        self._paused = False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._stream()

    def _stream(self) -> None:
        while self._answers and not self._paused:
            self._answers -= 1
            self._transport.write(self._answer if self._answers else _answer(_NOTHING, b""))

    def _pulled(self, header: bytes) -> None:
        desired = orjson.loads(header)["extFields"]
        each, count = int(desired["maxMsgNums"]), int(desired["queueOffset"])
        # All responses and a last empty response; few messages fit into a single pull.
        full = max(1, count // each)
        self._answer, self._answers = _answer(_SUCCESS, _record() * min(each, count)), full + 1
        self._stream()

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        at, end, out = 0, len(data), []
        while end - at >= 8:
            length, header_length = _LENGTHS.unpack_from(data, at)
            if end - at < length + 4:
                break
            if _PULL in data[at + 8 : at + 8 + header_length]:
                self._pulled(data[at + 8 : at + 8 + header_length])
                at += length + 4
                continue
            result = _OPAQUE.search(data, at + 8, at + 8 + header_length)
            assert result is not None
            header = b'{"code":0,"extFields":{"queueId":"0"},"flag":1,"opaque":%b}' % result[1]
            out.append(_LENGTHS.pack(4 + len(header), len(header)))
            out.append(header)
            at += length + 4
        self._buffer = data[at:]
        self._transport.write(b"".join(out))


def _answer(code: int, body: bytes) -> bytes:
    """Return a pull's answer, with the fields that a broker's has."""
    header = (
        b'{"code":%d,"extFields":{"maxOffset":"99999999","minOffset":"0",'
        b'"nextBeginOffset":"99999999","suggestWhichBrokerId":"0"},"flag":1,"opaque":1}' % code
    )
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def _record() -> bytes:
    """Return a record of 128 bytes as a broker of ours stores it."""
    here = ("127.0.0.1", 1)
    properties = _PROPERTIES % 1
    return encode_record(
        MessageRecord("Bench", b"x" * 128, properties, 0, 0, 0, 0, 0, 0, here, 0, here, 0, 0)
    )


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent exits


if __name__ == "__main__":
    uvloop.run(_serve())
