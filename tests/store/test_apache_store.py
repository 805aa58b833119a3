"""A store that Apache RocketMQ 5.3.3 wrote: every byte understood, and served again.

The fixtures' README says how they were made. 515 records, two blank records, 45 topics.
"""

import tarfile
from collections import defaultdict
from pathlib import Path

import pytest

from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import DELAY_LEVELS_MS, QUEUE_ENTRY, TIMER_TOPIC, Dispatcher, timer_code
from raftmq.store.get_message import GetStatus
from raftmq.store.index.index_keys import has_key, keys_of
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import decode_properties, tags_code
from raftmq.store.record import (
    SYS_COMPRESSED,
    StopReason,
    check_record,
    decode_record,
    encode_record,
    walk_records,
)
from tests.archives import unpack
from tests.store.make import append_classic, drained

FIXTURES = Path(__file__).parent.parent / "fixtures"
SEGMENT_SIZE_BYTES = 262_144
ENTRIES_PER_FILE = 3000
# The broker ran with messageDelayLevel = 1s 2s 3s ...: seen in its delivery times.
DELAYS_MS = (1000, 2000, 3000, *DELAY_LEVELS_MS[3:])
INDEX_LIMITS = IndexLimits(slots=500, entries=2000)


@pytest.fixture
def apache(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURES / "apache-5.3.3-async-master.tar.xz") as tar:
        unpack(tar, tmp_path)
    return tmp_path / "store"


def open_store(root: Path, index_limits: IndexLimits = INDEX_LIMITS) -> MessageStore:
    config = StoreConfig(
        mode=StoreMode.CLASSIC,
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        entries_per_file=ENTRIES_PER_FILE,
        delay_levels_ms=DELAYS_MS,
        index_limits=index_limits,
    )
    store = MessageStore(OsDisk(str(root)), config)
    store.open()
    return store


def walk(root: Path) -> dict[int, bytes]:
    """Every record by its position, verified."""
    result = {}
    for path in sorted((root / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        records = walk_records(data, base)
        for offset, size in records:
            result[base + offset] = data[offset : offset + size]
        assert records.stop in (StopReason.BLANK, StopReason.ZEROS), records.detail
    return result


def queue_files(root: Path) -> dict[tuple[str, int], bytes]:
    """The written part of every ConsumeQueue."""
    result = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        data = path.read_bytes()
        end = next(n for n in range(0, len(data), 20) if not any(data[n : n + 20]))
        result[(path.parent.parent.name, int(path.parent.name))] = data[:end]
    return result


def test_apache_records_are_decoded_and_encoded_unchanged(apache: Path) -> None:
    records = walk(apache)
    assert len(records) == 515
    compressed = 0
    for position, data in records.items():
        assert check_record(data, 0, position) == len(data)
        decoded = decode_record(data)
        assert encode_record(decoded) == data
        compressed += decoded.sys_flag & SYS_COMPRESSED
    assert compressed == 1


def test_dispatch_of_an_apache_log_gives_its_queue_entries(apache: Path) -> None:
    ours: dict[tuple[str, int], bytes] = defaultdict(bytes)
    by_segment: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for position, data in walk(apache).items():
        by_segment[position // SEGMENT_SIZE_BYTES].append((position, data))
    dispatcher = Dispatcher(DELAYS_MS)
    for records in by_segment.values():
        payload = b"".join(data for _, data in records)
        for entries in dispatcher.index(payload, records[0][0]):
            key = (entries.topic, entries.queue_id)
            assert entries.first_queue_offset == len(ours[key]) // 20
            ours[key] += entries.entries
    theirs = queue_files(apache)
    assert len({topic for topic, _ in theirs}) == 45
    assert sum(map(len, theirs.values())) == 515 * 20
    assert dict(ours) == with_times(theirs, walk(apache))


def with_times(
    queues: dict[tuple[str, int], bytes], records: dict[int, bytes]
) -> dict[tuple[str, int], bytes]:
    """Apache's entries as we write them: those of timer messages say when, where theirs say 0."""
    timers = (TIMER_TOPIC, 0)
    entries = b""
    for at, size, code in QUEUE_ENTRY.iter_unpack(queues[timers]):
        assert code == 0
        properties = decode_properties(decode_record(records[at]).properties)
        entries += QUEUE_ENTRY.pack(at, size, timer_code(properties))
    assert entries != queues[timers]
    return {**queues, timers: entries}


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("queues_lost", [False, True])
def test_opened_apache_store_serves_its_messages(
    apache: Path, unclean: bool, queues_lost: bool
) -> None:
    records, theirs = walk(apache), queue_files(apache)
    (index,) = (apache / "index").iterdir()
    index_before = index.read_bytes()
    if unclean:
        (apache / "abort").touch()
    if queues_lost:
        (apache / "consumequeue").rename(apache / "elsewhere")
    store = open_store(apache, IndexLimits())  # the file says which it has
    assert store.derived.dispatched_offset == store.commitlog.max_offset
    assert store.checkpoint.fields.physic_timestamp_ms == 0x01A1FCBF27B4
    assert store.last_stop_clean is not unclean
    for (topic, queue_id), entries in theirs.items():
        expected = [records[at] for at, _, _ in QUEUE_ENTRY.iter_unpack(entries)]
        offset, got = 0, []
        while True:
            result = store.reads.get_messages(topic, queue_id, offset, 32, 1 << 20)
            if result.status is not GetStatus.FOUND:
                break
            body = b"".join(result.buffers)
            spans = [body[at : at + size] for at, size in walk_records(body)]
            assert len(spans) == result.message_count
            got += spans
            offset = result.next_offset
        assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
        assert got == expected
        tags = decode_properties(decode_record(expected[0]).properties).get("TAGS")
        if tags is not None and topic != "SCHEDULE_TOPIC_XXXX":
            chosen = store.reads.get_messages(topic, queue_id, 0, 1, 1 << 20, {tags_code(tags)})
            assert chosen.buffers == [expected[0]]
    store.close()
    (index,) = (apache / "index").iterdir()  # cut and made again after an unclean stop
    assert index.read_bytes() == index_before
    made_anew = unclean or queues_lost
    assert queue_files(apache) == (with_times(theirs, records) if made_anew else theirs)
    assert not (apache / "abort").exists()


def test_apache_store_is_reopened_and_appended(apache: Path) -> None:
    last = decode_record(list(walk(apache).values())[-1])
    store = open_store(apache)
    queue = store.queues.queue(last.topic, last.queue_id)
    assert queue is not None
    expected = queue.max_offset
    appended = append_classic(store, [last, last], now_ms=2_000_000_000_000)
    assert [a.queue_offset for a in appended] == [expected, expected + 1]
    store.close()
    assert len(walk(apache)) == 517
    store = open_store(apache)
    result = store.reads.get_messages(last.topic, last.queue_id, expected, 32, 1 << 20)
    assert result.message_count == 2
    assert store.last_stop_clean
    store.close()


@pytest.mark.parametrize("damage", ["lost", "header", "entry", "short"])
def test_apache_index_is_rebuilt_byte_for_byte(apache: Path, damage: str) -> None:
    """Whatever happened to it: ours of the same log is what Apache's broker had written."""
    (index,) = (apache / "index").iterdir()
    before = index.read_bytes()
    (apache / "abort").touch()
    match damage:
        case "lost":
            index.unlink()
        case "header":
            index.write_bytes(b"\x7f" * 40 + before[40:])
        case "entry":
            at = 40 + 500 * 4 + 300 * 20
            index.write_bytes(before[:at] + b"\xff" * 20 + before[at + 20 :])
        case "short":
            index.write_bytes(before[:-1])
    store = open_store(apache)
    store.close()
    (index,) = (apache / "index").iterdir()
    assert index.read_bytes() == before


def test_every_key_of_an_apache_index_is_found(apache: Path) -> None:
    records = walk(apache)
    store = open_store(apache)
    looked_up = 0
    for position, data in records.items():
        record = decode_record(data)
        stamp = record.store_timestamp_ms
        for key in keys_of(decode_properties(record.properties)):
            result = drained(store.derived.query(record.topic, key, 64, stamp, stamp))
            assert data in result.records, (position, key)
            for other in result.records:
                assert has_key(decode_record(other), record.topic, key)
            assert drained(store.derived.query("elsewhere", key, 64, stamp, stamp)).records == []
            looked_up += 1
    assert looked_up == 663
    assert (result.index_timestamp_ms, result.index_offset) == (1795241748404, 605908)
    store.close()


def test_three_apache_dledger_replicas_have_the_same_records(tmp_path: Path) -> None:
    """DLedger's own layout: each record behind a 48-byte header, otherwise the same record."""
    with tarfile.open(FIXTURES / "apache-5.3.3-dledger-3-replicas.tar.xz") as tar:
        unpack(tar, tmp_path)
    counts, contents = [], set()
    dispatcher = Dispatcher(DELAYS_MS)
    for replica in range(3):
        root = tmp_path / f"dledger-{replica}"
        files = root / f"dledger-n{replica}" / "data"
        data = next(files.iterdir()).read_bytes()
        contents.add(data)
        position = count = 0
        payloads = []
        while int.from_bytes(data[position : position + 4], "big") == 1:
            size = int.from_bytes(data[position + 4 : position + 8], "big")
            record_at = position + 48
            assert check_record(data, record_at, record_at) == size - 48
            payloads += dispatcher.index(data, record_at, record_at, position + size)
            position += size
            count += 1
        counts.append(count)
        ours: dict[tuple[str, int], bytes] = defaultdict(bytes)
        for entries in payloads:
            ours[(entries.topic, entries.queue_id)] += entries.entries
        assert dict(ours) == queue_files(root)
    assert len(contents) == 1
    assert counts == [178] * 3
