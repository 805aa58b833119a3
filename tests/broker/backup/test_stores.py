"""Backups of a replica's store: what is copied, what verifying finds, what can be restored."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import orjson
import pytest
from click.testing import CliRunner

from raftmq.audit.read.log_scanner import walk_range
from raftmq.broker.backup.commands import _time_ms
from raftmq.broker.backup.create import take
from raftmq.broker.backup.directory import BackupDirectory
from raftmq.broker.backup.manifest import BackupDamaged, BackupError, decode, encode
from raftmq.broker.backup.offline_source import StoppedSource, UnwrittenDisk
from raftmq.broker.backup.restore import frames_of, point_of, restore, restore_one
from raftmq.broker.backup.verify import complaints
from raftmq.broker.cli import main
from raftmq.broker.config import build_config
from raftmq.broker.construction import store_config
from raftmq.broker.errors import StateError
from raftmq.broker.tables.broker_group import group_id
from raftmq.broker.tables.state import commit_offsets, put_topic
from raftmq.broker.tables.topics import TopicConfig
from raftmq.dledger.raft.configuration import decode_configuration, founding
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.transport.group_id import file_of
from raftmq.ops.options import Setting
from raftmq.spark.layout import ItemKind
from raftmq.store.disk import OsDisk
from raftmq.store.store_lock import lock_store
from tests.broker.tables import test_snapshot_install as replicas
from tests.broker.tables.test_snapshot_install import Replica, record, written
from tests.dledger.trims import trimmed
from tests.simulator.disk import SimCrash, SimDisk

SEGMENT = 256 << 10
PEERS = [("x", "127.0.0.1:1"), ("y", "127.0.0.1:2")]
RUN, RUN_AGAIN = UUID(int=1), UUID(int=2)  # restorations


def config_of(root, **changes):
    values = {
        "brokerName": "group-a",
        "enableDLegerCommitLog": "true",
        "dLegerPeers": "n0-127.0.0.1:40911",
        "dLegerSelfId": "n0",
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": str(256 << 10),
        "mappedFileSizeConsumeQueue": "4000",
        "maxMessageSize": str(64 << 10),
    } | changes
    return build_config([Setting(key, value, "test") for key, value in values.items()])


@pytest.fixture(autouse=True)
def segments_as_a_broker_has_them(monkeypatch):
    monkeypatch.setattr(replicas, "CONFIG", store_config(config_of("unused")))


class Store:
    """A replica's store in a directory, open while something is written."""

    def __init__(self, root):
        self.root = root
        self.config = config_of(root)

    def open(self):
        votes = HardStateFile(OsDisk(str(self.root)), f"{replicas.RAFT}/hardstate")
        votes.load()
        votes.save(HardState(4, None))
        votes.close()
        return Replica(OsDisk(str(self.root)))

    def close(self, replica, *, clean=True):
        if clean:
            replica.flush()
            replica.store.close()
        else:
            replica.store.close_unclean()
        replica.log.close()

    def write(self, commands, batches, *, term=1, clean=True):
        replica = self.open()
        frames = written(replica, term, commands, batches)
        queues = replica.queues(), replica.tables(), replica.log.last_index
        self.close(replica, clean=clean)
        return frames, *queues

    def poll(self):
        replica = self.open()
        queues = replica.queues(), replica.tables(), replica.log.last_index
        self.close(replica)
        return queues


def batch(count=8, **of):
    return [record(body=b"x" * 5_000, **of) for _ in range(count)]


def written_store(root):
    """Some three segments: a message every few kilobytes, commands between them."""
    store = Store(root)
    batches = [batch(queue_id=n % 2) for n in range(12)]
    commands = [put_topic(TopicConfig("T", 2, 2)), commit_offsets([("T", "g", 0, 7)])]
    store.write(commands, batches)
    store.write([commit_offsets([("T", "g", 0, 9)])], [batch() for _ in range(6)], term=2)
    return store


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("written") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "CONFIG", store_config(config_of("unused")))
        written_store(root)
    return root


@pytest.fixture
def store(written_once, tmp_path):
    shutil.copytree(written_once, tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def location(tmp_path):
    return BackupDirectory(str(tmp_path / "backup"))


def backup(store, location, **options):
    source = StoppedSource(store.config, **options)
    return asyncio.run(take(source, location, pause_s=0.0))


def restored(location, *roots, peers=PEERS, incarnation=RUN, **point):
    manifest = location.required()
    at = point_of(location, manifest, **point)
    config = store_config(config_of("unused"))
    stores = [str(root) for root in roots]
    return restore(location, manifest, at, stores, peers, incarnation, config=config)


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def segments(root):
    return sorted((root / "commitlog").iterdir())


# -- copying --------------------------------------------------------------------------------------


def test_second_backup_copies_only_new_segments(store, location):
    first = backup(store, location)
    assert first.kept_bytes == 0 and first.copied_bytes == first.manifest.end > 2 * SEGMENT
    assert first.manifest.messages == 18 * 8
    again = backup(store, location)
    assert (again.copied_bytes, again.kept_bytes) == (0, first.copied_bytes)
    assert again.manifest.segments == first.manifest.segments
    frames, *_ = store.write([commit_offsets([("T", "g", 0, 11)])], [batch()], term=3)
    grown = backup(store, location)
    assert grown.copied_bytes == frames[-1].end - first.manifest.end
    assert grown.manifest.commit_index == first.manifest.commit_index + 2
    assert [s.index for s in grown.manifest.states] == [
        first.manifest.commit_index,
        grown.manifest.commit_index,
    ]
    assert list(complaints(location, grown.manifest)) == []
    # And until its manifest was there, the one before was true.
    assert list(complaints(location, first.manifest)) == []


class Dies:
    """A source whose reader is gone after so many reads."""

    def __init__(self, source, reads):
        self._source = source
        self.reads = reads

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def read(self, position, size):
        self.reads -= 1
        if self.reads < 0:
            raise KeyboardInterrupt
        return await self._source.read(position, min(size, 50_000))


def test_interrupted_backup_has_no_manifest_and_the_next_one_continues(store, location):
    dies = Dies(StoppedSource(store.config), 10)  # in the second segment
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(take(dies, location))
    assert location.manifest() is None
    with pytest.raises(BackupError, match=r"no manifest\.json"):
        location.required()
    assert run("verify", location.path)[0] == 2
    done = backup(store, location)
    assert done.kept_bytes == SEGMENT
    assert done.copied_bytes == done.manifest.end - SEGMENT
    assert run("verify", location.path)[0] == 0
    # Interrupted once more, the one that was finished is as true as before.
    store.write([], [batch(), batch()], term=3)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(take(Dies(StoppedSource(store.config), 4), location))
    assert location.required() == done.manifest
    assert run("verify", location.path)[0] == 0


def test_next_backup_truncates_uncommitted_frames_of_an_interrupted_one(store, location):
    manifest = backup(store, location).manifest
    store.write([], [batch()], term=3, clean=False)  # nobody knows that it is committed
    dies = Dies(StoppedSource(store.config, full_log=True), 10)
    location.save_manifest, kept = None, location.save_manifest  # it dies before its manifest
    with pytest.raises(TypeError):
        asyncio.run(take(dies, location))
    location.save_manifest = kept
    assert location.progress()[-1].end > manifest.end
    again = backup(store, location)
    assert again.copied_bytes == 0
    assert again.manifest.segments == manifest.segments
    assert run("verify", location.path)[0] == 0


def test_backup_stays_valid_when_a_later_one_of_the_same_frame_fails(store, location, tmp_path):
    """Nothing was written meanwhile, but the queues begin later: that state is another."""
    first = backup(store, location).manifest
    behind_retention(store)
    location.save_manifest, kept = None, location.save_manifest  # it dies before its manifest
    with pytest.raises(TypeError):
        backup(store, location)
    location.save_manifest = kept
    assert location.required() == first
    assert list(complaints(location, first)) == []
    restored(location, tmp_path / "new")
    second = backup(store, location).manifest
    assert second.commit_index == first.commit_index and second.states != first.states
    assert list(complaints(location, second)) == []
    assert len(list((location.path / "states").iterdir())) == 1


def test_damaged_part_of_a_backup_is_copied_again(store, location):
    manifest = backup(store, location).manifest
    flip(location.path / "commitlog" / f"{SEGMENT:020d}", 1000)
    again = backup(store, location)
    assert again.copied_bytes == SEGMENT
    assert again.manifest.segments == manifest.segments
    assert list(complaints(location, again.manifest)) == []


def test_backup_is_not_overwritten_by_another_log(store, location, tmp_path):
    manifest = backup(store, location).manifest
    other = Store(tmp_path / "other")
    stamped = [[record(body=b"y" * 5_000, store_timestamp_ms=9)] * 8 for _ in range(20)]
    other.write([put_topic(TopicConfig("T", 2, 2))], stamped, term=2)
    with pytest.raises(BackupError, match="another log"):
        backup(other, location)
    elsewhere = Store(tmp_path / "other")
    elsewhere.config = config_of(tmp_path / "other", brokerName="group-b")
    with pytest.raises(BackupError, match="a backup of group group-a"):
        backup(elsewhere, location)
    assert location.required() == manifest
    assert list(complaints(location, manifest)) == []


def test_backup_is_not_overwritten_by_a_recreated_group_of_that_name(location, tmp_path):
    """It has the name, more frames, and fewer bytes."""
    lost = Store(tmp_path / "lost")
    lost.write([put_topic(TopicConfig("T", 2, 2))], [batch() for _ in range(5)])
    manifest = backup(lost, location).manifest
    again = Store(tmp_path / "anew")
    again.write([put_topic(TopicConfig("T", 2, 2))], [[record(body=b"n")] for _ in range(20)])
    with pytest.raises(BackupError, match="another log"):
        backup(again, location)
    assert location.required() == manifest
    assert list(complaints(location, manifest)) == []


def behind_retention(store):
    """Delete all of a store's log but the last segment, as retention does."""
    replica = store.open()
    replica.flush()
    trimmed(replica.log, replica.store.commitlog.segments()[-1].start)
    replica.store.derived.correct_min_offset()
    store.close(replica)


@pytest.mark.parametrize(("ours", "theirs", "taken"), [(1, 1, True), (1, 2, False), (0, 2, True)])
def test_backup_without_common_frames_is_compared_by_group_id(
    location, tmp_path, ours, theirs, taken
):
    def named(number):
        topic = put_topic(TopicConfig("T", 2, 2))
        return [topic, group_id(bytes([number]) * 16)] if number else [topic]

    lost = Store(tmp_path / "lost")
    lost.write(named(ours), [batch() for _ in range(2)])
    manifest = backup(lost, location).manifest
    later = Store(tmp_path / "later")
    later.write(named(theirs), [batch() for _ in range(12)])
    behind_retention(later)
    if taken:
        assert backup(later, location).manifest.start > manifest.end
        return
    with pytest.raises(BackupError, match="another group with the name group-a"):
        backup(later, location)
    assert location.required() == manifest
    assert list(complaints(location, manifest)) == []


def test_backup_is_not_overwritten_by_a_rolled_back_log(store, location, tmp_path):
    shutil.copytree(store.root, tmp_path / "older")
    store.write([], [batch()], term=3)
    backup(store, location)
    with pytest.raises(BackupError, match="has frames up to"):
        backup(Store(tmp_path / "older"), location)


def test_concurrent_backups_into_one_directory_are_rejected(store, location):
    with location.locked(), pytest.raises(BackupError, match="another backup"):
        backup(store, location)


def test_backup_of_a_damaged_replica_is_rejected(store, location):
    flip(segments(store.root)[1], 70_000)
    with pytest.raises(BackupError, match="the log is damaged at"):
        backup(store, location)
    assert location.manifest() is None


def test_backup_keeps_only_the_latest_tables(store, location):
    for number in range(4):
        store.write([commit_offsets([("T", "g", 1, number)])], [], term=2)
        asyncio.run(take(StoppedSource(store.config), location, states_kept=2))
    manifest = location.required()
    assert [s.index for s in manifest.states] == [
        manifest.commit_index - 1,
        manifest.commit_index,
    ]
    assert len(list((location.path / "states").iterdir())) == 2


def test_backup_after_a_kill_has_committed_frames_or_the_full_log(store, location):
    before = store.poll()[2]
    store.write([commit_offsets([("T", "g", 0, 12)])], [batch()], term=3, clean=False)
    assert backup(store, location).manifest.commit_index == before
    assert backup(store, location, full_log=True).manifest.commit_index == before + 2


def behind_the_last(root, count):
    """Where a segment `count` behind the last one begins."""
    return root / "commitlog" / f"{int(segments(root)[-1].name) + count * SEGMENT:020d}"


def prepared(path):
    path.touch()
    os.truncate(path, SEGMENT)


@pytest.mark.parametrize("full_log", [False, True])
@pytest.mark.parametrize(
    "leave",
    [
        lambda root: behind_the_last(root, 1).touch(),  # killed before it was allocated
        lambda root: prepared(behind_the_last(root, 1)),
        lambda root: prepared(behind_the_last(root, 2)),  # behind a gap: the log was truncated
        lambda root: behind_the_last(root, 2).touch(),
    ],
)
def test_backup_reads_a_killed_replica_without_changing_it(store, location, leave, full_log):
    leave(store.root)
    before = contents(store.root)
    names = segments(store.root)
    manifest = backup(store, location, full_log=full_log).manifest
    assert manifest.messages == 18 * 8
    assert list(complaints(location, manifest)) == []
    assert contents(store.root) == before and segments(store.root) == names
    assert store.poll()[2] == manifest.commit_index  # and a start reads it as well


def test_unwritten_disk_shows_repairs_without_making_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"12345678")
    disk = UnwrittenDisk(str(tmp_path))
    disk.remove("a")
    assert not disk.exists("a") and disk.listdir("") == ["b"]
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    file = disk.open("b", allocate_bytes=12)
    assert (file.size_bytes, file.pread(6, 20)) == (12, b"78\0\0\0\0")
    file.truncate(3)
    assert (file.size_bytes, file.pread(0, 20), file.pread(5, 1)) == (3, b"123", b"")
    file.truncate(5)
    assert (file.size_bytes, file.pread(2, 20), file.pread(4, 1)) == (5, b"3\0\0", b"\0")
    assert file.pread(9, 1) == b""
    file.close()
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"12345678"] * 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda root: shutil.rmtree(root / "raft"), "is not the store of a Raft replica"),
        (lambda root: (root / "restoring").touch(), "half restored"),
        (lambda root: (root / "raft/installation").touch(), "is being refilled"),
        (lambda root: (root / "raft/trim").write_bytes(b"x" * 8192), "neither|slot"),
        (lambda root: segments(root)[0].unlink(), "segments before 0 are missing"),
    ],
)
def test_backup_of_an_invalid_store_is_rejected(store, location, change, text):
    change(store.root)
    with pytest.raises(BackupError, match=text):
        backup(store, location)
    assert location.manifest() is None


# -- verifying ------------------------------------------------------------------------------------


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flipped(name, at):
    return lambda path: flip(path / name, at)


SECOND = f"commitlog/{SEGMENT:020d}"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flipped(SECOND, 70_000), f"{SECOND}: byte 4.*frame 10: frame payload CRC does not match"),
        (flipped(SECOND, 10), f"{SECOND}: byte 0, frame 9: frame header CRC does not match"),
        (flipped(SECOND, SEGMENT - 1), f"{SECOND}: its checksum is not the manifest's"),
        (lambda path: (path / SECOND).unlink(), f"{SECOND}: the file is missing"),
        (lambda path: (path / SECOND).write_bytes(b"x"), f"{SECOND}: cut short at byte 1"),
        (lambda path: flip(next((path / "states").iterdir()), 30), "checksum does not match"),
        (lambda path: next((path / "states").iterdir()).unlink(), "the file is missing"),
        (flipped("manifest.json", 300), r"manifest\.json"),
        (lambda path: (path / "manifest.json").write_text("{}"), "is no manifest"),
    ],
)
def test_verify_finds_and_locates_damage(store, location, tmp_path, damage, text):
    backup(store, location)
    damage(location.path)
    status, output = run("verify", location.path)
    assert status == 1
    assert re.search(text, output), output
    root = tmp_path / "new"
    arguments = ("restore", location.path, "--into", root, "--peers", "n0-127.0.0.1:1")
    if "is not the manifest's" in text:  # behind the last frame: nothing that is restored
        assert run(*arguments)[0] == 0
        return
    assert run(*arguments)[0] == 1
    if root.exists() and list(root.iterdir()):  # half made: nobody starts with it
        with pytest.raises(StateError, match="half restored"):
            Replica(OsDisk(str(root)))
        assert "remove what is in it" in run(*arguments)[1]
        assert run(*arguments)[0] == 2


def test_verify_detects_the_manifest_of_another_backup(store, location, tmp_path):
    backup(store, location)
    other = Store(tmp_path / "other")
    other.write([], [batch(topic="U") for _ in range(20)])
    elsewhere = BackupDirectory(str(tmp_path / "elsewhere"))
    backup(other, elsewhere)
    shutil.copy(elsewhere.path / "manifest.json", location.path)
    status, output = run("verify", location.path)
    assert status == 1
    assert f"commitlog/{0:020d}" in output and "states/" in output


def test_contradictory_manifest_is_rejected(store, location):
    manifest = backup(store, location).manifest
    assert decode(encode(manifest)) == manifest
    for change in (
        {"segments": manifest.segments[1:]},
        {"segments": manifest.segments[:-1]},
        {"start": 1},
        {"end": manifest.end + 1},
        {"commit_index": manifest.commit_index + 1},
        {"states": ()},
    ):
        with pytest.raises(BackupDamaged, match="contradicts itself"):
            decode(encode(msgspec.structs.replace(manifest, **change)))
    with pytest.raises(BackupError, match="version 2, this program knows 1"):
        decode(encode(msgspec.structs.replace(manifest, version=2)))


# -- restoring ------------------------------------------------------------------------------------


def test_restored_stores_are_identical_and_complete(store, location, tmp_path):
    queues, tables, last = store.poll()
    backup(store, location)
    a, b = tmp_path / "a", tmp_path / "b"
    made = restored(location, a, b)
    assert (made.index, made.configuration_index, made.term) == (last, last + 1, 5)
    assert restored(location, tmp_path / "c") == made  # elsewhere, later
    for one, two, three in zip(*map(segments, (a, b, tmp_path / "c")), strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()
    result = Store(a)
    assert result.poll() == (queues, tables, last + 2)  # whose the group is, and its id
    gaps = []
    for path in segments(a):
        data = memoryview(path.read_bytes())
        gaps += [gap.kind for gap in walk_range(data, int(path.name), 0, len(data)).gaps]
    assert gaps == [ItemKind.BLANK] * (len(gaps) - 1) + [ItemKind.END]
    replica = result.open()
    frame, named = replica.log.frames(last + 1, last + 2)
    members = decode_configuration(frame.payload)
    assert (named.index, named.term, named.end) == (last + 2, made.term, made.end)
    assert bytes(named.command) == group_id(made.group_id, if_absent=False)
    for path in (a, b, tmp_path / "c"):
        assert file_of(OsDisk(str(path)), "raft").load() == made.group_id
    elsewhere = (("x", "127.0.0.1:1"), ("y", "127.0.0.1:3"))
    assert restored(location, tmp_path / "d", peers=elsewhere).group_id != made.group_id
    assert restored(location, tmp_path / "e", incarnation=RUN_AGAIN).group_id != made.group_id
    assert [(m.node_id, m.address, m.broker_id) for m in members.members] == [
        ("x", "127.0.0.1:1", 1),
        ("y", "127.0.0.1:2", 2),
    ]
    result.close(replica)


def test_each_restore_gets_a_new_group_id_unless_its_incarnation_is_given(
    store, location, tmp_path
):
    backup(store, location)
    peers = ("--peers", "n0-127.0.0.1:1;n1-127.0.0.1:2")

    def made(name, *options):
        root = tmp_path / name
        status, output = run("restore", location.path, "--into", root, *peers, *options)
        assert status == 0, output
        return re.findall(r"--incarnation (\S+)", output), file_of(OsDisk(str(root)), "raft").load()

    (reported,), first = made("one", "--incarnation", "new")
    assert made("two", "--incarnation", reported) == ([reported], first)
    (again,), second = made("three", "--incarnation", "new")
    assert again != reported and second != first
    complete = [made(name, "--into", tmp_path / f"{name}1") for name in ("four", "five")]
    assert [said for said, _ in complete] == [[], []]
    assert len({first, second, *(identity for _, identity in complete)}) == 4


def test_restore_of_a_log_without_its_start_keeps_queue_offsets(store, location, tmp_path):
    replica = store.open()
    written(replica, 3, [], [batch(topic="U", count=3) for _ in range(20)])
    replica.flush()
    trimmed(replica.log, replica.store.commitlog.segments()[-2].start)
    replica.store.derived.correct_min_offset()
    queues, tables, last = replica.queues(), replica.tables(), replica.log.last_index
    store.close(replica)
    assert queues["T", 1] == (48, 48, b"")  # of these messages none is left
    manifest = backup(store, location).manifest
    assert manifest.first_index > 1 and manifest.start > 0
    made = restored(location, tmp_path / "new")
    new = Store(tmp_path / "new")
    assert new.poll() == (queues, tables, last + 2)
    _, after, *_ = new.write([], [batch(queue_id=1, count=1)], term=made.term + 1)
    assert after["T", 1][:2] == (48, 49)
    with pytest.raises(BackupError, match="is not in this backup"):
        point_of(location, manifest, to_index=manifest.first_index - 2)


def test_restore_to_a_point_in_time_has_the_tables_of_that_point(store, location, tmp_path):
    frames, *_ = store.write([commit_offsets([("T", "g", 0, 50)])], [batch()], term=3)
    backup(store, location)
    store.write([commit_offsets([("T", "g", 0, 60)])], [batch()], term=3)
    manifest = backup(store, location).manifest
    expected = {1: None, 2: 7, frames[0].index - 1: 9, frames[0].index: 50, None: 60}
    for number, (index, offset) in enumerate(expected.items()):
        made = restored(location, tmp_path / str(number), to_index=index)
        assert made.index == (index or manifest.commit_index)
        replica = Store(tmp_path / str(number)).open()
        assert replica.state.offsets.get("T", "g", 0) == offset
        assert replica.log.last_index == made.configuration_index + 1
        ends = [queue[1] for queue in replica.queues().values()]
        frames_before = (f for f in frames_in(location, manifest) if f.index <= made.index)
        assert sum(ends) == sum(f.record_count for f in frames_before)
        Store(tmp_path / str(number)).close(replica)


def test_restore_to_a_point_before_retention_has_the_remaining_queues(store, location, tmp_path):
    first = backup(store, location).manifest
    replica = store.open()
    written(replica, 3, [], [batch()])
    replica.flush()
    trimmed(replica.log, replica.store.commitlog.segments()[-2].start)
    replica.store.derived.correct_min_offset()
    begins = {location: queue[0] for location, queue in replica.queues().items()}
    store.close(replica)
    manifest = backup(store, location).manifest
    assert 1 < manifest.first_index <= first.commit_index
    restored(location, tmp_path / "new", to_index=first.commit_index)
    result = Store(tmp_path / "new").poll()[0]
    assert result and {location: queue[0] for location, queue in result.items()} == begins


def frames_in(location, manifest):
    return list(frames_of(location, manifest))


def test_point_in_time_is_found_by_the_leaders_clock(store, location):
    manifest = backup(store, location).manifest
    frames = frames_in(location, manifest)
    stamps = [frame.timestamp_ms for frame in frames]
    at = point_of(location, manifest, to_time_ms=max(stamps))
    assert at.index == manifest.commit_index
    early = next(n for n, stamp in enumerate(stamps) if stamp > min(stamps))
    assert point_of(location, manifest, to_time_ms=min(stamps)).index == early
    with pytest.raises(BackupError, match="is not in this backup"):
        point_of(location, manifest, to_time_ms=1)


def test_restore_reports_the_omitted_frames(store, location, tmp_path):
    manifest = backup(store, location).manifest
    arguments = ("restore", location.path, "--peers", "n0-127.0.0.1:1", "--into")
    status, output = run(*arguments, tmp_path / "a", "--to-index", manifest.commit_index - 3)
    assert status == 0 and "left out    3 frames\n" in output, output
    stamps = [frame.timestamp_ms for frame in frames_in(location, manifest)]
    status, output = run(*arguments, tmp_path / "b", "--to-time", min(stamps))
    count = len(stamps) - next(n for n, stamp in enumerate(stamps) if stamp > min(stamps))
    assert status == 0 and f"left out    {count} frames, the first of 20" in output, output
    status, output = run(*arguments, tmp_path / "c")
    assert status == 0 and "left out" not in output, output


def test_restore_to_a_point_without_tables_is_rejected(store, location):
    replica = store.open()
    trimmed(replica.log, replica.store.commitlog.segments()[-1].start)
    replica.store.derived.correct_min_offset()
    store.close(replica)
    manifest = backup(store, location).manifest
    assert manifest.first_index < manifest.commit_index
    with pytest.raises(BackupError, match="the oldest ones in this backup are of frame"):
        point_of(location, manifest, to_index=manifest.commit_index - 1)
    assert point_of(location, manifest).index == manifest.commit_index


def test_restore_overwrites_no_file(store, location, tmp_path):
    backup(store, location)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "a-file").write_text("mine")
    arguments = ("restore", location.path, "--into", tmp_path / "new", "--into", occupied)
    status, output = run(*arguments, "--peers", "n0-127.0.0.1:1;n1-127.0.0.1:2")
    assert status == 2 and "is not empty (a-file)" in output
    assert not (tmp_path / "new").exists()
    status, output = run("restore", store.root, "--into", tmp_path / "new", "--peers", "n0-h:1")
    assert status == 2 and "is no backup" in output


def test_new_file_system_counts_as_empty(store, location, tmp_path):
    backup(store, location)
    (tmp_path / "new" / "lost+found").mkdir(parents=True)
    made = restored(location, tmp_path / "new")
    assert Store(tmp_path / "new").poll()[2] == made.configuration_index + 1


def test_backup_into_a_directory_with_other_files_is_rejected(store, location, tmp_path):
    """A replica's own store least of all: its segments are called as a backup's are."""
    source = StoppedSource(store.config)
    before = contents(Path(store.root))
    assert [*(Path(store.root) / "commitlog").iterdir()]
    with pytest.raises(BackupError, match="has other things in it"):
        asyncio.run(take(source, BackupDirectory(store.root)))
    assert contents(Path(store.root)) == before
    lock = lock_store(str(tmp_path / "new store"), "a broker that begins")
    try:
        with pytest.raises(BackupError, match=r"\(lock\)"):
            asyncio.run(take(source, BackupDirectory(lock.root)))
    finally:
        lock.release()
    disk = tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    (disk / "lock").touch()  # a backup that was killed at once
    asyncio.run(take(source, BackupDirectory(str(disk))))
    assert run("verify", disk)[0] == 0


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        ([], "0 members"),
        ([(f"n{n}", "h:1") for n in range(10)], "10 members"),
        ([("n0", "h:1"), ("n0", "h:2")], "each with its id"),
        ([(f"n{n}", "h" * 200 + ":1") for n in range(9)], "exceed"),
    ],
)
def test_restore_rejects_invalid_members(store, location, tmp_path, peers, text):
    manifest = backup(store, location).manifest
    with pytest.raises(BackupError, match=text):
        restore(
            location, manifest, point_of(location, manifest), [str(tmp_path / "new")], peers, RUN
        )
    assert not (tmp_path / "new").exists()


def test_restore_rejects_more_stores_than_members(store, location, tmp_path):
    manifest = backup(store, location).manifest
    stores = [str(tmp_path / name) for name in ("one", "two")]
    with pytest.raises(BackupError, match="2 stores for 1 members"):
        restore(location, manifest, point_of(location, manifest), stores, [("n0", "h:1")], RUN)
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("power", [False, True])
def test_restore_killed_at_any_operation_leaves_a_complete_or_no_store(store, location, power):
    queues, tables, last = store.poll()
    manifest = backup(store, location).manifest
    point, config = point_of(location, manifest), store_config(config_of("unused"))
    outcomes = []
    operations = 1
    while "done" not in outcomes:
        disk = SimDisk(Random(operations))
        disk.crash_after(operations)
        try:
            restore_one(location, manifest, point, disk, founding(PEERS), RUN, config)
            outcomes.append("done")
        except SimCrash:
            pass
        disk.lose_power() if power else disk.kill_process()
        try:
            replica = Replica(disk)
        except StateError as refused:
            assert "half restored" in str(refused)
            outcomes.append("refused")
        else:
            outcomes.append("whole" if replica.log.last_index else "nothing")
            if replica.log.last_index:
                assert replica.log.last_index == last + 2
                assert (replica.queues(), replica.tables()) == (queues, tables)
        operations += 1 if operations < 5 else 3
    assert (outcomes[0], outcomes[-1]) == ("nothing", "whole")
    assert outcomes.count("refused") > 50


def test_restore_rejects_another_segment_size(store, location, tmp_path):
    manifest = backup(store, location).manifest
    other = store_config(config_of("unused", mappedFileSizeCommitLog="512KiB"))
    with pytest.raises(BackupError, match="the brokers need mappedFileSizeCommitLog=262144"):
        restore(
            location,
            manifest,
            point_of(location, manifest),
            [str(tmp_path / "new")],
            PEERS,
            RUN,
            config=other,
        )


def rewritten_state(location, change):
    """The backup as another version of the program would have written it."""
    manifest = location.required()
    (state,) = manifest.states
    value = orjson.loads(location.state(state))
    change(value["tables"])
    state = location.save_state(state.index, state.time_ms, orjson.dumps(value))
    location.save_manifest(msgspec.structs.replace(manifest, states=(state,)))


def test_restore_rejects_a_table_of_a_later_version(store, location, tmp_path):
    backup(store, location)
    rewritten_state(location, lambda tables: tables.update({"new.json": {"raftAppliedIndex": 21}}))
    status, output = run("verify", location.path)
    assert status == 1 and "holds new.json, which this version does not know" in output
    with pytest.raises(BackupError, match="or a later one"):
        restored(location, tmp_path / "new")


# -- the commands ---------------------------------------------------------------------------------


def contents(root):
    """Of all files but the lock, which whoever reads them takes."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}


def test_stopped_replica_is_given_by_its_configuration(store, location, tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(store.config.properties_text())
    before = contents(store.root)
    status, output = run("backup", location.path, "-c", conf)
    assert status == 0, output
    assert contents(store.root) == before
    assert "from n0 (stopped)" in output and "which no leader confirmed" in output
    status, output = run("verify", "--json", location.path)
    reported = orjson.loads(output)
    assert (status, reported["damaged"], reported["messages"]) == (0, [], 18 * 8)
    new = tmp_path / "new"
    arguments = ("restore", location.path, "-c", conf, "--set", f"storePathRootDir={new}")
    status, output = run(*arguments, "--incarnation", "new")
    assert status == 0, output
    assert "need mappedFileSizeCommitLog=262144" in output
    assert "a dLegerGroup other than group-a" in output
    assert Store(new).poll()[:2] == store.poll()[:2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("backup", "DIR"), "give one of --from"),
        (("backup", "DIR", "--from", "h:1", "-n", "h:2", "--brokerName", "b"), "give one of"),
        (("backup", "DIR", "-n", "h:2"), "give one of"),
        (("backup", "DIR", "--from", "h:1", "--full-log"), "of a stopped replica"),
        (("backup", "DIR", "--from", "h:1", "--bytes-per-s", "fast"), "whole number"),
        (("backup", "DIR", "--set", "brokerName=x"), "backups are of Raft groups"),
        (("restore", "DIR", "--into", "X"), "give either --into and --peers"),
        (("restore", "DIR", "--peers", "n0-h:1"), "give either --into and --peers"),
        (("restore", "DIR", "--into", "X", "--peers", "n0"), "is not id-host:port"),
        (("restore", "DIR", "--into", "X", "--peers", ";"), "has no members"),
        (("restore", "DIR", "--set", "brokerName=x"), "backups are of Raft groups"),
        (
            ("restore", "DIR", "--into", "X", "--peers", "n0-h:1", "--to-time", "yesterday"),
            "isoformat",
        ),
        (
            ("restore", "DIR", "--into", "X", "--peers", "n0-h:1", "--to-time=1", "--to-index=1"),
            "either --to-index or --to-time",
        ),
        (
            ("restore", "DIR", "--into", "X", "--peers", "n0-h:1", "--incarnation", "again"),
            "give 'new' where the first store is made",
        ),
        (
            ("restore", "DIR", "--into", "X", "--peers", "n0-h:1;n1-h:2"),
            "makes 1 of the group's 2 stores: give --incarnation new here",
        ),
        (("restore", "DIR", "--into", "X", "--peers", "n0-h:1"), "is no backup"),
        (("verify", "DIR"), "is no backup"),
    ],
)
def test_backup_command_with_invalid_arguments_exits_with_status_2(
    tmp_path, monkeypatch, arguments, text
):
    monkeypatch.chdir(tmp_path)
    status, output = run(*arguments)
    assert (status, text in output) == (2, True), output
    assert list(tmp_path.iterdir()) == []


def test_backup_command_with_half_an_account_exits_with_status_2(tmp_path, monkeypatch):
    monkeypatch.setenv("RAFTMQ_ACCESS_KEY", "alone")
    monkeypatch.delenv("RAFTMQ_SECRET_KEY", raising=False)
    status, output = run("backup", str(tmp_path / "new"), "--from", "127.0.0.1:1")
    assert (status, "credentials need an access key" in output) == (2, True), output


def test_backup_times_are_utc_without_an_offset():
    assert _time_ms("1700000000123") == 1_700_000_000_123
    assert _time_ms("2023-11-14T22:13:20") == 1_700_000_000_000
    assert _time_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
