"""Members over damaged files: real files, real sockets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from raftmq.dledger.raft.repair import RepairTiming
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import Frame, FrameKind, seal_frame
from tests.dledger.members import WAIT_S, Group, Node

SEGMENT = 8192
# However slow the machine is, nobody gives up frames that another one can still get, or give.
PATIENT = RepairTiming(retry_ms=20, retry_ms_max=100, give_up_ms=90_000)
HASTY = RepairTiming(retry_ms=20, retry_ms_max=100, give_up_ms=300)
SETTINGS = {
    "flush": FlushMode.SYNC,
    "segment_size_bytes": SEGMENT,
    "repair": PATIENT,
    "scrub_pause_ms": 0,
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def a_group(root: Path, **more: object) -> Group:
    return Group(root, **{**SETTINGS, **more})  # type: ignore[arg-type]


async def filled(group: Group, count: int = 60, size: int = 900) -> list[Frame]:
    """All frames of a group that has applied `count` commands."""
    leader = await group.leader()
    for n in range(count):
        await leader.member.propose_command(b"%04d" % n + bytes(size))
    await group.all_applied()
    return list(leader.app.frames)


def segment_of(node: Node, position: int) -> Path:
    return Path(node.disk.root) / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}"


def overwrite(node: Node, position: int, data: bytes) -> None:
    with open(segment_of(node, position), "r+b") as file:
        file.seek(position % SEGMENT)
        file.write(data)


def flip(node: Node, position: int) -> None:
    with open(segment_of(node, position), "r+b") as file:
        file.seek(position % SEGMENT)
        byte = file.read(1)[0]
        file.seek(position % SEGMENT)
        file.write(bytes([byte ^ 0x20]))


def files_of(node: Node) -> dict[str, bytes]:
    directory = Path(node.disk.root) / "commitlog"
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def assert_same_logs(group: Group) -> None:
    """Byte for byte, as far as frames go (a prepared segment may be there or not)."""
    logs = [files_of(node) for node in group.nodes]
    common = set.intersection(*(set(files) for files in logs))
    for files in logs:
        assert {n: files[n] for n in common} == {n: logs[0][n] for n in common}
        assert not any(any(data) for name, data in files.items() if name not in common)


def header(node: Node, frame: Frame) -> None:
    flip(node, frame.position + 9)


def payload(node: Node, frame: Frame) -> None:
    flip(node, frame.end - 5)


def zeros(node: Node, frame: Frame) -> None:
    overwrite(node, frame.position, bytes(frame.size_bytes))


def lost(node: Node, frame: Frame) -> None:
    segment_of(node, frame.position).unlink()


def short(node: Node, frame: Frame) -> None:
    with open(segment_of(node, frame.position), "r+b") as file:
        file.truncate(frame.position % SEGMENT + 30)


@pytest.mark.parametrize("harm", [header, payload, zeros, lost, short])
@pytest.mark.parametrize("victim", [0, 25, -1])
def test_damaged_log_is_repaired_before_the_replica_takes_part(
    tmp_path: Path, harm: Callable[[Node, Frame], None], victim: int
) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group)
            node = group.others(await group.leader())[0]
            await node.stop()
            harm(node, frames[victim])
            await node.start()
            assert node.member.core.recovered, "nothing was lost"
            assert node.member.recovering is None
            await (await group.leader()).member.propose_command(b"after")
            await group.all_applied()
            assert node.app.frames[: len(frames)] == frames
            await group.until(lambda: node.member.status()["damaged_count"] == 0)
            assert_same_logs(group)
        assert not node.fatal

    run(test)


def test_several_damaged_regions_and_blank_records_are_repaired_together(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group)
            node = group.others(await group.leader())[0]
            await node.stop()
            for index in (3, 17, 18, 40):
                header(node, frames[index])
            zeros(node, frames[30])
            for frame, following in pairwise(frames):
                if following.position != frame.end:
                    overwrite(node, frame.end, b"\x01")
            await node.start()
            assert node.member.core.recovered
            assert int(str(node.member.status()["repaired"])) >= 5
            await group.all_applied()
            assert node.app.frames == frames
            assert_same_logs(group)

    run(test)


def test_damaged_replica_waits_for_peers_and_reports_the_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group, 20)
            for node in group.nodes:
                await node.stop()
            node = group.nodes[0]
            header(node, frames[10])
            starting = asyncio.ensure_future(node.start())
            await group.until(lambda: node.running and node.member.status()["role"] == "repairing")
            repairing = node.member.status()["repairing"]
            assert isinstance(repairing, dict)
            assert (repairing["index"], repairing["position"]) == (11, frames[10].position)
            assert "CRC" in str(repairing["reason"])
            await asyncio.sleep(0.3)  # several rounds: nobody is there
            assert not starting.done()
            starting.cancel()
            await asyncio.wait([starting])
            await node.stop()
            # The same again, and now the others come up.
            starting = asyncio.ensure_future(node.start())
            await group.nodes[1].start()
            await group.nodes[2].start()
            async with asyncio.timeout(WAIT_S):
                await starting
            await group.all_applied()
            assert node.app.frames[: len(frames)] == frames
            assert_same_logs(group)

    run(test)


def extend(node: Node, count: int, term: int) -> list[Frame]:
    """Frames that only this stopped node has, durable: a leader wrote them and was deposed."""
    checkpoint = Checkpoint(node.disk, "checkpoint")
    checkpoint.open(verify=True)
    commitlog = CommitLog(node.disk, "commitlog", SEGMENT, checkpoint)
    commitlog.open(restore=True)
    log = RaftLog(commitlog)
    log.open()
    frames = []
    for n in range(count):
        index, position = log.last_index + 1, log.allocate(100 + n)
        frames.append(seal_frame(index, term, position, 1, FrameKind.COMMAND, 0, bytes(100 + n)))
        log.append(frames[-1:])
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    commitlog.close()
    checkpoint.close()
    return frames


def test_damaged_tail_that_a_later_leader_lacks_is_truncated(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group, 20)
            node = await group.leader()
            term = node.member.core.term
            await node.kill()  # a planned stop hands over, and waits for the next term's frames
            own = extend(node, 5, term)
            header(node, own[1])
            await group.leader(group.others(node))  # of a higher term, without those
            await node.start()
            assert node.member.recovering is None
            # The frame before the damage was not the group's either; it is cut as always.
            await (await group.leader()).member.propose_command(b"after")
            await group.all_applied()
            assert node.app.frames[: len(frames)] == frames
            assert_same_logs(group)

    run(test)


def test_group_damaged_at_one_frame_everywhere_continues_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path, repair=HASTY) as group:
            frames = await filled(group, 20)
            for node in group.nodes:
                await node.stop()
            for node in group.nodes:
                header(node, frames[12])
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*(node.start() for node in group.nodes))
            leader = await group.leader()
            await leader.member.propose_command(b"after")
            await group.all_applied()
            await group.until(lambda: all(n.member.core.recovered for n in group.nodes))
            for node in group.nodes:
                assert node.app.frames[:12] == frames[:12]
                assert node.app.payloads[-1] == b"after"
                aside = Path(node.disk.root) / "raft" / f"damaged-{frames[12].position:020d}"
                assert aside.read_bytes()[frames[12].size_bytes :].startswith(frames[13].data)
            assert_same_logs(group)

    run(test)


def test_group_damaged_at_different_frames_loses_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group, 30)
            for node in group.nodes:
                await node.stop()
            for node, positions in zip(group.nodes, ((3, 11), (5, 20), (8, 15)), strict=True):
                for position in positions:
                    header(node, frames[position])
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*(node.start() for node in group.nodes))
            assert all(n.member.recovering is None for n in group.nodes)
            await group.leader()
            await group.all_applied()
            for node in group.nodes:
                assert node.app.frames[: len(frames)] == frames
            assert_same_logs(group)

    run(test)


@pytest.mark.parametrize("harm", ["all", "end", "mark"])
def test_log_with_a_damaged_checkpoint_makes_the_replica_recover(tmp_path: Path, harm: str) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            frames = await filled(group, 20)
            node = group.others(await group.leader())[0]
            await node.stop()
            root = Path(node.disk.root)
            if harm == "all":
                shutil.rmtree(root / "commitlog")
            elif harm == "end":
                max((root / "commitlog").iterdir()).unlink()
            (root / "checkpoint").write_bytes(b"\xff" * 4096)
            await node.start()
            assert node.member.recovering is not None
            await group.until(lambda: node.member.core.recovered)
            await group.all_applied()
            assert node.app.frames[: len(frames)] == frames
            assert_same_logs(group)

    run(test)


def test_damaged_single_replica_does_not_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path, count=1) as group:
            frames = await filled(group, 10)
            node = group.nodes[0]
            await node.stop()
            header(node, frames[4])
            with pytest.raises(StoreDamaged, match="no peer"):
                await node.start()

    run(test)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_scrubber_finds_and_repairs_corruption_in_a_running_member(
    tmp_path: Path, who: str
) -> None:
    async def test() -> None:
        async with a_group(tmp_path, log_cache_bytes_max=1000) as group:
            frames = await filled(group)
            leader = await group.leader()
            node = leader if who == "leader" else group.others(leader)[0]
            for index in (2, 30, 31):
                payload(node, frames[index])
            header(node, frames[40])
            for frame, following in pairwise(frames):
                if following.position != frame.end:
                    overwrite(node, frame.end, b"\x01\x02")
                    break

            def is_valid_frame() -> bool:
                status = node.member.status()
                return int(str(status["repaired"])) == 4 and status["damaged_count"] == 0

            await group.until(is_valid_frame)
            await leader.member.propose_command(b"after")
            await group.all_applied()
            scrub = node.member.status()["scrub"]
            assert isinstance(scrub, dict)
            assert scrub["found"] == 4
            await group.until(lambda: not node.member.healer._syncing)
            assert_same_logs(group)
        assert not node.fatal

    run(test)


def test_corruption_found_while_serving_a_slow_peer_delays_only_that_peer(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path, log_cache_bytes_max=1000, scrub_bytes_per_s=0) as group:
            leader = await group.leader()
            slow, helper = group.others(leader)
            await slow.stop()
            for n in range(40):
                await leader.member.propose_command(b"%04d" % n + bytes(900))
            await group.all_applied([leader, helper])
            frames = list(leader.app.frames)
            for index in (10, 11, 30):
                payload(leader, frames[index])
            await slow.start()
            await group.until(lambda: slow.member.applied_index >= frames[-1].index)
            assert await group.leader() is leader
            assert slow.app.frames[: len(frames)] == frames
            await group.until(lambda: leader.member.status()["damaged_count"] == 0)
            assert_same_logs(group)

    run(test)


def test_corruption_found_while_applying_at_start_is_repaired(tmp_path: Path) -> None:
    """Old segments' payloads are not read at boot, so this is not found before."""

    async def test() -> None:
        async with a_group(tmp_path, scrub_bytes_per_s=0) as group:
            frames = await filled(group)
            node = group.others(await group.leader())[0]
            await node.stop()
            for index in (1, 2, 20):
                payload(node, frames[index])
            await node.start()
            await group.all_applied()
            assert node.app.frames == frames
            assert node.member.status()["repaired"] == 3
            assert_same_logs(group)

    run(test)


def test_scrubber_can_be_turned_off_and_wraps_around(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_group(tmp_path) as group:
            await filled(group, 5, 10)
            node = group.nodes[0]

            def rounds() -> int:
                scrub = node.member.status()["scrub"]
                assert isinstance(scrub, dict)
                return int(scrub["rounds"])

            await group.until(lambda: rounds() >= 2)
        async with a_group(tmp_path / "off", scrub_bytes_per_s=0) as group:
            await filled(group, 5, 10)
            scrub = group.nodes[0].member.status()["scrub"]
            assert isinstance(scrub, dict)
            assert scrub["checked_bytes"] == 0

    run(test)
