"""The founding members: noted at a replica's first start, and held against the file afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.peer_addresses import Roster
from raftmq.dledger.raft.configuration import (
    Configuration,
    Configurations,
    encode_configuration,
    founding,
)
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.storage.configuration_file import MembersDiffer
from raftmq.dledger.transport.transport import PeerAddress
from raftmq.store.disk import OsDisk


def starts(
    root: Path, names: str, frames: int, *, port: int = 1, changed: Configuration | None = None
) -> Configurations:
    """Start replica a with these members in its file, and a log of so many frames, the last of
    which makes the members `changed`."""
    peers = {name: PeerAddress(name, f"host-{name}", port) for name in names}
    config = replace(MemberConfig("a", "g", peers), directory="raft")
    roster = Roster(config, OsDisk(str(root)), lambda reason, error: None)
    roster.load()
    log = SimpleNamespace(
        configuration_indexes=[frames] if changed else [],
        frames=lambda *_: [
            SimpleNamespace(payload=encode_configuration(changed or Configuration()))
        ],
        index=LogIndex(),
        last_index=frames,
        first_index=1,
    )
    return roster.starting(cast(Any, log))


def addresses(found: Configurations) -> dict[str, str]:
    return {member.node_id: member.address for member in found.current.members}


def test_replica_with_frames_rejects_a_different_member_list(tmp_path: Path) -> None:
    """A group of one would acknowledge what two others do not have."""
    OsDisk(str(tmp_path)).makedirs("raft")
    starts(tmp_path, "abc", 0)
    for names in ("a", "ab", "abcd", "abd"):
        with pytest.raises(MembersDiffer, match="this group was founded by a, b, c"):
            starts(tmp_path, names, 1)
    assert set(addresses(starts(tmp_path, "abc", 1))) == set("abc")


def test_member_list_may_change_until_the_first_frame_and_addresses_later(
    tmp_path: Path,
) -> None:
    OsDisk(str(tmp_path)).makedirs("raft")
    starts(tmp_path, "ab", 0)
    starts(tmp_path, "abc", 0)
    with pytest.raises(MembersDiffer):
        starts(tmp_path, "ab", 5)
    result = addresses(starts(tmp_path, "cba", 5, port=2))
    assert result == {name: f"host-{name}:2" for name in "abc"}


def test_member_list_of_a_logged_change_is_accepted(tmp_path: Path) -> None:
    """The file is written a moment after the log; a change that is taken back leaves the list."""
    OsDisk(str(tmp_path)).makedirs("raft")
    starts(tmp_path, "ab", 0)
    changed = founding([("a", "x:1"), ("b", "y:1"), ("c", "z:1")])
    result = starts(tmp_path, "abc", 5, changed=changed)
    assert result.settled[1].ids == {"a", "b"}
    assert result.index == 5
    assert result.current == changed
    with pytest.raises(MembersDiffer):
        starts(tmp_path, "abc", 5)


def test_store_without_a_recorded_member_list_accepts_the_first_one(tmp_path: Path) -> None:
    OsDisk(str(tmp_path)).makedirs("raft")
    starts(tmp_path, "abc", 7)
    with pytest.raises(MembersDiffer):
        starts(tmp_path, "a", 7)
