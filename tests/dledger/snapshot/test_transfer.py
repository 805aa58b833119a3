"""A member whose frames are gone everywhere: silent, noted, begun anew; and when noting fails."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import raftmq.dledger.snapshot.transfer
from raftmq.dledger.raft.configuration import Configurations, founding
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import Role
from raftmq.dledger.raft.progress import PeerState
from raftmq.dledger.raft.snapshot_install import (
    GroupSnapshot,
    InstallChunk,
    InstallOffer,
    InstallRequest,
    configuration_section,
    decode_group_snapshot,
)
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.snapshot.transfer import Installer
from tests.dledger.members import Group, Node

BODY = b"x" * (64 << 10)


@dataclass
class Counted:
    """The state of a `Source`: how much was applied."""

    applied_index: int

    def encode(self) -> bytes:
        return b"%d" % self.applied_index


class Source:
    """Of a node whose state is a count; notes that it is to begin anew."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reasons: list[str] = []

    def capture(self) -> Counted:
        return Counted(self.node.member.applied_index)

    def installed(self, reason: str) -> None:
        self.reasons.append(reason)
        self.node.group.wake()


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    trio = Group(tmp_path)
    for node in trio.nodes:
        node.source = Source(node)
    async with trio:
        yield trio


async def stranded(group: Group) -> tuple[Node, Node]:
    """A leader whose first frames are gone, and a follower with a blank disk, not yet started."""
    leader = await group.leader()
    follower = group.others(leader)[0]
    for number in range(40):
        leader.app.send(BODY + b"%d" % number)
        await group.until(lambda: not leader.app.waiting)
    await group.all_applied()
    await follower.lose_disk()
    # What was written last is durable after this, and only that may go.
    await group.until(lambda: leader.member.log.durable_index == leader.member.applied_index)
    assert await leader.member.delete_before(leader.commitlog.max_offset) > 0
    assert leader.member.log.index.first_index > 2
    return leader, follower


@dataclass
class Unencodable(Counted):
    """A state that no memory holds as bytes."""

    def encode(self) -> bytes:
        raise MemoryError


def source_of(node: Node) -> Source:
    assert isinstance(node.source, Source)
    return node.source


async def test_stranded_member_records_the_snapshot_and_restarts_from_it(group: Group) -> None:
    leader, follower = await stranded(group)
    first = leader.member.log.index.first_index
    await follower.start()
    await group.until(lambda: bool(source_of(follower).reasons))
    status = follower.member.status()
    assert status["installing"] is not None
    assert "a group snapshot takes its place" in str(status["failure"])
    assert leader.member.refilled == [follower.node_id]
    assert not follower.fatal
    await follower.stop()
    with pytest.raises(AssertionError, match="is to be carried out first"):
        await follower.start()
    noted = snapshotmarker.read(follower.disk, "raft")
    assert (noted.first_index, noted.state) == (first, b"%d" % noted.applied_index)
    snapshotmarker.write_empty_log(
        follower.disk,
        "raft",
        noted,
        "commitlog",
        "checkpoint",
    )
    snapshotmarker.done(follower.disk, "raft")
    follower.commitlog.close()
    follower.checkpoint.close()
    follower.snapshot_index = noted.first_index - 1
    await follower.start()
    await group.all_applied()
    assert follower.app.frames[0].index == first
    assert follower.member.log.index.first_index == first
    await group.until(lambda: leader.member.refilled == [])
    assert follower.member.status()["installing"] is None


async def test_failed_snapshot_record_keeps_the_old_log_and_ends_the_member(
    group: Group,
) -> None:
    _, follower = await stranded(group)
    follower.disk.trouble_below = "raft/installation"
    follower.disk.fail_writes = True
    await follower.start()
    await group.until(lambda: bool(follower.fatal))
    assert "noting a group snapshot failed" in follower.fatal[0]
    assert source_of(follower).reasons == []
    assert not snapshotmarker.pending(follower.disk, "raft")
    await follower.stop()
    follower.disk.fail_writes = False
    await follower.start()
    await group.until(lambda: bool(source_of(follower).reasons))
    assert snapshotmarker.pending(follower.disk, "raft")


async def test_snapshot_record_without_a_file_descriptor_is_retried(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(raftmq.dledger.snapshot.transfer, "RETRY_S", 0.001)
    _, follower = await stranded(group)
    follower.disk.trouble_below = "raft/installation"
    follower.disk.write_error = errno.EMFILE
    follower.disk.fail_writes = True
    await follower.start()
    await group.until(lambda: "installation_not_noted" in caplog.text)
    assert not follower.fatal
    assert source_of(follower).reasons == []
    follower.disk.fail_writes = False
    await group.until(lambda: bool(source_of(follower).reasons))
    assert snapshotmarker.pending(follower.disk, "raft")
    assert not follower.fatal


@pytest.mark.parametrize(
    ("kind", "limit", "event"),
    [(Counted, 1, "installation_too_large"), (Unencodable, 1 << 20, "installation_not_made")],
)
async def test_snapshot_that_cannot_be_made_is_tried_once_and_frees_retention(
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Counted],
    limit: int,
    event: str,
) -> None:
    monkeypatch.setattr(raftmq.dledger.snapshot.transfer, "GROUP_SNAPSHOT_BYTES_MAX", limit)
    leader, follower = await stranded(group)
    captures: list[Counted] = []

    def capture() -> Counted:
        captures.append(kind(leader.member.applied_index))
        return captures[-1]

    monkeypatch.setattr(source_of(leader), "capture", capture)
    await follower.start()
    await group.until(lambda: event in caplog.text)
    assert leader.member.refilled == []
    receiver = follower.member.parts.installer._receiver
    await group.until(lambda: receiver._retries > 0)  # many of the leader's ticks later
    assert len(captures) == caplog.text.count(event) == 1
    assert leader.member.refilled == []
    assert not leader.fatal


class Alone:
    """The installer of "a", term 7, with a group and a log that only say what they are asked."""

    def __init__(self, role: Role, index: LogIndex) -> None:
        self.sent: list[Any] = []
        self.silenced: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.core = SimpleNamespace(
            role=role,
            term=7,
            leader="b",
            election=SimpleNamespace(unfit=None),
            commit_index=0,
            last_index=index.last_index,
            progress={"b": SimpleNamespace(peer="b", state=PeerState.STRANDED)},
            membership=SimpleNamespace(configurations=Configurations(2, founding([("a", "h:1")]))),
        )
        commitlog = SimpleNamespace(min_offset=4096, segment_size_bytes=4096)
        self.installer = Installer(
            MemberConfig("a", "group", {}),
            cast(Any, None),
            cast(Any, SimpleNamespace(index=index, commitlog=commitlog)),
            cast(Any, self.core),
            cast(Any, None),
            lambda: 0.0,
            cast(Any, SimpleNamespace(capture=lambda: Counted(9))),
            send=self.sent.append,
            silence=self.silenced.append,
            refuse=lambda *each: self.refused.append(each),
            on_failed=cast(Any, None),
        )


async def test_snapshot_has_no_uncommitted_configuration() -> None:
    leader = Alone(Role.LEADER, LogIndex(5, 1, 4096))
    configurations = leader.core.membership.configurations
    configurations.append(8, founding([("a", "h:1"), ("c", "h:3")]))
    leader.installer.on_message(InstallRequest("b", "a", 7, 0, 0))
    leader.installer.tick(0.0)
    await leader.installer.stop()
    (chunk,) = [message for message in leader.sent if isinstance(message, InstallChunk)]
    result = decode_group_snapshot(chunk.data).configuration
    assert result == configuration_section(2, founding([("a", "h:1")]))


@pytest.mark.parametrize(("commit_index", "wanted"), [(3, True), (4, False)])
def test_log_that_caught_up_during_the_transfer_is_kept(
    commit_index: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[bytes] = []
    monkeypatch.setattr(Installer, "_write_note", lambda self, data, reason: noted.append(data))
    follower = Alone(Role.FOLLOWER, LogIndex(1, 0, 0))
    parcel = GroupSnapshot(5, 1, 4096, 9, 4096, b"", b"").encode()
    follower.installer.on_message(InstallOffer("b", "a", 7, 5, 1, 8192))
    assert follower.sent
    follower.core.commit_index = commit_index
    follower.installer.on_message(InstallChunk("b", "a", 7, 1, 0, len(parcel), parcel))
    assert (bool(noted), bool(follower.silenced)) == (wanted, wanted)
