"""The voters of a group: the audit's own reading of configurations, and which of them counts."""

from pathlib import Path

import pytest

from raftmq.audit.read.store_files import Store
from raftmq.audit.read.voters import (
    BadConfiguration,
    ConfigurationFrame,
    Members,
    decode_members,
    members_of,
)
from raftmq.dledger.raft.configuration import (
    Configuration,
    GroupMember,
    MemberRole,
    decode_configuration,
    encode_configuration,
)
from raftmq.dledger.storage.configuration_file import ConfigurationFile
from raftmq.store.disk import OsDisk


def configuration(voters: str, learners: str = "", preferred: str | None = None) -> bytes:
    members = [GroupMember(name, f"host-{name}:1", 7, founder=name == "a") for name in voters]
    members += [GroupMember(name, "", 8, MemberRole.LEARNER) for name in learners]
    return encode_configuration(Configuration(tuple(members), ("gone",), 9, preferred))


def frame(index: int, voters: str, holders: str) -> ConfigurationFrame:
    return ConfigurationFrame(index, index * 100, configuration(voters), frozenset(holders))


def found(frames: list[ConfigurationFrame], **commits: int) -> Members:
    zeros = dict.fromkeys("abcde", 0)
    return members_of(frames, zeros | commits, [], "abc", "cluster.json")


def test_audit_decodes_configurations_as_the_group_does() -> None:
    for payload in (configuration("abc"), configuration("abé", "xy", "a"), configuration("a")):
        members = decode_configuration(payload)
        assert decode_members(payload) == (
            members.voters,
            frozenset(m.node_id for m in members.members if m.role is MemberRole.LEARNER),
        )


def test_malformed_configuration_is_rejected() -> None:
    complete = configuration("abc")
    for cut in range(len(complete) - 20):
        with pytest.raises(BadConfiguration):
            decode_members(complete[:cut])
    with pytest.raises(BadConfiguration):
        decode_members(b"\x09" + complete[1:])


def test_saved_configuration_file_is_read(tmp_path: Path) -> None:
    assert Store("n0", str(tmp_path)).saved_configuration() is None
    file = ConfigurationFile(OsDisk(str(tmp_path)), "raft")
    file.save(5, decode_configuration(configuration("abc")))
    file.save(9, decode_configuration(configuration("abcd", "e")))
    file.close()
    assert Store("n0", str(tmp_path)).saved_configuration() == (9, configuration("abcd", "e"))
    path = tmp_path / "raft" / "configuration"
    content = bytearray(path.read_bytes())
    content[20] ^= 1  # the first slot rots
    path.write_bytes(content)
    assert Store("n0", str(tmp_path)).saved_configuration() == (9, configuration("abcd", "e"))
    content[4096 + 20] ^= 1  # and the second
    path.write_bytes(content)
    assert Store("n0", str(tmp_path)).saved_configuration() is None


def test_newest_committed_configuration_counts() -> None:
    assert found([]) == Members(frozenset("abc"), frozenset(), "cluster.json")
    held = [frame(3, "abcd", "abc"), frame(7, "abcde", "abc"), frame(9, "abde", "ab")]
    members = found(held)
    assert members.voters == frozenset("abcde")
    assert members.majority == 3
    assert members.source == "the configuration of frame 7"


def test_minority_configuration_counts_if_one_store_has_it_committed() -> None:
    held = [frame(7, "abcde", "ab")]  # three stores are gone
    assert found(held).voters == frozenset("abc")
    assert found(held, a=699).voters == frozenset("abc")
    assert found(held, a=700).voters == frozenset("abcde")
    assert found(held, c=700).voters == frozenset("abc")  # c has another frame there


def test_saved_configuration_counts_as_committed() -> None:
    saved = [(8, configuration("ab")), (4, configuration("abc"))]
    members = members_of([frame(5, "abcd", "abc")], dict.fromkeys("abc", 0), saved, "abc", "")
    assert members.voters == frozenset("ab")


def test_logged_configuration_precedes_a_saved_one() -> None:
    saved = [(5, configuration("xyz"))]
    members = members_of([frame(5, "abcd", "abc")], dict.fromkeys("abc", 0), saved, "abc", "")
    assert members.voters == frozenset("abcd")


def test_saved_configuration_is_ignored_if_the_log_has_another_frame() -> None:
    """Also if nobody knows that frame to be committed."""
    saved = [(5, configuration("xyz"))]
    members = members_of([frame(5, "abcd", "a")], dict.fromkeys("abc", 0), saved, "abc", "")
    assert members.voters == frozenset("abc")
