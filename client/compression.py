"""Compression of message bodies.

Bit 0 of a message's sysFlag marks a compressed body, bits 8-10 the algorithm; without these it is
zlib, as before 5.0. LZ4 is the frame format. Brokers do not read bodies. Pure, without I/O.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum

import lz4.frame
import zstandard

from raftmq.store.record import SYS_COMPRESSED, RecordError, StopReason

from .errors import UnsupportedCompression

COMPRESSION_MASK = 0x700
ZSTD_STEP_BYTES = 1024  # of input; the output of a step is at most 40,000 times as large
BODY_SIZE_BYTES_MAX = 64 * 1024 * 1024  # after decompression; guards against a zip bomb


class CompressionType(Enum):
    """The algorithms, with sysFlag bits as values. Every client can read ZLIB."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


@dataclass(frozen=True, slots=True)
class Compression:
    """A producer's compression settings, for bodies of `from_bytes` or more (0 for never). `level`
    is passed to zlib, Zstandard or LZ4 unchanged (0 is LZ4's fast mode)."""

    type: CompressionType = CompressionType.ZLIB
    from_bytes: int = 4096
    level: int = 5

    def apply(self, body: bytes) -> tuple[bytes, int]:
        """Return (body to send, its sysFlag bits), or (body, 0) if it would not shrink."""
        if not self.from_bytes or len(body) < self.from_bytes:
            return body, 0
        packed = _compress(body, self.type, self.level)
        if len(packed) >= len(body):
            return body, 0
        return packed, SYS_COMPRESSED | self.type.value


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body. Raises UnsupportedCompression for an unknown algorithm,
    RecordError for damage or more than 64 MiB."""
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (0, CompressionType.ZLIB.value):
            stream = zlib.decompressobj()
            content = stream.decompress(body, BODY_SIZE_BYTES_MAX)
            complete = stream.eof
        elif kind == CompressionType.LZ4.value:
            frame = lz4.frame.LZ4FrameDecompressor()
            content = frame.decompress(body, max_length=BODY_SIZE_BYTES_MAX)
            complete = frame.eof
        elif kind == CompressionType.ZSTD.value:
            content, complete = _from_zstd(body)
        else:
            raise UnsupportedCompression(f"algorithm {kind >> 8}")
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise RecordError(StopReason.BAD_CRC, f"compressed body: {error}") from error
    if not complete:
        raise RecordError(StopReason.BAD_SIZE, "compressed body is cut short or far too large")
    return content


def _compress(body: bytes, kind: CompressionType, level: int) -> bytes:
    if kind is CompressionType.LZ4:
        packed: bytes = lz4.frame.compress(body, compression_level=level)
        return packed
    if kind is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    return zlib.compress(body, level)


def _from_zstd(body: bytes) -> tuple[bytes, bool]:
    """Decompress in steps: Java's writer streams, perhaps without a content size."""
    stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(body), ZSTD_STEP_BYTES):
        parts.append(stream.decompress(body[start : start + ZSTD_STEP_BYTES]))
        size += len(parts[-1])
        if stream.eof or size > BODY_SIZE_BYTES_MAX:
            break
    return b"".join(parts), stream.eof and size <= BODY_SIZE_BYTES_MAX
