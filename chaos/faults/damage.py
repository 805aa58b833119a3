"""Damage to the files of a stopped node (torn tails, flipped bits, lost files), then a restart.

A node is killed (stopped in order before damage to its snapshots, because it writes one then), its
store is damaged, and it is started at once. The history records the damage to the bit: file, byte,
bit. Healing ensures that the node serves. If it refuses to start and logs the reason, healing acts
like an operator and gives a Raft replica an empty disk, which the history also records.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cluster.clusterfile import ClusterError, Node
from ..cluster.launch import log_path
from ..cluster.process import tail
from ..cluster.topology import MODES, RAFT, flush_of
from .base import Context, Factory, Hit, Kind, Planned, Table, in_thread, injected
from .damage_targets import (
    CHECKPOINT_BYTES,
    INDEX_HEAD_BYTES,
    UNIT_BYTES,
    Item,
    durable_offset,
    log_items,
    slots,
    used_units,
)
from .disk import POLL_S, STEADY_S, lose_disk, store_of
from .power import owned
from .process import Kill

UP_S = 60.0  # within which a damaged node must serve, or have said that it cannot
GARBAGE_BYTES_MAX = 8192
ROT_BITS = 16
REFUSALS = ("mqbroker: cannot start", "mqbroker: failed")
LOG_LINES = 40

# (store, generator, whether non-durable bytes may be cut) → description of the damage
Harm = Callable[[Path, random.Random, bool], str]


class Damage:
    """SIGKILL, damage, start; healing waits until the node serves."""

    def __init__(
        self,
        planned: Planned,
        context: Context,
        harm: Harm,
        number: signal.Signals = signal.SIGKILL,
    ) -> None:
        """`number` is the signal that ends the node."""
        self._planned = planned
        self._context = context
        self._kill = Kill(context.cluster, number)
        self._harm = harm
        self._done: dict[str, str] = {}
        self._replaced: set[str] = set()

    async def do(self, hit: Hit) -> None:
        await self._kill.do(hit)
        may_cut = flush_of(self._context.cluster.state()) == "SYNC_FLUSH"
        for node in hit.nodes:
            rng = random.Random(f"{self._planned.number}:{self._planned.choice}:{node.name}")
            store = store_of(self._context, node)
            await in_thread(self._hurt, node.name, store, rng, may_cut)
        await self._kill.undo(hit)

    def _hurt(self, name: str, store: Path, rng: random.Random, may_cut: bool) -> None:
        with owned(store):
            self._done[name] = self._harm(store, rng, may_cut)

    async def undo(self, hit: Hit) -> None:
        await self._kill.undo(hit)
        for node in hit.nodes:
            if node.name in self._done:
                await self._see_to(node)

    async def _see_to(self, node: Node) -> None:
        """Return once the node serves; replace it if it refuses to start."""
        cluster = self._context.cluster
        steady_s = start_s = time.monotonic()
        while time.monotonic() < start_s + UP_S:
            (status,) = [s for s in await cluster.status() if s.node.name == node.name]
            if not status.alive:
                await self._replace(node)
                cluster.start(node.name)
            if not status.alive or status.view is None:
                steady_s = time.monotonic()
            elif time.monotonic() - steady_s > STEADY_S:
                return
            await asyncio.sleep(POLL_S)
        raise ClusterError(f"{node.name} does not serve {UP_S:g} s after it was damaged")

    async def _replace(self, node: Node) -> None:
        """Give a node that refused to start an empty disk, once. A killed node keeps its disk."""
        last = tail(log_path(self._context.cluster.directory, node), LOG_LINES).splitlines()
        refusals = (line for line in reversed(last) if any(word in line for word in REFUSALS))
        text = next(refusals, "")
        if not text:
            return
        raft = MODES[self._context.cluster.state().mode].engine == RAFT
        if node.name in self._replaced or not raft:
            raise ClusterError(f"{node.name} does not come back: {text}")
        self._replaced.add(node.name)
        self._done[node.name] += f"; it refused ({text}) and was given an empty disk"
        await in_thread(lose_disk, self._context, node)

    def describe(self, targets: str) -> str:
        done = "; ".join(f"{name}: {what}" for name, what in self._done.items())
        return done or f"{self._planned.kind} at {targets}"


# ---- kinds of damage --------------------------------------------------------------------------


def torn_tail(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Leave the log's end as a crash in mid-write does; durable bytes are not touched."""
    path = _segments(store)[-1]
    items = _items(path)
    end = items[-1].end if items else 0
    start = int(path.name)
    room = path.stat().st_size - end
    mark = max(0, durable_offset(_content(store / "checkpoint")) - start)
    loose = [item for item in items if item.at >= mark] if may_cut else []
    ways = ["garbage", "short", *(["half", "stale"] if items else []), *(["cut"] if loose else [])]
    match rng.choice(ways):
        case "cut":
            item = rng.choice(loose)
            at = rng.randrange(item.at, item.end)
            _put(path, at, bytes(end - at))
            return f"{_name(store, path)} zeros from byte {at} to {end}, behind the durable mark"
        case "short":
            os.truncate(path, end)
            return f"{_name(store, path)} cut to {end} bytes, the end of what is written"
        case "half":
            item = rng.choice(items)
            data = _content(path, item.at, item.size_bytes)[: rng.randrange(1, item.size_bytes)]
            data = data[:room]
        case "stale":
            item = rng.choice(items)
            data = _content(path, item.at, item.size_bytes)[:room]
        case _:
            data = rng.randbytes(rng.randrange(1, GARBAGE_BYTES_MAX))[:room]
    if not data:
        raise ClusterError(f"{path.name} is full to its end")
    _put(path, end, data)
    return f"{_name(store, path)} {len(data)} bytes of garbage from byte {end}, where the log ends"


def flip_header(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of a frame's (or record's) header below the durable mark."""
    path, item = _drawn(_durable_items(store), rng)
    return _flip(store, path, rng.randrange(item.at, item.at + item.header_bytes), rng)


def flip_payload(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of a frame's (or record's) contents below the durable mark."""
    path, item = _drawn(_durable_items(store), rng)
    return _flip(store, path, rng.randrange(item.at + item.header_bytes, item.end), rng)


def bit_rot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip bits of several frames below the durable mark, in headers and contents."""
    # before any header is damaged, because the walk follows the headers
    result = _durable_items(store)
    hit = [_drawn(result, rng) for _ in range(ROT_BITS)]
    return "; ".join(
        _flip(store, path, rng.randrange(item.at, item.end), rng) for path, item in hit
    )


def flip_queue(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of a used entry of a ConsumeQueue."""
    files = _files(store, "consumequeue")
    rng.shuffle(files)
    for path in files:
        with _mapped(path) as data:
            count = used_units(data)
        if count:
            return _flip(store, path, rng.randrange(count * UNIT_BYTES), rng)
    raise ClusterError("no ConsumeQueue has anything in its file yet")


def flip_index(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of an IndexFile, in its header or its data."""
    files = [path for path in _files(store, "index") if path.stat().st_size >= INDEX_HEAD_BYTES]
    if not files:
        raise ClusterError("there is no IndexFile")
    path = rng.choice(files)
    with path.open("rb") as file:
        extents = list(_data_extents(file.fileno(), path.stat().st_size))
    if not extents:
        raise ClusterError(f"{path.name} holds no data yet")
    if rng.random() < 0.3:
        return _flip(store, path, rng.randrange(INDEX_HEAD_BYTES), rng)
    return _flip(store, path, rng.choice(rng.choice(extents)), rng)


def flip_vote(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit in each copy in the vote file, which the node must notice."""
    path = store / "raft" / "hardstate"
    result = slots(_content(path))
    if not result:
        raise ClusterError("there is no vote file")
    return "; ".join(_flip(store, path, rng.choice(slot), rng) for slot in result)


def flip_vote_slot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit in one of the two copies in the vote file, where the second copy must suffice."""
    path = store / "raft" / "hardstate"
    result = slots(_content(path))
    if len(result) < 2:
        raise ClusterError("the vote file has no second copy")
    return _flip(store, path, rng.choice(rng.choice(result)), rng)


def lost_vote(store: Path, rng: random.Random, may_cut: bool) -> str:
    return _lose(store, store / "raft" / "hardstate")


def flip_checkpoint(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of the checkpoint's five numbers."""
    path = store / "checkpoint"
    if len(_content(path)) < CHECKPOINT_BYTES:
        raise ClusterError("there is no checkpoint")
    return _flip(store, path, rng.randrange(CHECKPOINT_BYTES), rng)


def flip_config(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of a table under config/."""
    path = rng.choice(_snapshots(store))
    return _flip(store, path, rng.randrange(path.stat().st_size), rng)


def snapshot_rot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Flip a bit of every table under config/, and of the older copies."""
    result = _snapshots(store)
    flips = (_flip(store, path, rng.randrange(path.stat().st_size), rng) for path in result)
    return "; ".join(flips)


def torn_snapshot(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Cut every table under config/ short, the older copies included."""
    for path in (result := _snapshots(store)):
        os.truncate(path, rng.randrange(path.stat().st_size))
    return "; ".join(f"{_name(store, path)} cut to {path.stat().st_size} bytes" for path in result)


def lost_segment(store: Path, rng: random.Random, may_cut: bool) -> str:
    """Remove a segment of the CommitLog with durable data."""
    mark = durable_offset(_content(store / "checkpoint"))
    held = [path for path in _segments(store) if int(path.name) < mark]
    if not held:
        raise ClusterError("no segment holds anything durable")
    return _lose(store, rng.choice(held))


def lost_queue(store: Path, rng: random.Random, may_cut: bool) -> str:
    files = _files(store, "consumequeue")
    if not files:
        raise ClusterError("there is no ConsumeQueue")
    return _lose(store, rng.choice(files))


# ---- files --------------------------------------------------------------------------------------


def _durable_items(store: Path) -> list[tuple[Path, Item]]:
    """Return every durable frame or record. Raises ClusterError if there is none."""
    mark = durable_offset(_content(store / "checkpoint"))
    result = [
        (path, item)
        for path in _segments(store)
        if int(path.name) < mark
        for item in _items(path)
        if int(path.name) + item.end <= mark and item.size_bytes > item.header_bytes
    ]
    if not result:
        raise ClusterError("the log holds nothing durable yet")
    return result


def _drawn(items: list[tuple[Path, Item]], rng: random.Random) -> tuple[Path, Item]:
    """Choose an item, equally often an early item, a late item, or any."""
    few = max(1, len(items) // 20)
    drawn_from = rng.choice((items[:few], items[-few:], items))
    return rng.choice(drawn_from)


def _flip(store: Path, path: Path, at: int, rng: random.Random) -> str:
    bit = rng.randrange(8)
    (byte,) = _content(path, at, 1)
    _put(path, at, bytes([byte ^ 1 << bit]))
    return f"{_name(store, path)} byte {at} bit {bit} flipped"


def _lose(store: Path, path: Path) -> str:
    if not path.exists():
        raise ClusterError(f"there is no {_name(store, path)}")
    path.unlink()
    return f"{_name(store, path)} lost"


def _put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, at)


def _content(path: Path, at: int = 0, size: int | None = None) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(at)
        return file.read() if size is None else file.read(size)


def _name(store: Path, path: Path) -> str:
    return str(path.relative_to(store))


def _segments(store: Path) -> list[Path]:
    result = _files(store, "commitlog")
    if not result:
        raise ClusterError("there is no CommitLog")
    return result


def _files(store: Path, directory: str) -> list[Path]:
    return sorted(path for path in (store / directory).rglob("*") if path.is_file())


def _snapshots(store: Path) -> list[Path]:
    result = [path for path in _files(store, "config") if path.stat().st_size]
    if not result:
        raise ClusterError("no table has been written yet")
    return result


def _items(path: Path) -> list[Item]:
    with _mapped(path) as data:
        return log_items(data)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """Yield the file's bytes, mapped, so that only the accessed pages are read."""
    if path.stat().st_size == 0:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _data_extents(descriptor: int, size: int) -> Iterator[range]:
    """Yield the ranges of a sparse file that hold data."""
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: no data from here on
            return
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield range(start, at)


# ---- the table ----------------------------------------------------------------------------------


def _entry(
    name: str,
    harm: Harm,
    description: str,
    whom: tuple[str, ...] = ("follower", "leader", "most-behind"),
    needs: frozenset[str] = frozenset(),
    number: signal.Signals = signal.SIGKILL,
) -> tuple[Kind, Factory]:
    kind = Kind(name, "damage", description, whom, needs, lasts_s=(1.0, 3.0))
    return kind, injected(lambda planned, context: Damage(planned, context, harm, number))


_RAFT = frozenset({"raft"})
_TABLE: tuple[tuple[Kind, Factory], ...] = (
    _entry("torn-tail", torn_tail, "the log's end is garbage, half a frame, or short"),
    _entry("flip-header", flip_header, "a bit of a durable frame's header", needs=_RAFT),
    _entry("flip-payload", flip_payload, "a bit of a durable frame's messages", needs=_RAFT),
    _entry("bit-rot", bit_rot, "bits of several durable frames, anywhere in the log", needs=_RAFT),
    _entry("flip-queue", flip_queue, "a bit of a ConsumeQueue unit"),
    _entry("flip-index", flip_index, "a bit of an IndexFile"),
    _entry("flip-vote", flip_vote, "a bit in each copy of term and vote", needs=_RAFT),
    _entry("flip-vote-slot", flip_vote_slot, "a bit in one of the two copies of the vote",
        needs=_RAFT),
    _entry("lost-vote", lost_vote, "the file with term and vote is gone", needs=_RAFT),
    _entry("flip-checkpoint", flip_checkpoint, "a bit of the checkpoint"),
    _entry("flip-config", flip_config, "a bit of a table under config/"),
    _entry("snapshot-rot", snapshot_rot,
        "stopped in order; a bit in each copy of each snapshot of the tables", needs=_RAFT,
        number=signal.SIGTERM),
    _entry("torn-snapshot", torn_snapshot,
        "stopped in order; each copy of each snapshot of the tables cut short", needs=_RAFT,
        number=signal.SIGTERM),
    _entry("lost-segment", lost_segment, "a CommitLog segment is gone", needs=_RAFT),
    _entry("lost-queue", lost_queue, "a ConsumeQueue file is gone"),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _TABLE}
