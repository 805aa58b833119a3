"""Whether a member may lead, by what its disk does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.diskwatch import DiskWatch
from raftmq.dledger.flusher import FlushMode
from raftmq.dledger.health import DiskState


class World:
    """A watch over a disk whose syncs last as long as `flush_ms` and `vote_ms` say."""

    def __init__(self, mode: FlushMode = FlushMode.SYNC) -> None:
        self.told: list[object] = []
        self.flush_ms = self.vote_ms = 0.0
        core = SimpleNamespace(
            node_id="n0",
            disk_fails=lambda reason, takes_frames=True: self.told.append(takes_frames),
            disk_works=lambda: self.told.append("works"),
            durable=lambda index: self.told.append(("durable", index)),
        )
        flusher = SimpleNamespace(
            mode=mode,
            written=lambda: self.told.append("written"),
            stalled_ms=lambda now_ms: self.flush_ms,
        )
        saver = SimpleNamespace(stalled_ms=lambda now_ms: self.vote_ms)
        log = SimpleNamespace(last_index=7)
        made = cast(Any, DiskWatch)  # of parts that only look like the real ones
        self.watch: DiskWatch = made(core, log, flusher, saver, stall_ms=100, alone=False)


@pytest.mark.parametrize("which", ["flush_ms", "vote_ms"])
def test_a_sync_that_hangs_ends_leadership_until_it_returns(which: str) -> None:
    world = World()
    world.watch.look(1.0)
    assert world.told == []
    setattr(world, which, 101.0)
    world.watch.look(2.0)
    world.watch.look(3.0)
    assert world.told == [True]
    assert world.watch.health.state is DiskState.STALLED
    setattr(world, which, 0.0)
    world.watch.look(4.0)
    assert world.told == [True, "works"]


def test_a_full_disk_takes_no_frames_until_those_held_are_written() -> None:
    world = World()
    world.watch.full(OSError("no space"))
    assert world.told == [False]
    assert world.watch.health.is_full
    world.watch.has_room()
    assert world.told == [False, "works", "written"]
    assert world.watch.health.state is DiskState.OK


def test_frames_count_as_durable_at_once_only_in_async_flush() -> None:
    world = World()
    world.watch.written()
    assert world.told == ["written"]
    world = World(FlushMode.ASYNC)
    world.watch.written()
    assert world.told == ["written", ("durable", 7)]
