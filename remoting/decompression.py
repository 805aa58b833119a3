"""Decompresses bodies from peers, in steps and within a limit. Pure.

A body may unpack to a thousand times its size. So it is unpacked twice: first in small pieces that
are only counted, up to the first one that exceeds the limit; then, if it fits, into memory of
exactly that size. A refused body costs the memory of one piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from .errors import BodyError
from .fair_scheduling import Steps

STEP_BYTES = 16 * 1024  # packed bytes; they unpack to at most a thousand times as many, in pieces:
PIECE_BYTES = 256 * 1024


def inflating(packed: bytes, bytes_max: int, what: str) -> Steps[bytearray | None]:
    """Unpack a zlib stream; return None if it unpacks to more than `bytes_max`. Raises BodyError
    for damage; the error names `what`."""
    size = 0
    for piece in _inflate(packed, what):
        size += len(piece)
        if size > bytes_max:
            return None
        yield
    content = bytearray(size)
    position = 0
    for piece in _inflate(packed, what):
        content[position : position + len(piece)] = piece
        position += len(piece)
        yield
    assert position == size, (position, size)
    return content


def _inflate(packed: bytes, what: str) -> Iterator[bytes]:
    """Unpack in pieces. Raises BodyError."""
    stream = zlib.decompressobj()
    view = memoryview(packed)
    try:
        for start in range(0, len(packed), STEP_BYTES):
            rest: bytes | memoryview = view[start : start + STEP_BYTES]
            while rest and not stream.eof:
                yield stream.decompress(rest, PIECE_BYTES)
                rest = stream.unconsumed_tail
        while not stream.eof and (piece := stream.decompress(b"", PIECE_BYTES)):
            yield piece
    except zlib.error as error:
        raise BodyError(f"the {what} is not a zlib stream: {error}") from error
    if not stream.eof:
        raise BodyError(f"the zlib stream of the {what} is cut short")
