"""The audit on directories that the project's own MessageStore wrote, closed and killed."""

from pathlib import Path

from raftmq.audit.api import run_audit
from raftmq.audit.read.spark_sources import RecordReader
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import OsDisk
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import encode_properties
from raftmq.store.record import decode_record, walk_records
from tests.audit.run import message_id
from tests.audit.stores import History, Message, Placed
from tests.store.make import FrameWriter, record, sync

COUNT = 120


def write_node(root: Path, closed: bool) -> list[Placed]:
    """One replica of the same run: frames of four messages, a command after every fifth."""
    config = StoreConfig(
        mode=StoreMode.RAFT,
        directory="store",
        segment_size_bytes=8192,
        entries_per_file=50,
        hot_span_bytes=1 << 40,
    )
    store = MessageStore(OsDisk(str(root)), config)
    store.open()
    writer = FrameWriter(store.commitlog)
    placed = []
    for first in range(0, COUNT, 4):
        numbers = range(first, first + 4)
        frame = writer.messages(
            [
                record(
                    topic="Flights",
                    queue_id=n % 3,
                    body=b"row %d" % n,
                    properties=encode_properties({"UNIQ_KEY": message_id(n), "TAGS": "标签"}),
                )
                for n in numbers
            ]
        )
        for n, (at, size) in zip(numbers, walk_records(bytes(frame.payload)), strict=True):
            stored = decode_record(frame.payload, at)
            message = Message(message_id(n), stored.body, queue=stored.queue_id)
            placed.append(Placed(message, stored.physical_offset, size, stored.queue_offset))
        store.derived.dispatch_frame(frame)
        if first % 20 == 0:
            store.derived.dispatch_frame(writer.command())
        if first == COUNT // 2:
            store.flush()
    if closed:
        store.close()
    else:  # what a kill leaves: files as they are, tails in memory gone
        sync(store.commitlog)
        store.queues.close()
        store.commitlog.close()
        store.checkpoint.close()
    return placed


def read_until(store: Path, position: int) -> int:
    """Return how many messages the topic's source reads up to a log position."""
    options = {"path": str(store), "topic": "Flights", "until": str(position)}
    reader = RecordReader(options)
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


def test_closed_and_killed_stores_pass(tmp_path: Path) -> None:
    history = History()
    for node, closed in (("n0", True), ("n1", True), ("n2", False)):
        placed = write_node(tmp_path / node, closed)
    for stored in placed:
        history.ok(history.invoke(stored.message, fields=(0, {"TAGS": "标签"})), stored)
    stores = {node: tmp_path / node / "store" for node in ("n0", "n1", "n2")}
    report = run_audit(stores, history.write(tmp_path / "history.jsonl"), "Flights")
    assert [check.name for check in report.checks if not check.ok] == []
    assert report.figures["stored"] == COUNT
    n0, n1, n2 = report.stores
    assert n0.commit == n0.agreed == n0.data_end == n1.commit
    assert 0 < n2.commit < n2.agreed == n0.agreed
    assert read_until(stores["n0"], n0.commit) == COUNT
    assert read_until(stores["n2"], n2.commit) < COUNT
    assert read_until(stores["n2"], report.agreed_end) == COUNT
    assert report.fullest_store in stores
