"""Have the C library give memory back that is not used any more.

glibc takes large blocks from the system one by one, and gives each back when it is freed; but every
time it does, it raises the size from which on it does so, up to 32 MiB. After a burst of large
frames all blocks then come from the heap, which keeps them: measured on a broker, 900 MB half an
hour after the burst. With the size fixed the heap holds small blocks alone. What a burst of those
leaves behind is given back by a `Trimmer`.
"""

from __future__ import annotations

import ctypes

MIB = 1024 * 1024
# Above what one read of a socket brings (256 KiB), so that reads cost no system call for memory.
BLOCK_BYTES = 1 * MIB
HEAP_END_BYTES = 8 * MIB  # of unused heap is kept
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
BURST_BYTES = 32 * MIB  # held for peers, and let go again: worth a call of some milliseconds


class Trimmer:
    """Gives the heap's unused pages back when a burst is over."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # neither musl nor macOS
        self._most = 0  # held since the last call

    def look(self, held_bytes: int) -> bool:
        """Call about once a second with what is held for peers. Whether memory was given back."""
        self._most = max(self._most, held_bytes)
        if self._most - held_bytes < BURST_BYTES or self._trim is None:
            return False
        self._most = held_bytes
        return bool(self._trim(0))


def return_large_blocks() -> bool:
    """Call once, at the start of a server process. False: this C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)) and bool(
        mallopt(_M_TRIM_THRESHOLD, HEAP_END_BYTES)
    )
