"""The owner of a directory: written once, compared from then on."""

from dataclasses import replace

import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.identity import (
    StoreIdentity,
    WrongIdentity,
    check_identity,
    read_identity,
    record_identity,
)

OWN = StoreIdentity("raft", "group-a", "n1")


@pytest.fixture
def disk(tmp_path):
    return OsDisk(str(tmp_path))


def test_store_identity_is_recorded_and_read(disk):
    assert check_identity(disk, "store", OWN) is None
    record_identity(disk, OWN)
    assert check_identity(disk, "store", OWN) == OWN
    assert read_identity(disk) == OWN
    assert disk.listdir("") == ["identity"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(OWN, node="n2"), "node n2 of the Raft group group-a"),
        (replace(OWN, group="group-b"), "node n1 of the Raft group group-b"),
        (StoreIdentity("classic", "group-a", ""), "the classic broker group-a"),
    ],
)
def test_wrong_store_identity_error_names_both_owners_and_the_remedy(disk, other, words):
    record_identity(disk, OWN)
    with pytest.raises(WrongIdentity) as wrong:
        check_identity(disk, "/data/store", other)
    reported = str(wrong.value)
    assert "/data/store is that of node n1 of the Raft group group-a" in reported
    assert words in reported
    assert "storePathRootDir" in reported
    assert "copy it before" in reported and "remove its file identity" in reported
    assert read_identity(disk) == OWN


def test_store_identity_fixes_the_segment_size(disk):
    record_identity(disk, OWN)  # by an earlier program: any size goes
    assert check_identity(disk, "store", replace(OWN, segment_size_bytes=1 << 30)) == OWN
    noted = replace(OWN, segment_size_bytes=1 << 24)
    record_identity(disk, noted)
    assert check_identity(disk, "store", noted) == noted
    with pytest.raises(WrongIdentity) as wrong:
        check_identity(disk, "/data/store", replace(OWN, segment_size_bytes=1 << 25))
    reported = str(wrong.value)
    assert "/data/store has segments of 16777216 bytes" in reported
    assert "set mappedFileSizeCommitLog=16777216" in reported
    other = replace(OWN, segment_size_bytes=1 << 25)
    assert check_identity(disk, "store", other, empty=True) == noted


def test_damaged_identity_file_is_ignored_and_rewritten(disk, tmp_path):
    record_identity(disk, OWN)
    complete = (tmp_path / "identity").read_bytes()
    for at in range(len(complete)):
        for wrong in (
            complete[:at],
            complete[:at] + bytes([complete[at] ^ 1]) + complete[at + 1 :],
        ):
            (tmp_path / "identity").write_bytes(wrong)
            assert check_identity(disk, "store", replace(OWN, node="n2")) is None
    record_identity(disk, OWN)
    assert (tmp_path / "identity").read_bytes() == complete


@pytest.mark.parametrize("group", ["a=b", "%RETRY%x", "größe"])
def test_store_identity_names_round_trip(disk, group):
    own = replace(OWN, group=group)
    record_identity(disk, own)
    assert check_identity(disk, "store", own)
