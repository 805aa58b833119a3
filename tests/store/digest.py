"""Prints a digest of everything that a store writes, asks of the disk and returns.

    python -m tests.store.digest [--seeds N] [--start S] [--each]

Each seed is a short life of one store on the simulator's disk: a Raft store that gets frames, a
classic master that appends records, or a slave that copies them, with segments and index files
small enough to roll often. It reads, flushes, repairs queues, deletes old segments, is killed or
loses its power between any two operations of the disk, and is opened again. Two versions of the
store that print the same digest do the same on disk, in the same order, and answer the same.
`--each` prints one line a seed, to find the first that differs.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from random import Random

from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.dispatch import Dispatcher
from raftmq.store.errors import StoreError
from raftmq.store.frame import Frame, FrameKind
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import tags_code
from raftmq.store.record import (
    BLANK,
    MAGIC_BLANK,
    SYS_TRANSACTION_COMMIT,
    MessageRecord,
    decode_record,
    encode_record,
    store_timestamp_at,
    walk_records,
)
from raftmq.store.retention import LogNow, RetentionPolicy
from tests.simulator.disk import SimCrash, SimDisk, SimFile
from tests.store.make import FrameWriter, append_classic, drained, record, recover, redispatch

SEGMENT = 4096
OPERATIONS = 150  # of one seed
TOPICS = ("T", "Orders", "SCHEDULE_TOPIC_XXXX")
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
UNITS = Dispatcher()
TAG_A = tags_code("TagA")


class TracedFile(SimFile):
    """A file whose changes become part of the digest."""

    def __init__(self, disk: TracedDisk, path: str) -> None:
        super().__init__(disk, disk._names[path])
        self._path = path
        self._note = disk.note

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        self._note("write", self._path, offset, bytes(data))
        super().pwrite(offset, data)

    def truncate(self, size: int) -> None:
        self._note("truncate", self._path, size)
        super().truncate(size)

    def sync(self) -> None:
        self._note("sync", self._path)
        super().sync()


class TracedDisk(SimDisk):
    """A simulated disk that tells `note` what changes it, in order."""

    def __init__(self, rng: Random, note: Callable[..., None]) -> None:
        super().__init__(rng)
        self.note = note

    def open(self, path: str, *, allocate_bytes: int | None = None) -> SimFile:
        if path not in self._names:
            self.note("create", path)
        super().open(path, allocate_bytes=None)
        file = TracedFile(self, path)
        if allocate_bytes is not None and file.size_bytes < allocate_bytes:
            file.truncate(allocate_bytes)
        return file

    def remove(self, path: str) -> None:
        self.note("remove", path)
        super().remove(path)

    def rename(self, source: str, target: str) -> None:
        self.note("rename", source, target)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)
        super().sync_directory(path)


class Life:
    """One seed: a store, what is done to it, and the digest of all that comes of it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sha = hashlib.sha256()
        self.counts: Counter[str] = Counter()
        self.disk = TracedDisk(Random(seed + 1), self.note)
        self.kind = ("raft", "raft", "master", "slave")[seed % 4]
        self.raft = self.kind == "raft"
        rng = self.rng
        self.config = StoreConfig(
            mode=StoreMode.RAFT if self.raft else StoreMode.CLASSIC,
            directory=rng.choice(["", "store"]),
            segment_size_bytes=SEGMENT,
            entries_per_file=rng.choice([7, 16, 50]),
            tail_entries_max=rng.choice([3, 8, 64]),
            tails_bytes_max=rng.choice([300, 2000]),
            open_files_max=rng.choice([2, 50]),
            cold_count_max=rng.choice([2, 8]),
            cold_bytes_max=rng.choice([300, 1000]),
            hot_span_bytes=rng.choice([0, 3000, 1 << 40]),
            zero_ahead=rng.random() < 0.2,
            index_enable=rng.random() < 0.8,
            index_limits=IndexLimits(slots=32, entries=rng.choice([8, 40])),
        )
        self.now_ms = START_MS
        self.number = 0
        self.waiting: list[Frame] = []  # written and not dispatched
        self.master: MessageStore | None = None
        if self.kind == "slave":
            plain = StoreConfig(mode=StoreMode.CLASSIC, segment_size_bytes=SEGMENT)
            self.master = MessageStore(SimDisk(Random(seed)), plain)
            self.master.open()

    # -- the digest -----------------------------------------------------------------------------

    def note(self, *what: object) -> None:
        self.sha.update(repr(plain(what)).encode())

    def run(self) -> str:
        try:
            self.open()
            for _ in range(OPERATIONS):
                self.once()
            self.disk.crash_after(1 << 40)
            self.store.close()
            self.note("closed")
        except (StoreError, AssertionError) as error:  # what only a peer could repair
            self.failed(error)
        for durable in (False, True):
            for path, data in sorted(self.disk.image(durable).items()):
                self.note(path, data)
        return self.sha.hexdigest()

    def failed(self, error: BaseException) -> None:
        self.counts[type(error).__name__] += 1
        self.note(type(error).__name__, str(error))

    def once(self) -> None:
        """Do one thing, or die doing it and start again."""
        rng = self.rng
        if rng.random() < 0.05:
            self.disk.crash_after(rng.randrange(1, 30))
        deeds = self.raft_deeds() if self.raft else self.classic_deeds()
        deed = rng.choice(deeds)
        self.counts[deed.__name__] += 1
        self.note(deed.__name__)
        try:
            deed()
            self.compare()
        except SimCrash:
            self.die()

    def raft_deeds(self) -> Sequence[Callable[[], None]]:
        writing = (self.write_frame, self.write_frame, self.write_frame, self.write_command)
        hurting = (self.hurt_queue, self.hurt_queue, self.repair, self.repair)
        rest = (self.dispatch, self.drop_waiting, self.truncate_dispatched, *hurting)
        return (*writing, *rest, *self.common_deeds())

    def classic_deeds(self) -> Sequence[Callable[[], None]]:
        deed = self.append if self.master is None else self.copy
        encoded = self.append_encoded if self.master is None else self.copy
        return (deed, deed, deed, encoded, *self.common_deeds())

    def common_deeds(self) -> Sequence[Callable[[], None]]:
        return (
            self.read,
            self.read,
            self.ask_times,
            self.query,
            self.index,
            self.sync_log,
            self.flush,
            self.flush_slowly,
            self.retain,
            self.restart,
            self.lose_a_file,
        )

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; where it dies during that, open it again."""
        while True:
            try:
                self.store = MessageStore(self.disk, self.config)
                self.store.open()
                if self.raft:
                    self.recover()
                break
            except SimCrash:
                self.counts["died opening"] += 1
                self.disk.kill_process()
        self.compare()

    def recover(self) -> None:
        store = self.store
        recovered = recover(store)
        self.note("recovered", recovered)
        self.note("redispatched", redispatch(store, max(recovered.end_offset, self.dispatched)))
        last = recovered.last
        self.writer = FrameWriter(store.commitlog, index=last.index if last else 0)
        offsets = {(q.topic, q.queue_id): q.max_offset for q in store.queues.queues()}
        self.writer.offsets = offsets
        self.waiting = []

    def die(self) -> None:
        rng = self.rng
        self.counts["died"] += 1
        if rng.random() < 0.5:
            self.disk.kill_process()
        else:
            self.disk.lose_power()
        if rng.random() < 0.3:
            self.disk.crash_after(rng.randrange(1, 40))
        self.open()

    def restart(self) -> None:
        if self.rng.random() < 0.3:
            self.store.close_unclean()
            self.die()
            return
        self.dispatch()
        self.store.close()
        self.open()

    def compare(self) -> None:
        """Note everything that can be seen of the store without reading files."""
        store, log = self.store, self.store.commitlog
        self.note(log.min_offset, log.max_offset, log.durable_offset, self.dispatched)
        self.note(store.queues.topics(), store.queues.tails_bytes, store.queues.corrected_to)
        for queue in sorted(store.queues.queues(), key=lambda q: q.path):
            self.note(queue.path, queue.min_offset, queue.max_offset, queue.last_position)
        self.note(store.checkpoint.fields, store.queues.damaged, store.repairs.rewritten)

    @property
    def dispatched(self) -> int:
        return self.store.derived.dispatched_offset

    # -- writing --------------------------------------------------------------------------------

    def message(self) -> MessageRecord:
        rng = self.rng
        self.number += 1
        self.now_ms += rng.choice([1, 40, 1000, HOUR_MS // 20])
        properties = f"UNIQ_KEY\x01ID{self.number:014d}\x02"
        if rng.random() < 0.5:
            properties += f"KEYS\x01k{self.number % 5} k{self.number % 3}\x02"
        if rng.random() < 0.7:
            properties += f"TAGS\x01{rng.choice(['TagA', 'TagB'])}\x02"
        topic = rng.choice(TOPICS)
        if topic == "SCHEDULE_TOPIC_XXXX":
            properties += "DELAY\x013\x02"
        return record(
            topic=topic,
            queue_id=rng.choice([0, 0, 0, 1]),
            body=b"%d " % self.number * rng.choice([1, 5, 60]),
            properties=properties.encode(),
            store_timestamp_ms=self.now_ms,
            sys_flag=rng.choice([0, 0, 0, 0, SYS_TRANSACTION_COMMIT]),
        )

    def messages(self) -> list[MessageRecord]:
        return [self.message() for _ in range(self.rng.choice([1, 2, 5, 12]))]

    def write_frame(self) -> None:
        self.waiting.append(self.writer.messages(self.messages()))
        if self.rng.random() < 0.7:
            self.dispatch()

    def write_command(self) -> None:
        self.waiting.append(self.writer.command())

    def dispatch(self) -> None:
        while self.waiting:
            self.note("entries", self.store.derived.dispatch_frame(self.waiting[0]))
            self.waiting.pop(0)

    def drop_waiting(self) -> None:
        """Truncate the log before a frame that was not dispatched."""
        if self.waiting:
            first = self.rng.randrange(len(self.waiting))
            self.truncate(self.waiting[first].position)
            del self.waiting[first:]

    def truncate_dispatched(self) -> None:
        """Truncate before frames that were dispatched, as only an engine that breaks Raft does."""
        frames = [f for f in self.writer.frames if f.position >= self.store.commitlog.min_offset]
        if frames and self.rng.random() < 0.3:
            frame = self.rng.choice(frames[-5:])
            self.truncate(frame.position)
            self.note("cut back", self.store.derived.truncate(frame.position))
            self.waiting = [f for f in self.waiting if f.position < frame.position]

    def truncate(self, position: int) -> None:
        log = self.store.commitlog
        log.truncate(position)
        kept = [f for f in self.writer.frames if f.position < position]
        dropped = self.writer.frames[len(kept) :]
        fresh = FrameWriter(log, index=dropped[0].index - 1)
        fresh.frames = kept
        fresh.offsets = self.writer.offsets
        for frame in dropped:
            records = frame.data[frame.records_at :]
            for at, size in () if frame.kind != FrameKind.MESSAGES else walk_records(records):
                taken = decode_record(records[at : at + size], check_body=False)
                key = (taken.topic, taken.queue_id)
                fresh.offsets[key] = min(fresh.offsets[key], taken.queue_offset)
        self.writer = fresh

    def append(self) -> None:
        messages = self.messages()
        if self.rng.random() < 0.05:
            messages.append(replace(self.message(), body=bytes(SEGMENT)))
        if self.rng.random() < 0.1:
            messages.append(replace(self.message(), sys_flag=4))  # prepared
        try:
            self.note("appended", append_classic(self.store, messages, self.now_ms))
        except StoreError as error:
            self.failed(error)

    def append_encoded(self) -> None:
        store, message = self.store, self.message()
        assert store.classic is not None
        message = replace(message, topic="T", sys_flag=0)
        queue = store.queues.queue("T", message.queue_id)
        position = store.commitlog.allocate(len(encode_record(message)))
        offset = 0 if queue is None else queue.max_offset
        data = encode_record(replace(message, queue_offset=offset, physical_offset=position))
        entries = UNITS.index(data, position)
        store.classic.append(position, data, entries, self.now_ms)

    def copy(self) -> None:
        """Copy from the master what follows here, a part of a segment at a time."""
        master, store = self.master, self.store
        assert master is not None and store.classic is not None
        if self.rng.random() < 0.7:
            append_classic(master, self.messages(), self.now_ms)
        position = store.commitlog.max_offset
        limit = min(self.rng.choice([900, SEGMENT]), master.commitlog.max_offset - position)
        data = master.commitlog.read(position, limit) if limit > 0 else b""
        if not data:
            return
        if BLANK.unpack_from(data)[1] == MAGIC_BLANK:
            end = master.commitlog.segment_end(position)
            store.classic.copy_blank(master.commitlog.read(position, end - position))
            return
        walk = walk_records(data, position)
        result = [at for at, _ in walk]
        try:
            if result:
                newest_ms = store_timestamp_at(data, result[-1])
                self.note("copied", store.classic.copy(data[: walk.end], newest_ms))
        except StoreError as error:
            self.failed(error)

    # -- reading --------------------------------------------------------------------------------

    def read(self) -> None:
        rng, store = self.rng, self.store
        queues = sorted((q.topic, q.queue_id) for q in store.queues.queues())
        topic, queue_id = rng.choice([*queues, ("none", 0)])
        queue = store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        offset = rng.randint(max(0, low - 2), high + 2)
        codes = None if rng.random() < 0.6 else {TAG_A}
        limits = (rng.choice([1, 4, 32]), rng.choice([200, 1 << 20]))
        try:
            got = store.reads.get_messages(topic, queue_id, offset, *limits, codes)
            self.note(topic, queue_id, offset, limits, got)
            self.counts[got.status.name] += 1
        except StoreError as error:
            self.failed(error)

    def ask_times(self) -> None:
        rng, store = self.rng, self.store
        topic, queue_id = rng.choice(TOPICS), rng.randrange(2)
        self.note("first", store.expiry.log_start_time())
        if self.whole(topic, queue_id):
            self.note("earliest", store.reads.earliest_store_time(topic, queue_id))
            at_ms = rng.randint(START_MS, self.now_ms)
            self.note("at", store.reads.offset_by_time(topic, queue_id, at_ms))
        log = store.commitlog
        self.note("record", store.reads.message_at(rng.randint(log.min_offset, log.max_offset)))
        queue = store.queues.queue(topic, queue_id)
        if queue is not None and queue.max_offset > queue.min_offset:
            position = queue.entry(rng.randrange(queue.min_offset, queue.max_offset))[0]
            self.note("record", position, store.reads.message_at(position))

    def whole(self, topic: str, queue_id: int) -> bool:
        """Whether all entries of a queue point into the log, where a whole head can stand."""
        queue, log = self.store.queues.queue(topic, queue_id), self.store.commitlog
        if queue is None:
            return True
        entries = [queue.entry(n) for n in range(queue.min_offset, queue.max_offset)]
        return all(log.min_offset <= at < log.max_offset - 112 for at, _, _ in entries)

    def query(self) -> None:
        rng = self.rng
        topic = rng.choice(TOPICS)
        key = rng.choice([f"k{rng.randrange(5)}", f"ID{rng.randint(0, self.number):014d}"])
        start_ms = rng.choice([0, self.now_ms - HOUR_MS])
        self.note(
            topic, key, drained(self.store.derived.query(topic, key, 10, start_ms, self.now_ms))
        )

    def index(self) -> None:
        if self.rng.random() < 0.3:
            self.store.derived.index_all()
        else:
            self.note("left", self.store.derived.index_step(self.rng.choice([200, 1000])))

    # -- keeping --------------------------------------------------------------------------------

    def sync_log(self) -> None:
        log = self.store.commitlog
        ticket = log.start_sync()
        if ticket is not None:
            ticket.run()
            self.note("durable", log.finish_sync(ticket))
        if log.wants_next and self.rng.random() < 0.5:
            log.prepare_next()

    def flush(self) -> None:
        self.store.flush()

    def flush_slowly(self) -> None:
        """Do something while a flush is in flight, and perhaps have it fail."""
        store, rng = self.store, self.rng
        flush = store.flushes.start()
        for _ in range(rng.randrange(3)):
            rng.choice([self.read, self.write_frame if self.raft else self.read])()
        if rng.random() < 0.3:
            store.derived.correct_min_offset()
        if rng.random() < 0.2:
            store.flushes.finish(flush, synced=False)
        else:
            flush.run()
            store.flushes.finish(flush, synced=True)

    def retain(self) -> None:
        store, rng = self.store, self.rng
        by_age, hour = rng.random() < 0.8, rng.choice([4, 5])
        policy = RetentionPolicy(reserved_hours=1, segments_at_once_max=2)
        now = LogNow(self.now_ms, self.now_ms if by_age else 0)
        offset = store.expiry.expired(policy, now, store.disk.usage(), hour).before
        self.note("expired", offset)
        if rng.random() < 0.5:
            self.note("deleted", store.delete_before(offset))

    def hurt_queue(self) -> None:
        """Change a durable byte of a queue's file: a wrong entry."""
        prefix = self.config.path("consumequeue/")
        names = [p for p in sorted(self.disk.image(False)) if p.startswith(prefix)]
        if names and self.rng.random() < 0.5:
            path = self.rng.choice(names)
            self.disk.rot(path, self.rng.randrange(100))
            for _ in range(4):
                self.read()

    def repair(self) -> None:
        for _ in range(3):
            dispatched = self.store.derived.dispatched_offset
            step = self.store.repairs.next_step(dispatched, self.frame_is_damaged)
            if step is None:
                break
            self.counts["repaired"] += 1
            step.run()
            self.store.repairs.finish(step)

    def frame_is_damaged(self, position: int) -> bool:
        return position % 5 == 0

    def lose_a_file(self) -> None:
        """Stop, lose a file of the queues, the index or the checkpoint, and start."""
        if self.rng.random() < 0.7:
            return
        if self.raft:
            self.dispatch()
        self.store.close()
        lost = ("consumequeue", "index", "checkpoint") if self.raft else ("index",)
        prefixes = tuple(self.config.path(name) for name in lost)
        names = [p for p in sorted(self.disk.image(True)) if p.startswith(prefixes)]
        if names:
            self.note("lost", self.disk.lose_file(self.rng.choice(names)))
        self.open()


def plain(value: object) -> object:
    """Return a value without the names of our classes, so that they may be renamed."""
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, list | tuple):
        return tuple(plain(one) for one in value)
    return value


def live(seed: int) -> tuple[str, Counter[str]]:
    """Return one seed's digest and how often what happened in it."""
    life = Life(seed)
    return life.run(), life.counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.store.digest", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--each", action="store_true", help="print every seed's digest")
    arguments = parser.parse_args()
    total, counts = hashlib.sha256(), Counter[str]()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        digest, happened = live(seed)
        total.update(digest.encode())
        counts += happened
        if arguments.each:
            print(seed, digest)
    print(dict(sorted(counts.items())))
    print(f"{arguments.seeds} seeds from {arguments.start}: {total.hexdigest()}")


if __name__ == "__main__":
    main()
