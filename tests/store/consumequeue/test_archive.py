from raftmq.store.consumequeue.archive import QueueArchive, unpacked
from raftmq.store.consumequeue.queue_files import QueueExtent, line_of

COUNT = 20_000  # 20 topics of a bucket


def extent(number: int, queue_id: int = 0) -> QueueExtent:
    return QueueExtent(0, 0, 2, number * 1000, 0, number * 999, queue_id, f"orders-{number}")


def test_archive_has_the_extents_of_each_topic() -> None:
    archive = QueueArchive()
    for number in range(50):
        for queue_id in (0, 7):
            archive.add(extent(number, queue_id))
    assert archive.of_topic("orders-3") == [extent(3, 0), extent(3, 7)]
    assert archive.of_topic("orders-50") == archive.of_topic("orders") == []
    assert archive.take("orders-3") == [extent(3, 0), extent(3, 7)]
    assert archive.take("orders-3") == []
    kept = sorted(extent(number, queue_id) for number in {*range(50)} - {3} for queue_id in (0, 7))
    assert sorted(archive) == kept
    lines = unpacked(archive.packed()).decode().splitlines(keepends=True)
    assert sorted(lines) == sorted(map(line_of, kept))
    for number in range(50):
        archive.take(f"orders-{number}")
    assert archive.packed() == []


def test_archived_queue_takes_a_tenth_of_a_queue_in_memory() -> None:
    archive = QueueArchive()
    for number in range(COUNT):
        archive.add(extent(number))
    assert sum(map(len, archive.packed())) / COUNT < 60
