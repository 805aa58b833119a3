"""Damage to the files of a JetStream server: blocks of messages, and snapshots of Raft groups.

The server is ended, damaged, started again at once and left alone: whether it and its stream come
back is what the run is to find out.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.faults.base import Context, Hit, Planned
from raftmq.chaos.faults.damage import ROT_BITS
from raftmq.chaos.faults.disk import store_of
from raftmq.chaos.faults.process import Kill

BLOCKS, SNAPSHOTS = "**/msgs/*.blk", "**/snapshots/snap.*"

Harm = Callable[[Path, random.Random], str]


class Damage:
    """A server ended by a signal, its files damaged, and started again."""

    def __init__(
        self, planned: Planned, context: Context, harm: Harm, number: signal.Signals
    ) -> None:
        self._planned = planned
        self._context = context
        self._harm = harm
        self._kill = Kill(context.cluster, number)
        self._done: dict[str, str] = {}

    async def do(self, hit: Hit) -> None:
        await self._kill.do(hit)
        for node in hit.nodes:
            rng = random.Random(f"{self._planned.number}:{self._planned.choice}:{node.name}")
            store = store_of(self._context, node)
            self._done[node.name] = await asyncio.to_thread(self._harm, store, rng)
        await self._kill.undo(hit)

    async def undo(self, hit: Hit) -> None:
        await self._kill.undo(hit)

    def describe(self, targets: str) -> str:
        done = "; ".join(f"{name}: {what}" for name, what in self._done.items())
        return done or f"{self._planned.kind} at {targets}"


def bit_rot(store: Path, rng: random.Random) -> str:
    """Flip ROT_BITS bits of blocks of messages, of the stream and of the Raft logs."""
    blocks = _found(store, BLOCKS)
    sizes = [path.stat().st_size for path in blocks]
    hit = rng.choices(blocks, sizes, k=ROT_BITS)
    return "; ".join(_flip(store, path, rng) for path in hit)


def snapshot_rot(store: Path, rng: random.Random) -> str:
    """Flip one bit of every snapshot of every Raft group."""
    return "; ".join(_flip(store, path, rng) for path in _found(store, SNAPSHOTS))


def torn_snapshot(store: Path, rng: random.Random) -> str:
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
