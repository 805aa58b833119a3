"""Damage hits the files that it is for, where it says."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.faults.damage import ROT_BITS, Harm
from raftmq.chaos.nats.damage import bit_rot, snapshot_rot, torn_snapshot

FILES = (
    "jetstream/$G/streams/Chaos/msgs/1.blk",
    "jetstream/$G/streams/Chaos/msgs/index.db",
    "jetstream/$SYS/_js_/S-R5F-x/msgs/3.blk",
    "jetstream/$SYS/_js_/S-R5F-x/snapshots/snap.2.52",
    "jetstream/$SYS/_js_/_meta_/snapshots/snap.2.6",
    "jetstream/$SYS/_js_/_meta_/tav.idx",
)
FLIPPED = re.compile(r"^(\S+) byte (\d+) bit (\d) flipped$")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in FILES:
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    return tmp_path


def bits_set(store: Path) -> dict[str, int]:
    return {name: int.from_bytes((store / name).read_bytes()).bit_count() for name in FILES}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("harm", "suffix", "count"), [(bit_rot, ".blk", ROT_BITS), (snapshot_rot, "snap", 2)]
)
def test_bits_are_flipped_where_it_is_said(
    store: Path, harm: Harm, suffix: str, count: int, seed: int
) -> None:
    said = harm(store, random.Random(seed), False).split("; ")
    assert len(said) == count
    wanted = dict.fromkeys(FILES, 0)
    places = set()
    for words in said:
        found = FLIPPED.match(words)
        assert found, words
        assert suffix in found[1]
        places.add(found.groups())
    for name, _, _ in places:
        wanted[name] += 1
    if len(places) == count:  # else two flips of one bit may have met
        assert bits_set(store) == wanted


def test_snapshots_are_cut_short(store: Path) -> None:
    torn_snapshot(store, random.Random(3), False)
    shorter = {name for name in FILES if (store / name).stat().st_size < 1000}
    assert shorter == {name for name in FILES if "snapshots" in name}


@pytest.mark.parametrize("harm", [bit_rot, snapshot_rot, torn_snapshot])
def test_what_is_not_there_cannot_be_damaged(tmp_path: Path, harm: Harm) -> None:
    with pytest.raises(ClusterError, match="there is no"):
        harm(tmp_path, random.Random(1), False)
