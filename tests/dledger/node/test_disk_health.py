"""Whether a member may lead, by what its disk does: hang, fill, fail to read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.disk_health import DiskHealth, DiskState
from raftmq.dledger.raft.messages import Role
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.store.errors import OffsetOutOfRange
from tests.dledger.members import Group

NOT_READ = OSError(errno.EIO, "cannot read, says the test")


class World:
    """A disk whose syncs last as long as `flush_ms` and `vote_ms` say."""

    def __init__(self, mode: FlushMode = FlushMode.SYNC) -> None:
        self.told: list[object] = []
        self.flush_ms = self.vote_ms = 0.0
        core = SimpleNamespace(
            node_id="n0",
            role=Role.LEADER,
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
        made = cast(Any, DiskHealth)  # of parts that only look like the real ones
        self.disk: DiskHealth = made(core, log, flusher, saver, stall_ms=100, alone=False)


@pytest.mark.parametrize("which", ["flush_ms", "vote_ms"])
def test_hanging_sync_ends_leadership_until_the_sync_returns(which: str) -> None:
    world = World()
    world.disk.poll(1.0)
    assert world.told == []
    setattr(world, which, 101.0)
    world.disk.poll(2.0)
    world.disk.poll(3.0)
    assert world.told == [True]
    assert world.disk.state is DiskState.STALLED
    setattr(world, which, 0.0)
    world.disk.poll(4.0)
    assert world.told == [True, "works"]


def test_full_disk_rejects_frames_until_held_frames_are_written() -> None:
    world = World()
    world.disk.full(OSError("no space"))
    assert world.told == [False]
    assert world.disk.is_full
    world.disk.has_room()
    assert world.told == [False, "works", "written"]
    assert world.disk.state is DiskState.OK


def test_received_frames_count_as_durable_only_under_async_flush() -> None:
    world = World()
    world.disk.written()
    assert world.told == ["written"]
    world = World(FlushMode.ASYNC)
    world.disk.written()
    assert world.told == ["written", ("durable", 7)]


def test_first_disk_failure_state_is_kept_when_a_second_failure_occurs() -> None:
    world = World()
    disk, unread = world.disk, lambda: None
    disk.full(OSError("no space"))
    world.flush_ms = 500.0
    disk.poll(1.0)
    disk.read_failed(NOT_READ, unread)
    disk.read_again()
    assert (disk.state, disk.reason) == (DiskState.FULL, "no room for the next frame: no space")
    assert disk.reported("slow, too") == (disk.state, disk.reason)
    world.flush_ms = 0.0
    disk.has_room()
    disk.read_failed(NOT_READ, unread)
    disk.read_failed(OSError("again"), unread)
    assert disk.reason == "reading the log failed: [Errno 5] cannot read, says the test"
    world.flush_ms = 500.0
    disk.poll(2.0)
    assert disk.state is DiskState.UNREADABLE
    disk.read_again()
    assert (disk.state, disk.reason) == (DiskState.OK, "")
    assert disk.reported("writes wait") == (DiskState.SLOW, "writes wait")
    disk.failed("gone")
    disk.full(OSError("no space"))
    disk.has_room()
    disk.poll(3.0)
    disk.read_failed(NOT_READ, unread)
    assert (disk.state, disk.reason) == (DiskState.FAILED, "gone")


async def test_leader_with_a_read_error_for_a_follower_steps_down(tmp_path: Path) -> None:
    """The cache holds two frames: what a late follower lacks has to be read."""
    async with Group(tmp_path, log_cache_bytes_max=20_000) as group:
        leader = await group.leader()
        late, other = group.others(leader)
        await late.kill()
        messages = [b"%06d" % n + b"x" * 10_000 for n in range(8)]
        for message in messages:
            leader.app.send(message)
            await group.until(lambda m=message: m in leader.app.fates)  # type: ignore[misc]
        await group.all_applied()
        leader.disk.fail_reads = True
        await late.start()
        # The other one has all of it and can read it.
        await group.until(lambda: other.app.ready and late.app.payloads == messages)
        assert not leader.fatal
        assert leader.member.core.role is Role.FOLLOWER
        status = leader.member.status()
        assert status["disk_state"] == "unreadable"
        assert "cannot read, says the test" in str(status["disk_reason"])
        stepped_down = [e for e in leader.app.events if "reading the log failed" in e.reason]
        assert [event.role for event in stepped_down] == [Role.FOLLOWER]
        # Writing works still: it follows, and acknowledges.
        other.app.send(b"more")
        await group.until(lambda: leader.app.payloads[-1:] == [b"more"])
        # Nobody else may be left: it does not come back while its disk does not read.
        leader.disk.fail_reads = False
        await group.until(lambda: leader.member.status()["disk_state"] == "ok")
        await group.hand_over(leader)


async def test_leader_with_a_read_error_does_not_campaign_until_reads_succeed(
    tmp_path: Path,
) -> None:
    tried: list[int] = []

    def again() -> None:
        tried.append(len(tried))
        if len(tried) < 3:
            raise NOT_READ
        raise OffsetOutOfRange(0, 1, 2)  # retention took it: nothing is left to read

    async with Group(tmp_path) as group:
        leader = await group.leader()
        leader.member.read_failed(NOT_READ, again)
        await group.until(lambda: leader.member.core.role is Role.FOLLOWER)
        for node in group.others(leader):
            await node.kill()
        await group.until(lambda: bool(tried))
        assert leader.member.core.election.unfit is not None
        await group.until(lambda: leader.member.core.role is not Role.FOLLOWER)
        assert tried == [0, 1, 2]
        assert leader.member.status()["disk_state"] == "ok"


@pytest.mark.parametrize(
    ("count", "at_leader", "number"),
    [
        (1, True, errno.EIO),  # nobody else could do better
        (3, False, errno.EIO),  # followers go on
        (3, True, errno.EMFILE),  # not the disk's fault
    ],
)
async def test_read_errors_without_a_successor_do_not_change_the_disk_state(
    tmp_path: Path, count: int, at_leader: bool, number: int
) -> None:
    async with Group(tmp_path, count) as group:
        leader = await group.leader()
        node = leader if at_leader else group.others(leader)[0]
        calls: list[str] = []
        disk = node.member.parts.pump.disk
        real = disk.read_failed

        def failed(error: OSError, again: Callable[[], object]) -> None:
            real(error, again)
            calls.append("failed")

        disk.read_failed = failed  # type: ignore[method-assign]
        node.member.read_failed(OSError(number, "says the test"), lambda: calls.append("again"))
        await group.until(lambda: bool(calls))
        assert calls == ["failed"]
        assert node.member.status()["disk_state"] == "ok"
        assert node.member.core.election.unfit is None
        assert leader.member.core.role is Role.LEADER
