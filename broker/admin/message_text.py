"""The text of a message's body, for people to read. Pure."""

from __future__ import annotations

import zlib

from raftmq.store.record import SYS_COMPRESSED, MessageRecord

INFLATED_BYTES_MAX = 1024 * 1024  # of text shown
_COMPRESSION_SHIFT, _COMPRESSION_MASK = 8, 7  # in sys_flag; 0 and 3: zlib


def text_of(record: MessageRecord) -> str | None:
    """Return the body as text, decompressed if its producer compressed it; None if it is none."""
    body = record.body
    if record.sys_flag & SYS_COMPRESSED:
        kind = record.sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, INFLATED_BYTES_MAX) if kind in (0, 3) else b""
        except zlib.error:
            return None
        if kind not in (0, 3) or inflate.unconsumed_tail:
            return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
