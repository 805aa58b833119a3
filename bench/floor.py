"""The floor: a server that only splits frames and answers each with a canned success.

It measures the cost of the load generator, loopback and the event loop alone, in the same run as
the cluster, so that the cluster's figure can be given as a ratio.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from typing import cast

import uvloop

_LENGTHS = struct.Struct(">ii")
_OPAQUE = re.compile(rb'"opaque":(\d+)')


class _Canned(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        at, end, out = 0, len(data), []
        while end - at >= 8:
            length, header_length = _LENGTHS.unpack_from(data, at)
            if end - at < length + 4:
                break
            found = _OPAQUE.search(data, at + 8, at + 8 + header_length)
            assert found is not None
            header = b'{"code":0,"extFields":{"queueId":"0"},"flag":1,"opaque":%b}' % found[1]
            out.append(_LENGTHS.pack(4 + len(header), len(header)))
            out.append(header)
            at += length + 4
        self._buffer = data[at:]
        self._transport.write(b"".join(out))


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent goes


if __name__ == "__main__":
    uvloop.run(_serve())
