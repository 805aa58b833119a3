"""Damage to the files of a JetStream server: blocks of messages, and snapshots of Raft groups."""

from __future__ import annotations

import os
import random
from pathlib import Path

from ..cluster.clusterfile import ClusterError
from ..faults.damage import ROT_BITS

BLOCKS, SNAPSHOTS = "**/msgs/*.blk", "**/snapshots/snap.*"


def bit_rot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip ROT_BITS bits of blocks of messages, of the stream and of the Raft logs."""
    blocks = _found(store, BLOCKS)
    sizes = [path.stat().st_size for path in blocks]
    hit = rng.choices(blocks, sizes, k=ROT_BITS)
    return "; ".join(_flip(store, path, rng) for path in hit)


def snapshot_rot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip one bit of every snapshot of every Raft group."""
    return "; ".join(_flip(store, path, rng) for path in _found(store, SNAPSHOTS))


def torn_snapshot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Cut every snapshot of every Raft group short."""
    for path in (found := _found(store, SNAPSHOTS)):
        os.truncate(path, rng.randrange(path.stat().st_size))
    return "; ".join(
        f"{path.relative_to(store)} cut to {path.stat().st_size} bytes" for path in found
    )


def _found(store: Path, pattern: str) -> list[Path]:
    found = sorted(path for path in store.glob(pattern) if path.stat().st_size)
    if not found:
        raise ClusterError(f"there is no {pattern} in {store}")
    return found


def _flip(store: Path, path: Path, rng: random.Random) -> str:
    at, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
    with path.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)
    return f"{path.relative_to(store)} byte {at} bit {bit} flipped"
