"""Returns unused memory of the C library to the system.

A server has a single heap for all threads, because the interpreter's lock serialises them, and a
heap per thread kept 3 MiB of unused memory. glibc maps large blocks individually, and returns each
when it is freed. But each return raises the size from which blocks are mapped, up to 32 MiB. After
a burst of large frames all blocks then are in the heap, which keeps them: a broker kept 900 MB half
an hour after the burst. With a fixed size, the heap only has small blocks, and a `Trimmer` returns
those after a burst.
"""

from __future__ import annotations

import ctypes

MIB = 1024 * 1024
# Above the size of one socket read (256 KiB), so that reads cost no system call for memory.
BLOCK_BYTES = 1 * MIB
HEAP_END_BYTES = 8 * MIB  # of unused heap to keep
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
BURST_BYTES = 32 * MIB  # held for peers and released; justifies a call of some milliseconds


class Trimmer:
    """Returns the heap's unused pages to the system after a burst."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl and macOS
        self._most = 0  # most bytes held since the last trim

    def poll(self, held_bytes: int) -> bool:
        """Return unused memory to the system after a burst; return whether that was done. Call
        about once per second with the number of bytes held for peers."""
        self._most = max(self._most, held_bytes)
        if self._most - held_bytes < BURST_BYTES or self._trim is None:
            return False
        self._most = held_bytes
        return bool(self._trim(0))


def return_large_blocks() -> bool:
    """Fix the size of large blocks and the number of heaps. Call once, at the start of a server
    process. Returns False if this C library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {
        _M_MMAP_THRESHOLD: BLOCK_BYTES,
        _M_TRIM_THRESHOLD: HEAP_END_BYTES,
        _M_ARENA_MAX: 1,
    }
    return all([mallopt(*setting) for setting in settings.items()])
