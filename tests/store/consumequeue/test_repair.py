"""ConsumeQueues whose files rotted: seen at start or when read, and made anew from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.store.commitlog.recovery import FrameRecovery
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.consumequeue import consumequeue
from raftmq.store.consumequeue.queue_files import (
    ManifestHead,
    QueueExtent,
    read_manifest,
    write_manifest,
)
from raftmq.store.consumequeue.repair import PENDING_MAX, QueueStep, body_is_valid, queue_offset_at
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC
from raftmq.store.errors import EntryDamaged
from raftmq.store.get_message import GetStatus
from raftmq.store.message_store import MessageStore
from raftmq.store.record import decode_record, encode_record, walk_records
from tests.store.make import FrameWriter, record, recover, recover_frames

SEGMENT = 16384
PER_FILE = 500
COUNT = 1300  # messages of queue 0: two full files and a half


class Filled:
    """A store with queue 0 of three files and queue 1 of one, flushed and stopped."""

    def __init__(self, root: Path, hot_span_bytes: int = 1 << 40) -> None:
        self.root = root
        self.disk = OsDisk(str(root))
        self.hot = hot_span_bytes
        self.store = self.open()
        writer = FrameWriter(self.store.commitlog)
        for n in range(0, COUNT, 26):
            records = [record(body=b"%d" % (n + i), topic="T") for i in range(26)]
            records.insert(13, record(body=b"other", queue_id=1))
            self.store.derived.dispatch_frame(writer.messages(records))
        self.frames = writer.frames
        self.entries = self.all_units()
        self.store.close()

    def open(self, recovers: bool = True) -> MessageStore:
        config = StoreConfig(
            mode=StoreMode.RAFT,
            segment_size_bytes=SEGMENT,
            entries_per_file=PER_FILE,
            hot_span_bytes=self.hot,
        )
        store = MessageStore(self.disk, config)
        store.open()
        if recovers and store.commitlog.segments():
            recover(store)
        self.store = store
        return store

    def kill(self) -> None:
        self.store.queues.close()
        self.store.commitlog.close()
        self.store.checkpoint.close()

    def all_units(self) -> dict[int, bytes]:
        result = {}
        for queue in self.store.queues.queues():
            result[queue.queue_id] = queue.entries(0, 2 * COUNT)
        return result

    def path(self, entry: int, queue_id: int = 0) -> Path:
        name = f"{entry // PER_FILE * PER_FILE * QUEUE_ENTRY_BYTES:020d}"
        return self.root / "consumequeue" / "T" / str(queue_id) / name

    def write(self, entry: int, data: bytes, queue_id: int = 0) -> None:
        with open(self.path(entry, queue_id), "r+b") as file:
            file.seek(entry % PER_FILE * QUEUE_ENTRY_BYTES)
            file.write(data)

    def entry(self, offset: int) -> tuple[int, int, int]:
        return QUEUE_ENTRY.unpack_from(self.entries[0], offset * QUEUE_ENTRY_BYTES)

    def mend(self) -> int:
        """Run the repair to its end; how many steps it took."""
        steps = 0
        while (step := begin(self.store)) is not None:
            step.run()
            self.store.repairs.finish(step)
            steps += 1
            assert steps < 2 * PENDING_MAX
        return steps


def begin(
    store: MessageStore, frame_is_damaged: Callable[[int], bool] = lambda position: False
) -> QueueStep | None:
    return store.repairs.next_step(store.derived.dispatched_offset, frame_is_damaged)


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path)


def garbage(f: Filled) -> None:
    f.write(COUNT - 1, b"\xa5" * QUEUE_ENTRY_BYTES)


def points_elsewhere(f: Filled) -> None:
    f.write(COUNT - 1, QUEUE_ENTRY.pack(*f.entry(COUNT - 2)))


def points_into_another_queue(f: Filled) -> None:
    f.write(COUNT - 1, f.entries[1][-QUEUE_ENTRY_BYTES:])


def zeroed_page_in_the_middle(f: Filled) -> None:
    f.write(1150, bytes(100 * QUEUE_ENTRY_BYTES))  # where bisection comes by


def zeroed_end(f: Filled) -> None:
    f.write(COUNT - 150, bytes(150 * QUEUE_ENTRY_BYTES))


def lost_file(entry: int) -> Callable[[Filled], None]:
    def act(f: Filled) -> None:
        f.path(entry).unlink()

    act.__name__ = f"lost_file_{entry}"
    return act


def lost_directory(f: Filled) -> None:
    shutil.rmtree(f.root / "consumequeue" / "T" / "0")


def lost_topic(f: Filled) -> None:
    shutil.rmtree(f.root / "consumequeue" / "T")


def negative_size(f: Filled) -> None:
    position, size, code = f.entry(1250)
    f.write(1250, QUEUE_ENTRY.pack(position, -size, code))


def position_too_high(f: Filled) -> None:
    position, size, code = f.entry(1150)
    f.write(1150, QUEUE_ENTRY.pack(position + (1 << 60), size, code))


BOOT = [
    garbage,
    points_elsewhere,
    points_into_another_queue,
    zeroed_page_in_the_middle,
    zeroed_end,
    lost_file(0),
    lost_file(500),
    lost_file(1000),
    lost_directory,
    lost_topic,
]


@pytest.mark.parametrize("harm", BOOT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("clean", [True, False])
def test_inconsistent_queue_is_rebuilt_at_start(
    filled: Filled, harm: Callable[[Filled], None], clean: bool
) -> None:
    if not clean:
        filled.open()
        filled.kill()
    harm(filled)
    store = filled.open()
    assert filled.all_units() == filled.entries
    assert store.queues.damaged == {}
    assert store.derived.dispatched_offset == filled.frames[-1].end
    store.close()
    store = filled.open()  # and it stays so
    assert filled.all_units() == filled.entries
    store.close()


@pytest.mark.parametrize("harm", BOOT[3:], ids=lambda f: f.__name__)
def test_damaged_queue_of_many_is_repaired_when_it_is_used(
    filled: Filled, harm: Callable[[Filled], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumequeue, "LOADED_QUEUES_MAX", 1)
    filled.open()
    filled.kill()
    harm(filled)
    store = filled.open()
    for offset in range(0, COUNT, 50):
        try:
            assert store.reads.get_messages("T", 0, offset, 50, 1 << 20).message_count == 50
        except EntryDamaged:
            filled.mend()
    filled.mend()
    assert filled.all_units() == filled.entries
    store.close()
    filled.open().close()
    assert len(filled.store.repairs) == 0


@pytest.mark.parametrize("harm", [negative_size, position_too_high], ids=lambda f: f.__name__)
def test_single_damaged_entry_does_not_shorten_a_queue(
    filled: Filled, harm: Callable[[Filled], None]
) -> None:
    """Bisection may come by it or not: the end is right, the entry is mended at last when read."""
    harm(filled)
    store = filled.open()
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == COUNT
    for offset in range(1100, COUNT, 50):
        try:
            store.reads.get_messages("T", 0, offset, 50, 1 << 20)
        except EntryDamaged:
            filled.mend()
    assert filled.all_units() == filled.entries
    store.close()


def test_queue_shortened_with_its_log_is_no_damage(filled: Filled) -> None:
    """The log was cut (its owner knows why): queues end earlier than noted."""
    end = filled.frames[30].end
    store = filled.open()
    store.commitlog.truncate(end)
    filled.kill()
    store = filled.open(recovers=False)
    recover_frames(store.commitlog)
    store.derived.log_recovered()
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 31 * 26
    assert store.derived.dispatched_offset == store.commitlog.max_offset == end
    assert queue.entries(0, COUNT) == filled.entries[0][: 31 * 26 * QUEUE_ENTRY_BYTES]
    store.close()


def test_queue_rebuild_waits_for_a_damaged_frame(filled: Filled) -> None:
    """Old payloads are not read at start; then everything is dispatched again, frame by frame."""
    frame = filled.frames[2]
    with open(filled.root / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(frame.end - 40)
        file.write(b"\xff\xff\xff")
    filled.path(1000).unlink()
    store = filled.open()
    assert store.derived.dispatched_offset == 0
    assert store.queues.queue("T", 0) is None
    for one in filled.frames:
        store.derived.dispatch_frame(one)
    assert filled.all_units() == filled.entries
    store.close()


def test_entries_of_restored_segments_are_dispatched(filled: Filled) -> None:
    """Only the segment that was made ahead is left: the queues go on where they were, not there."""
    store = filled.open()
    confirmed = store.derived.dispatched_offset
    log = store.commitlog
    writer = FrameWriter(log, index=filled.frames[-1].index)
    writer.offsets = {("T", 0): COUNT}
    for _ in range(3):
        store.derived.dispatch_frame(
            writer.messages([record(body=b"." * 300, topic="T") for _ in range(30)])
        )
    entries = filled.all_units()[0]
    filled.kill()  # the queues have them in memory only
    directory = filled.root / "commitlog"
    ahead = max(int(path.name) for path in directory.iterdir()) + SEGMENT
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / f"{ahead:020d}").write_bytes(bytes(SEGMENT))
    store = filled.open(recovers=False)
    store.commitlog.restore_front(0)
    recovery = FrameRecovery(store.commitlog)
    assert recovery.run() is not None
    recovery.patch((*filled.frames, *writer.frames), True)
    recovery.truncate()
    assert store.commitlog.max_offset == writer.frames[-1].end
    store.derived.log_recovered()
    assert store.derived.dispatched_offset == confirmed
    for frame in writer.frames:
        store.derived.dispatch_frame(frame)
    assert filled.all_units()[0] == entries
    store.close()


# -- while it runs ---------------------------------------------------------------------------------


def pointing(position: int, size: int) -> bytes:
    return QUEUE_ENTRY.pack(position, size, 0)


@pytest.mark.parametrize(
    "kind", ["garbage", "zeros", "another", "other queue", "low", "high", "size"]
)
@pytest.mark.parametrize("offset", [700, 0])
def test_damaged_queue_entry_is_repaired_and_never_served(
    filled: Filled, kind: str, offset: int
) -> None:
    store = filled.open()
    position, size, code = filled.entry(offset)
    bad = {
        "garbage": b"\xa5" * QUEUE_ENTRY_BYTES,
        "zeros": bytes(QUEUE_ENTRY_BYTES),
        "another": QUEUE_ENTRY.pack(*filled.entry(offset + 1)),
        "other queue": filled.entries[1][:QUEUE_ENTRY_BYTES],
        "low": QUEUE_ENTRY.pack(-5, size, code),
        "high": QUEUE_ENTRY.pack(1 << 50, size, code),
        "size": QUEUE_ENTRY.pack(position, size + 1, code),
    }[kind]
    filled.write(offset, bad)
    with pytest.raises(EntryDamaged) as caught:
        store.reads.get_messages("T", 0, offset, 10, 1 << 20)
    assert caught.value.retriable
    with pytest.raises(EntryDamaged):
        store.reads.get_messages("T", 0, max(0, offset - 3), 10, 1 << 20)
    elsewhere = store.reads.get_messages("T", 0, offset + 10, 10, 1 << 20)
    assert elsewhere.message_count == 10, "the rest of the queue is served meanwhile"
    assert filled.mend() > 0
    assert filled.all_units() == filled.entries
    assert store.repairs.rewritten == 1
    result = store.reads.get_messages("T", 0, offset, 10, 1 << 20)
    assert result.status is GetStatus.FOUND
    store.close()


def wrong_units(right: tuple[int, int, int]) -> dict[str, bytes]:
    position, size, code = right
    result = {
        "nothing": (0, 0, 0),
        "moved": (position + 8, size, code),
        "longer": (position, size + 1, code),
        "shorter": (position, size - 1, code),
        "no record": (position, 5, code),
        "negative": (position, -size, code),
        "endless": (position, (1 << 31) - 1, code),
        "behind the log": (1 << 50, size, code),
        "before the log": (-position, size, code),
        "its neighbour": (position + size, size, code),
    }
    return {name: QUEUE_ENTRY.pack(*entry) for name, entry in result.items()}


@pytest.mark.parametrize("kind", wrong_units((1, 1, 1)))
@pytest.mark.parametrize("count", [1, 10, 150])
def test_pull_returns_no_message_of_a_wrong_queue_entry(
    filled: Filled, count: int, kind: str
) -> None:
    store = filled.open()
    for position in (0, count // 2, count - 1):
        wrong = 301 + position
        filled.write(wrong, wrong_units(filled.entry(wrong))[kind])
        with pytest.raises(EntryDamaged) as actual:
            store.reads.get_messages("T", 0, 301, count, 1 << 40)
        assert actual.value.offset == wrong
        filled.write(wrong, QUEUE_ENTRY.pack(*filled.entry(wrong)))
    result = store.reads.get_messages("T", 0, 301, count, 1 << 40)
    data = b"".join(result.buffers)
    walked = [decode_record(data, at).queue_offset for at, _ in walk_records(data)]
    assert walked == list(range(301, 301 + count))
    store.close()


def test_lost_queue_page_is_repaired_while_the_queue_grows(filled: Filled) -> None:
    store = filled.open()
    filled.write(300, b"\0" * 190 * QUEUE_ENTRY_BYTES)
    with pytest.raises(EntryDamaged):
        store.reads.get_messages("T", 0, 350, 10, 1 << 20)
    step = begin(store)
    assert step is not None
    log = store.commitlog
    writer = FrameWriter(log, index=filled.frames[-1].index)
    writer.offsets = {("T", 0): COUNT}
    store.derived.dispatch_frame(writer.messages([record(body=b"new", topic="T")]))
    step.run()
    store.repairs.finish(step)
    filled.mend()
    assert filled.all_units()[0][: COUNT * QUEUE_ENTRY_BYTES] == filled.entries[0]
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == COUNT + 1
    assert store.reads.get_messages("T", 0, COUNT, 1, 99).message_count == 1
    store.close()


def test_repaired_queue_of_delayed_messages_has_the_stores_delays(tmp_path: Path) -> None:
    levels_ms = (10_000, 3_600_000)
    config = StoreConfig(mode=StoreMode.RAFT, segment_size_bytes=SEGMENT, delay_levels_ms=levels_ms)
    store = MessageStore(OsDisk(str(tmp_path)), config)
    store.open()
    parked = record(topic=SCHEDULE_TOPIC, queue_id=1, properties=b"DELAY\x012\x02")
    writer = FrameWriter(store.commitlog)
    for _ in range(10):
        store.derived.dispatch_frame(writer.messages([parked]))
    store.flush()
    queue = store.queues.queue(SCHEDULE_TOPIC, 1)
    assert queue is not None
    entries = queue.entries(0, 10)
    due_ms = {
        QUEUE_ENTRY.unpack(entries[at : at + QUEUE_ENTRY_BYTES])[2] for at in range(0, 200, 20)
    }
    assert due_ms == {parked.store_timestamp_ms + 3_600_000}
    for offset in (3, 4, 5):
        queue.rewrite(offset, bytes(QUEUE_ENTRY_BYTES))
    with pytest.raises(EntryDamaged):
        store.reads.get_messages(SCHEDULE_TOPIC, 1, 3, 3, 1 << 20)
    while (step := begin(store)) is not None:
        step.run()
        store.repairs.finish(step)
    assert queue.entries(0, 10) == entries
    assert store.repairs.rewritten == 3
    store.close()


def test_damaged_frame_does_not_count_as_a_damaged_queue_entry(filled: Filled) -> None:
    store = filled.open()
    position, size, _ = filled.entry(700)
    requested = []

    def frame_is_damaged(at: int) -> bool:
        requested.append(at)
        return True

    path = filled.root / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}"
    complete = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(position % SEGMENT + 20)
        file.write(b"\xff")
    with pytest.raises(EntryDamaged):
        store.reads.get_messages("T", 0, 700, 1, size)
    assert begin(store, frame_is_damaged) is None
    assert requested == [position]
    assert len(store.repairs) == 0
    with open(path, "r+b") as file:
        file.write(complete)
    assert store.reads.get_messages("T", 0, 700, 1, size).message_count == 1
    store.close()


@pytest.mark.parametrize("hot", [True, False])
def test_message_bodies_are_checked_for_cold_data(tmp_path: Path, hot: bool) -> None:
    filled = Filled(tmp_path, hot_span_bytes=1 << 40 if hot else 0)
    store = filled.open()
    position, size, _ = filled.entry(700)
    with open(tmp_path / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}", "r+b") as file:
        file.seek(position % SEGMENT + 88)
        file.write(b"\xff")
    if hot:
        assert store.reads.get_messages("T", 0, 700, 1, size).message_count == 1
    else:
        with pytest.raises(EntryDamaged):
            store.reads.get_messages("T", 0, 700, 1, size)
    store.close()


def test_queue_repair_reports_a_damaged_frame_and_continues_later(filled: Filled) -> None:
    store = filled.open()
    reported: list[int | None] = []
    position = filled.entry(700)[0]
    filled.write(700, bytes(QUEUE_ENTRY_BYTES))
    with pytest.raises(EntryDamaged):
        store.reads.get_messages("T", 0, 700, 1, 1 << 20)
    path = filled.root / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}"
    with open(path, "r+b") as file:
        file.seek(position % SEGMENT)
        file.write(b"\xff")

    for _ in range(2):
        step = begin(store)
        assert step is not None
        step.run()
        reported.append(store.repairs.finish(step))
    assert reported == [position, position]
    with open(path, "r+b") as file:
        file.seek(position % SEGMENT)
        file.write(b"\0")
    filled.mend()
    assert filled.all_units() == filled.entries
    store.close()


def test_queue_repairs_are_limited_in_number(filled: Filled) -> None:
    store = filled.open()
    for offset in range(PENDING_MAX + 5):
        store.repairs.report("T", 0, offset, 0)
    assert (len(store.repairs), store.repairs.dropped) == (PENDING_MAX, 5)
    store.repairs.report("gone", 0, 1, 0)
    filled.mend()
    assert len(store.repairs) == 0
    assert store.repairs.rewritten == 0, "they were right after all"
    store.close()


# -- the parts -------------------------------------------------------------------------------------


def test_queue_entry_must_point_at_its_own_record() -> None:
    plain = replace(record(topic="topic"), queue_id=3, queue_offset=9, physical_offset=500)
    long_topic = replace(plain, topic="t" * 200)
    v6 = replace(plain, born_host=("::1", 1), sys_flag=0x10)
    for one in (plain, long_topic, v6):
        data, topic = b"before" + encode_record(one) + b"after", one.topic.encode()
        size = len(data) - 11

        def at(
            position: int = 500,
            size: int = size,
            topic: bytes = topic,
            queue_id: int = 3,
            data: bytes = data,
            offset: int = 6,
        ) -> int:
            return queue_offset_at(data, offset, position, size, topic, queue_id)

        assert at() == 9
        wrong = [
            at(position=501),
            at(size=size - 1),
            at(size=-1),
            at(topic=b"topi"),
            at(topic=topic + b"x"),
            at(topic=b"u" * len(topic)),
            at(queue_id=4),
            at(offset=7),
            at(data=data[: size - 3]),
            at(data=b""),
        ]
        assert wrong == [-1] * len(wrong)
        assert body_is_valid(data, 6, 500)
        assert not body_is_valid(data, 6, 501)
        flipped = bytearray(data)
        flipped[6 + 88 + (12 if one is v6 else 0)] ^= 1
        assert not body_is_valid(bytes(flipped), 6, 500)


def test_queue_manifest_round_trip_and_damage(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    nothing: tuple[ManifestHead, dict[tuple[str, int], QueueExtent]] = (ManifestHead(), {})
    assert read_manifest(disk, "m") == nothing
    extents = [
        QueueExtent(0, 500, 777, 123456, 4, 321, 0, "T"),
        QueueExtent(0, 0, 0, 0, 0, -1, 12, "%RETRY%a group with blanks"),
        QueueExtent(0, 0, 1, 0, 0, 0, 0, "käse"),
        QueueExtent(0, 0, 1, 0, 0, 0, 0, "not\nlisted"),
    ]
    head = ManifestHead(500, 80, 1234)
    for _ in range(2):
        write_manifest(disk, "m", head, extents)
        assert read_manifest(disk, "m") == (head, {one[:5:-1]: one for one in extents[:3]})
    data = (tmp_path / "m").read_bytes()
    for at in range(len(data)):
        (tmp_path / "m").write_bytes(data[:at])
        assert read_manifest(disk, "m") == nothing
        (tmp_path / "m").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert read_manifest(disk, "m") == nothing
