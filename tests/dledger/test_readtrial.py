"""A leader whose disk does not read: it steps down, and leads again when the same read works."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from raftmq.dledger.health import DiskHealth, DiskState
from raftmq.dledger.messages import Role
from raftmq.store.errors import OffsetOutOfRange
from tests.dledger.members import Group

NOT_READ = OSError(errno.EIO, "cannot read, says the test")


def test_the_health_of_a_disk_that_cannot_be_read() -> None:
    health = DiskHealth(100)
    assert health.unreadable("no")
    assert not health.unreadable("again")
    assert (health.state, health.reason) == (DiskState.UNREADABLE, "no")
    assert not health.synced(500.0)  # it is bad already
    health.readable()
    assert (health.state, health.reason) == (DiskState.OK, "")
    health.full("no room")
    assert not health.unreadable("no")
    health.readable()
    assert health.is_full
    health.failed("gone")
    assert not health.unreadable("no")
    health.readable()
    assert health.state is DiskState.FAILED


async def test_a_leader_that_cannot_read_for_a_follower_gives_leadership_up(tmp_path: Path) -> None:
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


async def test_it_stays_out_of_elections_until_the_same_read_works(tmp_path: Path) -> None:
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
        assert leader.member.core.unfit is not None
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
async def test_reads_that_change_nothing(
    tmp_path: Path, count: int, at_leader: bool, number: int
) -> None:
    async with Group(tmp_path, count) as group:
        leader = await group.leader()
        node = leader if at_leader else group.others(leader)[0]
        calls: list[str] = []
        trial = node.member.parts.pump.disk.trial
        real = trial.failed

        def failed(error: OSError, again: Callable[[], object]) -> None:
            real(error, again)
            calls.append("failed")

        trial.failed = failed  # type: ignore[method-assign]
        node.member.read_failed(OSError(number, "says the test"), lambda: calls.append("again"))
        await group.until(lambda: bool(calls))
        assert calls == ["failed"]
        assert node.member.status()["disk_state"] == "ok"
        assert node.member.core.unfit is None
        assert leader.member.core.role is Role.LEADER
