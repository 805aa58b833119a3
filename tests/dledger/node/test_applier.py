"""Committed frames reach the application in order, in batches, and not after the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import raftmq.dledger.node.applier
from raftmq.dledger.node.applier import Applier
from raftmq.dledger.raft.errors import ApplyLater, FrameDamaged
from raftmq.store.frame import Frame
from tests.dledger.group import make_log
from tests.dledger.members import Group, ListApplication
from tests.waiting import until

FRAMES = make_log([1] * 6)


class World:
    """An applier that takes two frames a batch, from a log whose frame `damaged` cannot be read."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.failures: list[Exception] = []
        self.damaged = 0
        self.error: Exception | None = None
        self.applier = Applier(
            cast(Any, SimpleNamespace(frames=self.frames, has_mender=True)),
            cast(Any, SimpleNamespace(apply=lambda frames: self.apply(frames))),
            cast(Any, SimpleNamespace(refuted_by=lambda frames: None, applied=lambda frames: None)),
            applied_index=0,
        )
        self.applier.start(lambda: None, self.failures.append)

    def frames(self, first: int, last: int, bytes_max: int) -> list[Frame]:
        if self.error is not None:
            raise self.error
        if first == self.damaged:
            raise FrameDamaged(first, 0, "says the test")
        last = min(last, first + 1, self.damaged - 1 if self.damaged > first else last)
        return FRAMES[first - 1 : last]

    def apply(self, frames: list[Frame]) -> None:
        self.applied += [frame.index for frame in frames]


async def test_applier_applies_a_long_tail_in_one_batch_per_loop_turn() -> None:
    world = World()
    world.applier.advance(5)
    assert world.applied == [1, 2]
    await until(lambda: world.applied == [1, 2, 3, 4, 5])


async def test_applier_reports_applied_and_commit_index() -> None:
    world = World()
    assert world.applier.commit_index == 0
    world.applier.advance(5)
    assert (world.applier.applied_index, world.applier.commit_index) == (2, 5)
    world.applier.go_back(1)
    assert world.applier.commit_index == 1


async def test_applier_stops_at_a_damaged_frame_until_it_is_repaired() -> None:
    world = World()
    world.damaged = 3
    world.applier.advance(6)
    await asyncio.sleep(0.01)
    assert world.applied == [1, 2]
    world.damaged = 0
    world.applier.resume()
    await until(lambda: world.applied == [1, 2, 3, 4, 5, 6])


async def test_stopped_applier_applies_nothing() -> None:
    world = World()
    world.damaged = 3
    world.applier.advance(6)
    await asyncio.sleep(0.01)
    world.applier.stop()
    world.damaged = 0
    world.applier.resume()  # a peer's answer came while the links were being closed
    world.applier.advance(6)
    await asyncio.sleep(0.01)
    assert world.applied == [1, 2]


async def test_applier_stopped_during_a_batch_applies_no_further_batch() -> None:
    world = World()

    def apply(frames: list[Frame]) -> None:
        World.apply(world, frames)
        world.applier.stop()

    world.apply = apply  # type: ignore[method-assign]
    world.applier.advance(6)
    await asyncio.sleep(0.01)
    assert world.applied == [1, 2]


async def test_applier_reports_an_error_in_a_later_batch() -> None:
    world = World()
    world.applier.advance(4)
    world.error = error = OSError(5, "cannot read")
    await until(lambda: world.failures)
    assert world.failures == [error] and world.applied == [1, 2]


class Reluctant(ListApplication):
    """Cannot apply so many times."""

    refusals = 0

    def apply(self, frames: Sequence[Frame]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ApplyLater("says the test")
        super().apply(frames)


async def test_applier_retries_frames_that_the_application_rejects_temporarily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raftmq.dledger.node.applier, "RETRY_S", 0.001)
    async with Group(tmp_path) as group:
        leader = await group.leader()
        app = leader.app
        monkeypatch.setattr(app, "__class__", Reluctant)
        app.refusals = 5  # type: ignore[attr-defined]
        for message in (b"a", b"b", b"c"):
            app.send(message)
        await group.until(lambda: app.fates == dict.fromkeys((b"a", b"b", b"c"), "stored"))
        assert app.refusals == 0  # type: ignore[attr-defined]
        assert b",".join(app.payloads) == b"a,b,c"
        assert not leader.fatal
