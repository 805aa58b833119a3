"""Decompresses bodies from peers, within a limit that all bodies of a process share. Pure.

A body may unpack to a thousand times its size. So it is unpacked twice: first in small pieces that
are only counted, up to the first one that exceeds the limit; then, if it fits, into memory of
exactly that size. A refused body costs the memory of one piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.remoting.errors import BodyError

STEP_BYTES = 16 * 1024  # packed bytes; they unpack to at most a thousand times as many, in pieces:
PIECE_BYTES = 256 * 1024


class Unpacking:
    """The shared limit, one per process. `bytes_max`: unpacked bytes held at any one time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.peak_bytes = 0
        self.unpacked_bytes = 0  # in all
        self.refused_count = 0

    @contextmanager
    def inflated(self, packed: bytes, what: str) -> Iterator[bytearray]:
        """Unpack a zlib stream; its size counts until the end of the `with` block. Raises BodyError
        for damage and if there is no room; the error names `what`."""
        room = self.bytes_max - self.held_bytes
        size = 0
        for piece in _inflate(packed, what):
            size += len(piece)
            if size > room:
                self.refused_count += 1
                raise BodyError(
                    f"[TOO_LARGE] the {what} of {len(packed)} bytes unpacks to more than "
                    f"{self.bytes_max} bytes (decompressedBytesMax)"
                )
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.unpacked_bytes += size
        try:
            content = bytearray(size)
            position = 0
            for piece in _inflate(packed, what):
                content[position : position + len(piece)] = piece
                position += len(piece)
            assert position == size, (position, size)
            yield content
        finally:
            self.held_bytes -= size


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
