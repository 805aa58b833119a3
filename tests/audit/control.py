"""A second judge of a group of three replicas, as the control of the audit.

A plain loop over the bytes, by the byte tables of the formats (docs, store/frame.py,
store/record.py) and with nothing of the audit. It holds everything in memory and knows no lagging
replicas, removed logs or changed members. `judged` returns the names of the audit's checks that
fail, each with what it says of its offenders.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from google_crc32c import value as crc32c

from tests.audit.control_of_history import compare

FRAME, RECORD, BLANK = 0xDAA320F0, 0xDAA320A7, 0xCBD43194
FRAME_HEAD = struct.Struct(">IIqqqqiiiII")
RECORD_HEAD = struct.Struct(">IIIiIqqiqq")  # up to the born host
SLOT_HEAD = struct.Struct(">IHHQ")
INDEX_HEAD, INDEX_ENTRY = struct.Struct(">qqqqii"), struct.Struct(">iqii")
TIMED = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
RETENTION_MS, CLOCKS_MS = 72 * 3_600_000, 60_000
OWN = {"UNIQ_KEY", "WAIT", "CLUSTER"}  # properties that no application sets
Findings = dict[str, list[str]]


@dataclass
class Record:
    position: int
    data: bytes
    intact: bool

    def __post_init__(self) -> None:
        head = RECORD_HEAD.unpack_from(self.data)
        self.queue, self.flag, self.offset, self.sysflag = head[3], head[4], head[5], head[7]
        self.born_ms = head[8]
        (self.stored_ms,) = struct.unpack_from(">q", self.data, 56)
        self.times, _, length = struct.unpack_from(">iqi", self.data, 72)
        self.body = self.data[88 : 88 + length]
        at = 88 + length
        size = self.data[at]
        self.topic = self.data[at + 1 : at + 1 + size].decode()
        pairs = self.data[at + 3 + size :].decode("utf-8", "replace").split("\x02")
        self.properties = dict(pair.split("\x01", 1) for pair in pairs if "\x01" in pair)
        self.id = self.properties.get("UNIQ_KEY", "")

    @property
    def content(self) -> bytes | None:
        if not self.sysflag & 1:
            return self.body
        try:
            return zlib.decompress(self.body)
        except zlib.error:
            return None

    @property
    def keys(self) -> set[str]:
        return {self.id, *self.properties.get("KEYS", "").split()}

    @property
    def fields(self) -> int:
        given = [pair for pair in self.properties.items() if pair[0] not in OWN]
        return (self.flag + sum(zlib.crc32("\x01".join(p).encode()) for p in given)) & 0x7FFFFFFF


@dataclass
class Frame:
    position: int
    index: int
    term: int
    kind: int
    count: int
    data: bytes
    command: bytes
    intact: bool
    records: list[Record] = field(default_factory=list)


@dataclass
class Store:
    name: str
    root: Path
    start: int = 0
    end: int = 0
    frames: list[Frame] = field(default_factory=list)
    damage: list[tuple[int, str]] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segments = {int(p.name): p.read_bytes() for p in (self.root / "commitlog").iterdir()}
        checkpoint = (self.root / "checkpoint").read_bytes()
        (self.commit,) = struct.unpack_from(">q", checkpoint, 32)
        (self.open_ms,) = struct.unpack_from(">q", checkpoint, 64)
        self.start = min(self.segments)
        size = len(self.segments[self.start])
        for base in sorted(self.segments):
            if base > self.start and base - size not in self.segments:
                self.gaps.append(base - size)
            self._walk(base, self.segments[base])

    def _walk(self, base: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            size, magic = struct.unpack_from(">II", data, at) if at + 8 <= len(data) else (0, 0)
            if magic == BLANK and size == len(data) - at:
                self.skipped.append((base + at + 8, base + len(data)))
                return
            if self._frame(base, at, data):
                at += 60 + FRAME_HEAD.unpack_from(data, at)[6]
                self.end = base + at
                continue
            self.damage.append((base + at, "stops" if not any(data[at:]) else "hole"))
            heads = (n for n in range(at + 1, len(data)) if self._is_frame(base, n, data))
            at = next(heads, len(data))

    @staticmethod
    def _is_frame(base: int, at: int, data: bytes) -> bool:
        if data[at + 4 : at + 8] != b"\xda\xa3\x20\xf0" or at + 60 > len(data):
            return False
        head = FRAME_HEAD.unpack_from(data, at)
        return head[4] == base + at and head[10] == crc32c(data[at : at + 56])

    def _frame(self, base: int, at: int, data: bytes) -> bool:
        if not self._is_frame(base, at, data):
            return False
        hop, _, index, term, position, _, length, count, kind, crc, _ = FRAME_HEAD.unpack_from(
            data, at
        )
        payload = data[at + 60 : at + 60 + length]
        intact = crc32c(payload) == crc
        if not intact:
            self.damage.append((position, "frame"))
        split = hop - 60 if kind == 1 else length
        frame = Frame(position, index, term, kind, count, data[at : at + 60 + length], b"", intact)
        frame.command = payload[:split]
        self.frames.append(frame)
        inner = split
        while inner < length:
            size, magic = struct.unpack_from(">II", payload, inner)
            here = position + 60 + inner
            if magic != RECORD or not 91 <= size <= length - inner:
                self.damage.append((here, "hole"))
                break
            raw = payload[inner : inner + size]
            body_size = int.from_bytes(raw[84:88], "big")
            crc = zlib.crc32(raw[88 : 88 + body_size]) & 0x7FFFFFFF
            frame.records.append(Record(here, raw, crc == int.from_bytes(raw[8:12], "big")))
            if not frame.records[-1].intact:
                self.damage.append((here, "record"))
            inner += size
        return True


class Judge:
    def __init__(self, stores: dict[str, Path], history: Path) -> None:
        self.found: Findings = defaultdict(list)
        present = {name: root for name, root in stores.items() if root.is_dir()}
        self.found["absent_stores"] += [name for name in stores if name not in present]
        self.stores = [Store(name, root) for name, root in present.items()]
        self.needed = len(stores) // 2 + 1
        self.lines = [json.loads(line) for line in history.read_bytes().splitlines()]
        copies = Counter(frame.data for store in self.stores for frame in store.frames)
        held = {f.data: f for s in self.stores for f in s.frames if f.intact}
        self.frames = sorted(
            (frame for data, frame in held.items() if copies[data] >= self.needed),
            key=lambda frame: frame.position,
        )
        alike = Counter((r.position, r.data) for s in self.stores for f in s.frames
                        for r in f.records if r.intact)  # fmt: skip
        self.records = sorted(
            (Record(*key, True) for key, count in alike.items() if count >= self.needed),
            key=lambda record: record.position,
        )
        self.end = max((f.position + len(f.data) for f in self.frames), default=0)
        self.visible = [r for r in self.records if r.sysflag & 12 in (0, 8)]

    def log(self) -> None:
        for store in self.stores:
            limit = max(store.commit, self.end)
            behind = [(at, what) for at, what in store.damage if at < limit]
            self.say("damage", *(f"{store.name} 'position': {at}" for at, _ in behind))
            self.say("segments", *(f"{store.name} {at}" for at in store.gaps))
            if store.commit > self.end or store.commit > max(store.end, store.start):
                self.say("commit", store.name)
            before = None
            for frame in store.frames:
                if before and (frame.index != before.index + 1 or frame.term < before.term):
                    where = before if frame.index == before.index + 1 else frame
                    self.say("frame_sequence", *(f"{store.name} 'position': {f.position}"
                             for f in {id(f): f for f in (where, frame)}.values()))  # fmt: skip
                if frame.kind == 1 and frame.count != len(frame.records):
                    self.say("frame_records", f"{store.name} 'position': {frame.position}")
                before = frame
            times = [r for f in store.frames for r in f.records if r.intact]
            peak = 0
            for record in times:
                if record.stored_ms < peak - CLOCKS_MS:
                    self.say("times_fall", f"{store.name} 'position': {record.position}")
                peak = max(peak, record.stored_ms)
            if store.start and times and times[0].stored_ms > store.open_ms - RETENTION_MS:
                self.say("removed_early", f"{store.name} 'position': {store.start}")
        for one, other in zip(self.stores, self.stores[1:], strict=False):
            for base in one.segments.keys() & other.segments.keys():
                left, right = bytearray(one.segments[base]), bytearray(other.segments[base])
                for low, high in one.skipped + other.skipped:
                    if base <= low < base + len(left):
                        left[low - base : high - base] = right[low - base : high - base] = b""
                if left != right:
                    self.say("replicas", f"{one.name} {other.name} {base}")

    def queues(self) -> None:
        by_queue: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in self.visible:
            by_queue[record.topic, record.queue].append(record)
            if record.content is None:
                self.say("unpackable", f"'position': {record.position},")
        self.ends = {queue: rows[-1].offset + 1 for queue, rows in by_queue.items()}
        for store in self.stores:
            own = {r.position: r for f in store.frames for r in f.records}
            reached = set()
            for path in (store.root / "consumequeue").glob("*/*/*"):
                topic, number, data = path.parts[-3], int(path.parts[-2]), path.read_bytes()
                for at in range(0, len(data), 20):
                    position, size, code = struct.unpack_from(">qiq", data, at)
                    if not size or position < store.start:
                        continue
                    target, offset = own.get(position), int(path.name) // 20 + at // 20
                    what = f"{store.name} 'position': {position}"
                    if topic.startswith("%LMQ%"):
                        if target is None or len(target.data) != size:
                            self.say("multi_queue", what)
                    elif target is None:
                        self.say("queue_index", f"{what} points at no record")
                    elif (topic, number, offset, size) != (
                        *(target.topic, target.queue, target.offset, len(target.data)),
                    ) or (topic not in TIMED and code != java_hash(target.properties["TAGS"])):
                        self.say("queue_index", what)
                        reached.add(position)
                    else:
                        reached.add(position)
            missing = (p for p, r in own.items() if r.sysflag & 12 in (0, 8) and p not in reached)
            self.say("not_indexed", *(f"{store.name} 'position': {p}" for p in missing))

    def waiting(self) -> None:
        waits = [r for r in self.visible if r.topic == TIMED[0]]
        later = [r for r in self.visible if r.topic not in (*TIMED, HALF)]
        for wait in waits:
            came = Counter(r.topic for r in later if r.id == wait.id and r.position > wait.position)
            if not came:
                self.say("due_missing", wait.id)
            if max(came.values(), default=0) > sum(r.id == wait.id for r in waits):
                self.say("due_twice", wait.id)
        halves = {r.id for r in self.visible if r.topic == HALF}
        for record in self.visible:
            if record.sysflag & 12 == 8 and record.id not in halves:
                self.say("committed_unprepared", record.id)

    def files(self) -> None:
        offsets: dict[str, dict[str, int]] = {}
        for frame in self.frames:
            command = json.loads(frame.command) if frame.command and frame.kind != 4 else {}
            for topic, group, queue, offset in command.get("commits", ()):
                offsets.setdefault(f"{topic}@{group}", {})[str(queue)] = offset
        for name, queues in offsets.items():
            topic, group = name.split("@")
            for queue, offset in queues.items():
                if offset > self.ends.get((topic, int(queue)), 0):
                    self.say("group_offsets", f"'topic': '{topic}' {group}")
        last = max((frame.index for frame in self.frames), default=0)
        for store in self.stores:
            names = {path.name for path in (store.root / "config").iterdir()}
            for name in sorted({n.removesuffix(".bak") for n in names} - names):
                self.say("tables", f"{store.name} config/{name}")
            for path in (store.root / "config").iterdir():
                what = self._table(path, offsets, last)
                if what:
                    self.say("tables", f"{store.name} config/{path.name}' {what}")
            self._raft(store)
            for path in (store.root / "index").iterdir():
                self._index(store, path.read_bytes())

    @staticmethod
    def _table(path: Path, offsets: dict[str, dict[str, int]], last: int) -> str:
        try:
            value = json.loads(path.read_bytes())
        except ValueError:
            return "cannot be read"
        checksum = value.pop("raftChecksum", None)
        sorted_ = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if checksum != crc32c(sorted_.encode()):
            return "the checksum is wrong"
        if value["raftAppliedIndex"] > last:
            return f"reflects frame {value['raftAppliedIndex']}"
        table = value["offsetTable"] if path.name == "consumerOffset.json" else offsets
        return "; ".join(
            f"{name}.{queue} is {stored}, by the log {offset}"
            for name, queues in offsets.items()
            for queue, offset in queues.items()
            if (stored := table.get(name, {}).get(queue)) != offset
        )

    def _raft(self, store: Store) -> None:
        if not (store.root / "raft" / "hardstate").is_file():
            self.say("raft_files", f"{store.name} raft/hardstate")
        configurations = {f.index: f.command for f in self.frames if f.kind == 4}
        for path in (store.root / "raft").iterdir():
            contents = []
            for at in (0, 4096):
                slot = path.read_bytes()[at : at + 4096]
                end = 16 + SLOT_HEAD.unpack_from(slot)[2]
                if int.from_bytes(slot[end : end + 4], "big") == crc32c(slot[:end]):
                    contents.append((SLOT_HEAD.unpack_from(slot)[3], slot[16:end]))
                else:
                    self.say("raft_files", f"{store.name} raft/{path.name}:{at}")
            content = max(contents, default=(0, b""))[1]
            if path.name == "hardstate" and content:
                (term,) = struct.unpack_from(">q", content, 2)
                if term < max((frame.term for frame in store.frames), default=0):
                    self.say("raft_files", f"{store.name} term {term}, and")
            elif path.name == "configuration" and content:
                index = int.from_bytes(content[:8], "big")
                if configurations.get(index) != content[8:]:
                    self.say("raft_files", f"{store.name} raft/configuration of frame {index}")
            elif path.name == "group" and content:
                ids = [f.command for f in self.frames if f.kind == 2 and content.hex().encode()
                       in f.command]  # fmt: skip
                if not ids:
                    self.say("raft_files", f"{store.name} raft/group")

    def _index(self, store: Store, data: bytes) -> None:
        start_ms, _, first, last, _, count = INDEX_HEAD.unpack_from(data)
        slots = (len(data) - 40) // 84  # with four entries for each
        own = {r.position: r for f in store.frames for r in f.records}
        if not {first, last} <= own.keys():
            self.say("index", f"{store.name} the header is damaged")
            return
        reached: dict[int, set[int]] = defaultdict(set)
        entries = {}
        for number in range(1, count):
            value, position, seconds, before = INDEX_ENTRY.unpack_from(
                data, 40 + 4 * slots + 20 * number
            )
            entries[number] = (value, position, before)
            target = own.get(position)
            hashes = hashes_of(target) if target else set()
            if target is None or value not in hashes:
                self.say("index", f"{store.name} 'entry': {number},")
            elif seconds != (target.stored_ms - start_ms) // 1000:
                self.say("index", f"{store.name} 'entry': {number},")
            if before and entries.get(before, (value,))[0] % slots != value % slots:
                self.say("index", f"{store.name} 'entry': {number},")
        for slot in range(slots):
            number = int.from_bytes(data[40 + 4 * slot : 44 + 4 * slot], "big")
            while number in entries and number not in reached[slot]:
                reached[slot].add(number)
                number = entries[number][2]
        for number, (value, _, _) in entries.items():
            if number not in reached[value % slots]:
                self.say("index", f"{store.name} {number} is not reached from its slot")
        there = {position for _, position, _ in entries.values()}
        missing = (p for p in own if p not in there)
        self.say("index", *(f"{store.name} 'position': {p}" for p in missing))

    @staticmethod
    def crc(content: bytes) -> int:
        return zlib.crc32(content) & 0x7FFFFFFF

    def say(self, check: str, *what: str) -> None:
        self.found[check] += what


def hashes_of(record: Record) -> set[int]:
    return {abs(java_hash(f"{record.topic}#{key}")) for key in record.keys}


def java_hash(text: str) -> int:
    value = 0
    for letter in text:
        value = value * 31 + ord(letter) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def judged(stores: dict[str, Path], history: Path) -> Findings:
    """Return the offenders by the failed check."""
    judge = Judge(stores, history)
    for part in (judge.log, judge.queues, judge.waiting, judge.files):
        part()
    compare(judge)
    return {name: rows for name, rows in judge.found.items() if rows}
