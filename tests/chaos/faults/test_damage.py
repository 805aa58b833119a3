"""Damage hits the reported bits and nothing else."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.faults import damage
from raftmq.chaos.faults.damage import Harm
from raftmq.chaos.faults.damage_targets import Item, durable_offset, log_items, slots, used_units
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import QUEUE_ENTRY
from raftmq.store.index.index_file import HEADER
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.record import encode_record
from tests.store.make import FrameWriter, record, recover_frames

SEGMENT_BYTES = 16 << 10
SEEDS = range(20)
FLIPPED = re.compile(r"^(\S+) byte (\d+) bit (\d) flipped$")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the store of a killed replica with three segments, of which the last frames are not
    durable, a queue, a vote, a table, an index."""
    disk = OsDisk(str(tmp_path))
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    log = CommitLog(disk, "commitlog", SEGMENT_BYTES, checkpoint)
    log.open()
    writer = FrameWriter(log)
    for number in range(40):
        writer.messages([record(body=bytes([number]) * 700)])
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    for number in range(5):
        writer.messages([record(body=bytes([number]) * 700)])
    log.close()
    checkpoint.close()
    queues = ConsumeQueueStore(disk, "consumequeue", 100)
    queues.open(0)
    queues.append("T", 0, 0, b"".join(QUEUE_ENTRY.pack(n * 900, 800, 7) for n in range(1, 41)))
    queues.flush()
    queues.close()
    vote = HardStateFile(disk, "raft/hardstate")
    for term in (1, 2):
        vote.save(HardState(term, "n1"))
    vote.close()
    disk.makedirs("config")
    (tmp_path / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{}}')
    (tmp_path / "index").mkdir()
    with (tmp_path / "index" / "20260101000000000").open("wb") as index:
        index.write(HEADER.pack(1, 2, 3, 4, 1, 2))
        index.truncate(IndexLimits(1000, 1000).file_size_bytes)
    return tmp_path


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def differing_bits(before: bytes, after: bytes) -> list[tuple[int, int]]:
    assert len(before) == len(after)
    return [
        (at, bit)
        for at, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new
        for bit in range(8)
        if (old ^ new) >> bit & 1
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("harm", "place"),
    [
        (damage.flip_header, "commitlog/"),
        (damage.flip_payload, "commitlog/"),
        (damage.flip_queue, "consumequeue/T/0/"),
        (damage.flip_index, "index/"),
        (damage.flip_vote_slot, "raft/hardstate"),
        (damage.flip_checkpoint, "checkpoint"),
        (damage.flip_config, "config/topics.json"),
    ],
)
def test_flipped_bit_is_the_reported_one(store: Path, harm: Harm, place: str, seed: int) -> None:
    before = contents(store)
    said = harm(store, random.Random(seed), True)
    after = contents(store)
    match = FLIPPED.match(said)
    assert match, said
    name, at, bit = match[1], int(match[2]), int(match[3])
    assert name.startswith(place)
    assert differing_bits(before[name], after[name]) == [(at, bit)]
    assert {n for n in before if before[n] != after[n]} == {name}
    if place == "commitlog/":
        (item,) = [i for i in log_items(before[name]) if i.at <= at < i.end]
        assert (at < item.at + item.header_bytes) is (harm is damage.flip_header)
        start = int(name.rpartition("/")[2])
        assert start + item.end <= durable_offset(before["checkpoint"])
    if place.startswith("consumequeue"):
        assert at < 40 * 20
    if place == "raft/hardstate":
        assert HardStateFile(OsDisk(str(store)), "raft/hardstate").load() == HardState(2, "n1")


@pytest.mark.parametrize("seed", SEEDS)
def test_corruption_flips_bits_of_durable_frames(store: Path, seed: int) -> None:
    before = contents(store)
    said = damage.bit_rot(store, random.Random(seed), True)
    match = [FLIPPED.match(text) for text in said.split("; ")]
    assert len(match) == damage.ROT_BITS
    mark = durable_offset(before["checkpoint"])
    for flipped in match:
        assert flipped, said
        start = int(flipped[1].removeprefix("commitlog/"))
        assert start + int(flipped[2]) < mark


@pytest.mark.parametrize("seed", SEEDS)
def test_every_snapshot_is_damaged_with_its_older_copy(store: Path, seed: int) -> None:
    table = store / "config" / "topics.json"
    copy = table.with_suffix(".json.bak")
    copy.write_bytes(kept := table.read_bytes())
    said = damage.snapshot_rot(store, random.Random(seed), True)
    assert said.count("flipped") == 2
    for path in (table, copy):
        assert len(differing_bits(kept, path.read_bytes())) == 1
        path.write_bytes(kept)
    damage.torn_snapshot(store, random.Random(seed), True)
    for path in (table, copy):
        assert len(path.read_bytes()) < len(kept)
        assert kept.startswith(path.read_bytes())


def test_same_seed_does_the_same_damage(store: Path) -> None:
    before = contents(store)
    for harm in (damage.flip_header, damage.flip_payload, damage.flip_queue, damage.torn_tail):
        done = set()
        for _ in range(2):
            done.add((harm(store, random.Random(7), True), *contents(store).values()))
            for name, data in before.items():
                (store / name).write_bytes(data)
        assert len(done) == 1


def test_flip_in_every_slot_of_the_vote_is_detected(store: Path) -> None:
    said = damage.flip_vote(store, random.Random(3), True)
    assert said.count("flipped") == 2
    with pytest.raises(Exception, match="term and vote are lost"):
        HardStateFile(OsDisk(str(store)), "raft/hardstate").load()


@pytest.mark.parametrize("may_cut", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_torn_tail_loses_nothing_durable(store: Path, seed: int, may_cut: bool) -> None:
    before = contents(store)
    mark = durable_offset(before["checkpoint"])
    said = damage.torn_tail(store, random.Random(seed), may_cut)
    after = contents(store)
    (name,) = {n for n in before if before[n] != after[n]}
    keep = mark - int(name.rpartition("/")[2])
    end = log_items(before[name])[-1].end
    if not may_cut:
        keep = end  # the process was killed and not the machine, so written data is there
    assert after[name][:keep] == before[name][:keep], said
    disk = OsDisk(str(store))
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    log = CommitLog(disk, "commitlog", SEGMENT_BYTES, checkpoint)
    log.open()
    recover_frames(log)
    assert log.max_offset >= (mark if may_cut else int(name.rpartition("/")[2]) + end), said
    log.close()
    checkpoint.close()


def test_every_kind_of_torn_tail_is_drawn(store: Path) -> None:
    kept = contents(store)
    ways = set()
    for seed in range(60):
        said = damage.torn_tail(store, random.Random(seed), True)
        ways.add(re.sub(r"\d+", "n", said.split(" ", 1)[1]))
        for name, data in kept.items():
            (store / name).write_bytes(data)
    assert ways == {
        "zeros from byte n to n, behind the durable mark",
        "cut to n bytes, the end of what is written",
        "n bytes of garbage from byte n, where the log ends",
    }


@pytest.mark.parametrize(
    ("harm", "place"),
    [
        (damage.lost_segment, "commitlog/"),
        (damage.lost_queue, "consumequeue/"),
        (damage.lost_vote, "raft/hardstate"),
    ],
)
def test_lost_file_is_the_reported_one(store: Path, harm: Harm, place: str) -> None:
    before = contents(store)
    said = harm(store, random.Random(1), True)
    (gone,) = set(before) - set(contents(store))
    assert said == f"{gone} lost"
    assert gone.startswith(place)


@pytest.mark.parametrize(
    "harm",
    [
        damage.torn_tail,
        damage.flip_header,
        damage.flip_payload,
        damage.flip_queue,
        damage.flip_index,
        damage.flip_vote,
        damage.flip_vote_slot,
        damage.flip_checkpoint,
        damage.flip_config,
        damage.lost_segment,
        damage.lost_queue,
        damage.lost_vote,
        damage.bit_rot,
        damage.snapshot_rot,
        damage.torn_snapshot,
    ],
)
def test_damage_of_a_missing_file_is_rejected(tmp_path: Path, harm: Harm) -> None:
    with pytest.raises(ClusterError):
        harm(tmp_path, random.Random(1), True)


def test_log_items_end_at_the_first_malformed_item(store: Path) -> None:
    first, *_ = sorted((store / "commitlog").iterdir())
    data = first.read_bytes()
    items = log_items(data)
    assert all(a.end == b.at for a, b in itertools.pairwise(items))
    assert {item.header_bytes for item in items} == {60}
    assert log_items(data[: items[3].end + 10]) == items[:4]
    assert log_items(b"") == log_items(bytes(100)) == []
    raw = encode_record(record(physical_offset=0))
    assert log_items(raw + bytes(50)) == [Item(0, 91, len(raw))]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8])
def test_used_queue_entries_end_at_the_first_empty_one(count: int) -> None:
    assert used_units((b"\0" * 19 + b"\1") * count + bytes(20 * (8 - count))) == count


def test_hard_state_slots_are_found(store: Path) -> None:
    data = (store / "raft" / "hardstate").read_bytes()
    assert [position.start for position in slots(data)] == [0, 4096]
    assert slots(data[:4096]) == slots(data)[:1]
    assert slots(b"") == slots(bytes(8192)) == []
