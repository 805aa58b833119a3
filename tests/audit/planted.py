"""The kinds of damage that an audit has to name: a whole group on disk, and how each is planted.

`group_at` writes three stores with all that a replica has on disk: log, ConsumeQueues, IndexFile,
tables, raft/. Each of STORE_KINDS changes files of some of the stores, each of HISTORY_KINDS what
the history says; and each says which check names it, and where. Planted alike on a majority, damage
that keeps its checksums is what the group holds; then history or tables are at odds with it.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
from google_crc32c import value as crc32c

from raftmq.broker.tables import snapshot
from raftmq.broker.tables.broker_group import group_id
from raftmq.broker.tables.state import (
    BrokerState,
    commit_offsets,
    delay_progress,
    put_topic,
)
from raftmq.broker.tables.topics import TopicConfig
from raftmq.dledger.raft.configuration import Configuration, GroupMember, encode_configuration
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.configuration_file import ConfigurationFile
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.spark.layout import java_hash
from raftmq.store.disk import OsDisk
from raftmq.store.frame import FrameKind, parse_header
from tests.audit.run import NAMES, TOPIC, Run, message_id
from tests.audit.stores import (
    BLANK,
    BORN_MS,
    SEGMENT_SIZE_BYTES,
    UNIT,
    Log,
    Message,
    Placed,
    note_time,
    properties_of,
)

COUNT = 150  # messages: three segments and more
GROUP_ID = bytes(range(16))
TERM = 5
MEMBERS = Configuration(tuple(GroupMember(name, f"{name}:1", i) for i, name in enumerate(NAMES)))
OTHERS = Configuration(tuple(GroupMember(name, f"{name}:1", i) for i, name in enumerate("xyz")))
INDEX_NAME = "20231114221320001"
SLOTS = 512
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")
DUE_MS = 1_700_000_010_001
DELAYED, DECIDED = message_id(7_000), message_id(7_001)
OFFSETS = commit_offsets([(TOPIC, "G", 0, 5), (TOPIC, "G", 1, 7)])


def group_at(root: Path) -> Run:
    """Write the stores and the history of a group in which nothing is wrong."""
    run = Run.plan(root, COUNT)
    log = run.log
    log.other(1, FrameKind.CONFIGURATION, encode_configuration(MEMBERS))
    log.other(1, FrameKind.COMMAND, group_id(GROUP_ID))
    log.other(1, FrameKind.COMMAND, put_topic(TopicConfig(TOPIC)))
    first = Message(message_id(5_000), b"behind a command", topic="Other")
    log.frame(1, [first], command=commit_offsets([("Other", "G", 0, 1)]))
    log.frame(1, [Message(DELAYED, b"later", "SCHEDULE_TOPIC_XXXX", queue=2, due_ms=DUE_MS)])
    log.frame(1, [Message(DECIDED, b"perhaps", "RMQ_SYS_TRANS_HALF_TOPIC")])
    came = Message(DELAYED, b"later", "Other", store_ms=DUE_MS + 1)
    log.frame(1, [came], command=delay_progress(3, 1))
    log.frame(1, [Message(DECIDED, b"perhaps", "Other", sys_flag=8)])
    run.store(first_index=log.index, command=OFFSETS)
    run.write()
    for name in NAMES:
        write_beside(Path(run.stores[name]), run.log)
    return run


def write_beside(store: Path, log: Log) -> None:
    """Write what stands beside a log: its index, its tables, twice, and raft/."""
    (store / "index").mkdir()
    (store / "index" / INDEX_NAME).write_bytes(index_file(log))
    commands = [*commands_of(log)]
    disk, state = OsDisk(str(store)), BrokerState()
    for done, (index, stamp_ms, payload, records_at) in enumerate(commands):
        state.apply(index, stamp_ms, payload, records_at)
        if done == len(commands) // 2:
            snapshot.write(disk, snapshot.capture(state))
    state.advance(log.index)
    snapshot.write(disk, snapshot.capture(state))
    note_time(store, DUE_MS + 60_000)  # nothing is as old as retention
    save_hard_state(store, TERM)
    save_configuration(store, 1, MEMBERS)
    group = SlotFile(disk, "raft/group")
    group.load()
    group.save(GROUP_ID)
    group.close()


def save_hard_state(store: Path, term: int) -> None:
    file = HardStateFile(OsDisk(str(store)), "raft/hardstate")
    file.load()
    file.save(HardState(term, "n0", recovered=True))
    file.close()


def save_configuration(store: Path, index: int, members: Configuration) -> None:
    file = ConfigurationFile(OsDisk(str(store)), "raft")
    file.load()
    file.save(index, members)
    file.close()


def commands_of(log: Log) -> list[tuple[int, int, bytes, int]]:
    """The log's commands: index of the frame, its time, payload, where its records begin."""
    result = []
    for at, size in log.frames:
        base = at - at % log.segment_size_bytes
        data = bytes(log.segments[base][at - base : at - base + size])
        hop, _, index, _, _, stamp_ms, _, _, kind, *_ = parse_header(data)
        if kind == FrameKind.COMMAND or (kind == FrameKind.MESSAGES and hop > 60):
            result.append((index, stamp_ms, data[60:hop], at + hop))
    return result


def index_file(log: Log) -> bytes:
    """An IndexFile of all messages, as Apache lays it out."""
    entries, slots, first = [bytes(20)], [0] * SLOTS, log.placed[0]
    start_ms = first.message.store_ms
    for placed in log.placed:
        properties = properties_of(placed.message)
        for key in (properties["UNIQ_KEY"], *properties["KEYS"].split()):
            value = abs(java_hash(f"{placed.message.topic}#{key}"))
            seconds = (placed.message.store_ms - start_ms) // 1000
            slot = value % SLOTS
            entries.append(INDEX_ENTRY.pack(value, placed.position, seconds, slots[slot]))
            slots[slot] = len(entries) - 1
    last = log.placed[-1]
    used = sum(slot > 0 for slot in slots)
    header = INDEX_HEADER.pack(
        start_ms, last.message.store_ms, first.position, last.position, used, len(entries)
    )
    data = header + struct.pack(f">{SLOTS}i", *slots) + b"".join(entries)
    return data.ljust(40 + SLOTS * 84, b"\0")


# ---- planting ------------------------------------------------------------------------------------


@dataclass
class Hit:
    """What a kind of damage is planted in: the stores, and the run that they are of."""

    run: Run
    stores: list[Path]
    history: Path

    def files(self, name: str) -> list[Path]:
        return [store / name for store in self.stores]

    def patch(self, name: str, at: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        for path in self.files(name):
            content = bytearray(path.read_bytes())
            content[at : at + len(data)] = data
            path.write_bytes(content)

    def segment(self, position: int) -> tuple[str, int]:
        base = position - position % self.run.log.segment_size_bytes
        return f"commitlog/{base:020d}", position - base

    def log(self, position: int, data: bytes) -> None:
        """Overwrite bytes of the log."""
        name, at = self.segment(position)
        self.patch(name, at, data)

    def flip(self, position: int) -> None:
        self.log(position, bytes([self.run.log.byte(position) ^ 0xFF]))

    def frame_of(self, position: int) -> tuple[int, int]:
        """The frame in which a position lies: where it begins, its size."""
        return max(frame for frame in self.run.log.frames if frame[0] <= position)

    def reseal(self, frame: int, changed: dict[int, bytes]) -> None:
        """Change bytes of a frame, by their place in it, and make its checksums right again."""
        size = dict(self.run.log.frames)[frame]
        data = bytearray(self.run.log.byte(frame + i) for i in range(size))
        for at, new in changed.items():
            data[at : at + len(new)] = new
        data[52:56] = struct.pack(">I", crc32c(bytes(data[60:])))
        data[56:60] = struct.pack(">I", crc32c(bytes(data[:56])))
        self.log(frame, bytes(data))

    def unit(self, number: int, at: int, data: bytes) -> None:
        """Overwrite bytes of a message's ConsumeQueue unit."""
        placed = self.run.placed(number)
        name = f"consumequeue/{TOPIC}/{placed.message.queue}/{0:020d}"
        self.patch(name, placed.queue_offset * 20 + at, data)

    def table(self, name: str, **changed: Any) -> None:
        """Change a table's values; its checksum is right."""
        for path in self.files(f"config/{name}"):
            value = orjson.loads(path.read_bytes())
            value.pop("raftChecksum")
            value |= changed
            value["raftChecksum"] = crc32c(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
            path.write_bytes(orjson.dumps(value))

    def entry(self, number: int, at: int, data: bytes) -> None:
        """Overwrite bytes of an IndexFile's entry."""
        self.patch(f"index/{INDEX_NAME}", 40 + SLOTS * 4 + number * 20 + at, data)

    def remove(self, name: str) -> None:
        for path in self.files(name):
            path.unlink()


@dataclass(frozen=True)
class Kind:
    """A kind of damage. `check` names it, `directory` is in what it says of it; `two` and `all`:
    the check where two or all replicas have it alike, if that is another. `together`: kinds that
    can be planted in one group ("beside …": in files beside the log, and in the history, which do
    not touch each other). `names`: whether the check names the stores that have it (alone)."""

    name: str
    together: str
    plant: Callable[[Hit], object]
    check: str
    directory: Callable[[Run], str] = field(default=lambda run: "")
    two: str = ""
    all: str = ""
    names: bool = True

    def check_on(self, damaged: int) -> str:
        """The check that has to name it on so many of three replicas."""
        of_two = self.two or self.check
        return (self.check, of_two, self.all or of_two)[damaged - 1]


def said(text: str) -> Callable[[Run], str]:
    return lambda run: text


def at(number: int) -> Callable[[Run], str]:
    """The log position of a message, as offenders show it."""
    return lambda run: f"'position': {run.placed(number).position}"


def within(number: int) -> Callable[[Run], str]:
    """The position of the frame of a message."""

    def place(run: Run) -> str:
        return f"'position': {Hit(run, [], run.root).frame_of(run.placed(number).position)[0]}"

    return place


def frame(hit: Hit, number: int) -> int:
    return hit.frame_of(hit.run.placed(number).position)[0]


def _command(run: Run) -> int:
    """A frame that is a command in the middle of the log."""
    return _commands(run)[0]


def _commands(run: Run) -> list[int]:
    """The frames that are commands of one kind."""
    kinds = {at: run.log.byte(at + 51) for at, size in run.log.frames if size == 60 + len(OFFSETS)}
    return [at for at, kind in kinds.items() if kind == FrameKind.COMMAND]


def _other_body(hit: Hit, number: int) -> None:
    """Another body with all checksums right, as a program that alters messages writes it."""
    placed = hit.run.placed(number)
    start = frame(hit, number)
    body = placed.message.body[::-1]
    record = placed.position - start
    crc = struct.pack(">I", crc32(body) & 0x7FFFFFFF)
    hit.reseal(start, {record + 8: crc, record + 88: body})


def _property(hit: Hit, number: int) -> dict[int, bytes]:
    """The change of a letter of KEYS, in the message's frame."""
    placed = hit.run.placed(number)
    start = frame(hit, number)
    data = bytes(hit.run.log.byte(placed.position + i) for i in range(placed.size))
    return {placed.position - start + data.index(b"KEYS\x01k") + 5: b"x"}


def _born(hit: Hit, number: int) -> dict[int, bytes]:
    """The change of the message's born time by some hours, in its frame."""
    record = hit.run.placed(number).position - frame(hit, number)
    return {record + 40: struct.pack(">q", BORN_MS + 7_200_000)}


def _letter(hit: Hit, number: int) -> None:
    """Change the same letter, with the checksum as it was."""
    for position, letter in _property(hit, number).items():
        hit.log(frame(hit, number) + position, letter)


def _other_id(hit: Hit, id: str, topic: str) -> None:
    """Change the id of the message in that topic, with right checksums."""
    (placed,) = (p for p in hit.run.log.placed if p.message.id == id and p.message.topic == topic)
    start = hit.frame_of(placed.position)[0]
    data = bytes(hit.run.log.byte(placed.position + i) for i in range(placed.size))
    hit.reseal(start, {placed.position - start + data.index(id.encode()): b"A"})


def _came_again(hit: Hit) -> None:
    """A later message of the topic of the delayed message has its id."""
    id = message_id(10_012)
    (placed,) = (p for p in hit.run.log.placed if p.message.id == id)
    start = hit.frame_of(placed.position)[0]
    data = bytes(hit.run.log.byte(placed.position + i) for i in range(placed.size))
    at = placed.position - start + data.index(id.encode())
    hit.reseal(start, {at: DELAYED.encode()})


def _stored_before(hit: Hit, number: int) -> None:
    record = hit.run.placed(number).position - frame(hit, number)
    hit.reseal(frame(hit, number), {record + 56: struct.pack(">q", BORN_MS - 3_600_000)})


def _packed(hit: Hit, number: int) -> None:
    """The record says that its body is compressed."""
    record = hit.run.placed(number).position - frame(hit, number)
    hit.reseal(frame(hit, number), {record + 36: struct.pack(">i", 1)})


def _garbage_units(hit: Hit) -> None:
    for path in hit.files(f"consumequeue/%LMQ%lite/0/{0:020d}"):
        path.parent.mkdir(parents=True)
        path.write_bytes(UNIT.pack(77, 99, 1))


def _cut_tail(hit: Hit) -> None:
    """The log ends in the middle, as if what is behind had never been written."""
    name, start = hit.segment(frame(hit, 140))
    for path in hit.files(name):
        content = path.read_bytes()
        path.write_bytes(content[:start] + bytes(len(content) - start))
    for base in hit.run.log.segments:
        if base > frame(hit, 140):
            hit.remove(f"commitlog/{base:020d}")


def _middle_segment(hit: Hit) -> None:
    hit.remove(f"commitlog/{sorted(hit.run.log.segments)[1]:020d}")


def _blank(hit: Hit) -> None:
    """The blank record at a segment's end is gone."""
    hit.log(_blank_at(hit.run), bytes(BLANK.size))


def _blank_at(run: Run) -> int:
    second = sorted(run.log.segments)[1]
    before = max(frame for frame in run.log.frames if frame[0] < second)
    return sum(before)


def _store_gone(hit: Hit) -> None:
    for store in hit.stores:
        shutil.rmtree(store)


def _torn_slot(hit: Hit) -> None:
    hit.patch("raft/group", 4096 + 16, b"\xff")


def _bad_slots(hit: Hit) -> None:
    hit.patch("raft/hardstate", 20, b"\xff\xff")
    hit.patch("raft/hardstate", 4096 + 20, b"\xff\xff")


def _lower_term(hit: Hit) -> None:
    for store in hit.stores:
        save_hard_state(store, TERM - 1)


def _other_members(hit: Hit) -> None:
    for store in hit.stores:
        save_configuration(store, 1, OTHERS)


def _no_such_frame(hit: Hit) -> None:
    for store in hit.stores:
        save_configuration(store, 9, MEMBERS)


def _other_group(hit: Hit) -> None:
    for store in hit.stores:
        file = SlotFile(OsDisk(str(store)), "raft/group")
        file.load()
        file.save(GROUP_ID[::-1])
        file.close()


def _fewer_entries(hit: Hit) -> None:
    """The index ends where it did, and an entry in its middle is gone."""
    content = index_file(_without(hit.run.log, 70))
    for path in hit.files(f"index/{INDEX_NAME}"):
        path.write_bytes(content)


def _without(log: Log, number: int) -> Log:
    fewer = log.copy()
    fewer.placed = [p for p in log.placed if p.message.id != message_id(number)]
    return fewer


def _first_slot(hit: Hit) -> int:
    """A slot that has an entry."""
    data = hit.files(f"index/{INDEX_NAME}")[0].read_bytes()
    return next(n for n in range(SLOTS) if any(data[40 + 4 * n : 44 + 4 * n]))


def _history(*events: dict[str, Any]) -> Callable[[Hit], None]:
    """Add lines to the history."""

    def plant(hit: Hit) -> None:
        lines = hit.history.read_bytes().splitlines()
        number = 1_000_000 + len(lines)
        for event in events:
            lines.append(orjson.dumps({"op": number, "t_ns": number, "p": "p", **event}))
            number += 1
        hit.history.write_bytes(b"\n".join(lines) + b"\n")

    return plant


def _sent(hit: Hit, number: int, **changed: Any) -> None:
    """Change what the history says of a send; its invoke by `invoke_…`."""
    lines = [orjson.loads(line) for line in hit.history.read_bytes().splitlines()]
    (op,) = (line["op"] for line in lines if line.get("id") == message_id(number))
    for line in lines:
        if line.get("op") == op and line["f"] == "send":
            prefix = "invoke_" if line["type"] == "invoke" else "end_"
            line |= {k.removeprefix(prefix): v for k, v in changed.items() if k.startswith(prefix)}
    hit.history.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")


def _unsent(hit: Hit, number: int) -> None:
    lines = [orjson.loads(line) for line in hit.history.read_bytes().splitlines()]
    (op,) = (line["op"] for line in lines if line.get("id") == message_id(number))
    kept = [line for line in lines if line.get("op") != op]
    hit.history.write_bytes(b"\n".join(map(orjson.dumps, kept)) + b"\n")


def _ok(f: str, **fields: Any) -> dict[str, Any]:
    return {"type": "ok", "f": f, **fields}


def _place_of(placed: Placed) -> tuple[int, int]:
    return placed.message.queue, placed.queue_offset


TOPIC_T = {"what": "topic", "name": "T"}
COMMITTED = {"topic": TOPIC, "group": "G", "queue": 0}
LOG_KINDS = (
    Kind(
        "a byte of a body",
        "bytes",
        lambda hit: hit.flip(hit.run.placed(3).position + 90),
        "damage",
        at(3),
    ),
    Kind(
        "a record's head is zeros",
        "bytes",
        lambda hit: hit.log(hit.run.placed(20).position, bytes(60)),
        "damage",
        at(20),
    ),
    Kind(
        "a letter of a property",
        "bytes",
        lambda hit: _letter(hit, 40),
        "damage",
        within(40),
    ),
    Kind(
        "a byte of a frame's header",
        "bytes",
        lambda hit: hit.flip(frame(hit, 60) + 20),
        "damage",
        within(60),
    ),
    Kind(
        "a byte of a command",
        "bytes",
        lambda hit: hit.flip(_command(hit.run) + 70),
        "damage",
        lambda run: f"'position': {_command(run)}",
    ),
    Kind(
        "garbage over several records",
        "bytes",
        lambda hit: hit.log(hit.run.placed(86).position, b"\xda\xa3\x20\xa7 garbage " * 25),
        "damage",
        at(86),
    ),
    Kind(
        "a segment's blank record",
        "blank",
        _blank,
        "damage",
        lambda run: f"'position': {_blank_at(run)}",
    ),
    Kind(
        "a frame's term falls",
        "frames",
        lambda hit: hit.reseal(frame(hit, 130), {16: struct.pack(">q", 1)}),
        "frame_sequence",
        within(130),
    ),
    Kind(
        "a frame's term rises",
        "frames",
        lambda hit: hit.reseal(frame(hit, 100), {16: struct.pack(">q", 9)}),
        "frame_sequence",
        within(100),
    ),
    Kind(
        "a frame's index jumps",
        "frames",
        lambda hit: hit.reseal(frame(hit, 60), {8: struct.pack(">q", 9_000)}),
        "frame_sequence",
        within(60),
    ),
    Kind(
        "a frame says that it has more records",
        "frames",
        lambda hit: hit.reseal(frame(hit, 20), {44: struct.pack(">i", 8)}),
        "frame_records",
        within(20),
    ),
    Kind(
        "another command, with right checksums",
        "frames",
        # The last one: what a command did is not to be told where a later one did it again.
        lambda hit: hit.reseal(_commands(hit.run)[-1], {60: OFFSETS.replace(b",5]", b",4]")}),
        "replicas",
        all="tables",
        names=False,
    ),
    Kind(
        "another body, with right checksums",
        "messages",
        lambda hit: _other_body(hit, 33),
        "replicas",
        two="altered",
        directory=lambda run: message_id(33),
    ),
    Kind(
        "another key, with right checksums",
        "messages",
        lambda hit: hit.reseal(frame(hit, 77), _property(hit, 77)),
        "replicas",
        two="altered",
        directory=lambda run: message_id(77),
    ),
    Kind(
        "another born time, with right checksums",
        "messages",
        lambda hit: hit.reseal(frame(hit, 100), _born(hit, 100)),
        "replicas",
        two="altered",
        directory=lambda run: message_id(100),
    ),
    Kind(
        "a delayed message that came, under another id",
        "waited",
        lambda hit: _other_id(hit, DELAYED, "Other"),
        "replicas",
        two="due_missing",
        directory=said(DELAYED),
        names=False,
    ),
    Kind(
        "a half message, under another id",
        "waited",
        lambda hit: _other_id(hit, DECIDED, "RMQ_SYS_TRANS_HALF_TOPIC"),
        "replicas",
        two="committed_unprepared",
        directory=said(DECIDED),
        names=False,
    ),
    Kind(
        "a store time that falls by an hour",
        "messages",
        lambda hit: _stored_before(hit, 120),
        "times_fall",
        at(120),
    ),
    Kind(
        "a body that nobody can unpack",
        "messages",
        lambda hit: _packed(hit, 110),
        "replicas",
        two="unpackable",
        directory=at(110),
    ),
    Kind(
        "a delayed message that came twice",
        "messages",
        _came_again,
        "replicas",
        two="due_twice",
        directory=said(DELAYED),
        names=False,
    ),
    Kind(
        "an offset of a queue that never was",
        "waited",
        lambda hit: hit.reseal(
            _commands(hit.run)[-1], {60: OFFSETS.replace(TOPIC.encode(), TOPIC.upper().encode())}
        ),
        "replicas",
        two="group_offsets",
        directory=said(f"'topic': '{TOPIC.upper()}'"),
        names=False,
    ),
    Kind("the log stops too early", "tail", _cut_tail, "damage"),
    Kind(
        "the first segment",
        "whole segment",
        lambda hit: hit.remove(f"commitlog/{0:020d}"),
        "removed_early",
        said(f"'position': {SEGMENT_SIZE_BYTES}"),
    ),
    Kind("a segment in the middle", "segment", _middle_segment, "segments"),
    Kind("a store", "store", _store_gone, "absent_stores"),
)
QUEUE_KINDS = (
    Kind(
        "a unit points behind the log",
        "beside one",
        lambda hit: hit.unit(0, 0, struct.pack(">q", hit.run.log.end + 5_000)),
        "queue_index",
        said("points at no record"),
    ),
    Kind(
        "a unit's size",
        "beside one",
        lambda hit: hit.unit(4, 8, struct.pack(">i", 7)),
        "queue_index",
        at(4),
    ),
    Kind(
        "a unit's tags code",
        "beside one",
        lambda hit: hit.unit(8, 12, struct.pack(">q", 1)),
        "queue_index",
        at(8),
    ),
    Kind(
        "a unit of another offset",
        "beside one",
        lambda hit: hit.unit(9, 0, UNIT.pack(*_unit(hit, 12))),
        "queue_index",
        at(12),
    ),
    Kind(
        "a unit of another queue",
        "beside one",
        lambda hit: hit.unit(13, 0, UNIT.pack(*_unit(hit, 14))),
        "queue_index",
        at(14),
    ),
    Kind("no unit", "beside one", lambda hit: hit.unit(17, 0, bytes(20)), "not_indexed", at(17)),
    Kind(
        "garbage in a %LMQ% queue",
        "beside two",
        _garbage_units,
        "multi_queue",
        said("'position': 77"),
    ),
    Kind(
        "a ConsumeQueue file",
        "beside two",
        lambda hit: hit.remove(f"consumequeue/{TOPIC}/2/{0:020d}"),
        "not_indexed",
        at(2),
    ),
)


def _unit(hit: Hit, number: int) -> tuple[int, int, int]:
    placed = hit.run.placed(number)
    return placed.position, placed.size, java_hash("AA")


INDEX_KINDS = (
    Kind(
        "an entry's hash",
        "beside one",
        lambda hit: hit.entry(11, 0, struct.pack(">i", 12_345)),
        "index",
        said("'entry': 11,"),
    ),
    Kind(
        "an entry's position",
        "beside four",
        lambda hit: hit.entry(21, 4, struct.pack(">q", hit.run.log.end + 100)),
        "index",
        said("'entry': 21,"),
    ),
    Kind(
        "an entry's store time",
        "beside one",
        lambda hit: hit.entry(31, 12, struct.pack(">i", 77)),
        "index",
        said("'entry': 31,"),
    ),
    Kind(
        "an entry that leads elsewhere",
        "beside one",
        lambda hit: hit.entry(41, 16, struct.pack(">i", 40)),
        "index",
        said("'entry': 41,"),
    ),
    Kind(
        "a slot",
        "beside one",
        lambda hit: hit.patch(f"index/{INDEX_NAME}", 40 + 4 * _first_slot(hit), bytes(4)),
        "index",
        said("is not reached from its slot"),
    ),
    Kind("a message without an entry", "beside three", _fewer_entries, "index", at(70)),
    Kind(
        "an IndexFile's header",
        "beside two",
        lambda hit: hit.patch(f"index/{INDEX_NAME}", 16, b"\x7f"),
        "index",
        said("the header is damaged"),
    ),
)
TABLE_KINDS = (
    Kind(
        "a byte of a table",
        "beside one",
        lambda hit: hit.patch("config/topics.json", 30, b"\x00"),
        "tables",
        said("config/topics.json'"),
    ),
    Kind(
        "a byte of a table's backup",
        "beside one",
        lambda hit: hit.patch("config/subscriptionGroup.json.bak", 10, b"~"),
        "tables",
        said("config/subscriptionGroup.json.bak"),
    ),
    Kind(
        "an offset, with the right checksum",
        "beside one",
        lambda hit: hit.table("consumerOffset.json", offsetTable={f"{TOPIC}@G": {"0": 4, "1": 7}}),
        "tables",
        said(f"{TOPIC}@G.0 is 4, by the log 5"),
    ),
    Kind(
        "a table that is not there",
        "beside one",
        lambda hit: hit.remove("config/delayOffset.json"),
        "tables",
        said("config/delayOffset.json"),
    ),
    Kind(
        "a table of frames to come",
        "beside one",
        lambda hit: hit.table("sentOnce.json", raftAppliedIndex=9_000),
        "tables",
        said("reflects frame 9000"),
    ),
)
RAFT_KINDS = (
    Kind(
        "term and vote are not there",
        "beside two",
        lambda hit: hit.remove("raft/hardstate"),
        "raft_files",
        said("raft/hardstate"),
    ),
    Kind(
        "both copies of term and vote",
        "beside three",
        _bad_slots,
        "raft_files",
        said("raft/hardstate"),
    ),
    Kind("a lower term", "beside one", _lower_term, "raft_files", said(f"term {TERM - 1}, and")),
    Kind("one of two copies", "beside four", _torn_slot, "raft_files", said("raft/group:4096")),
    Kind("other members", "beside one", _other_members, "raft_files", said("raft/configuration")),
    Kind(
        "members of no such frame", "beside five", _no_such_frame, "raft_files", said("of frame 9")
    ),
    Kind("another group's id", "beside one", _other_group, "raft_files", said("raft/group")),
)
CHECKPOINT_KINDS = (
    Kind(
        "a commit position behind the log",
        "beside five",
        lambda hit: hit.patch("checkpoint", 32, struct.pack(">q", hit.run.log.end + 1_000)),
        "commit",
    ),
)
HISTORY_KINDS = (
    Kind("a message that nobody sent", "beside one", lambda hit: _unsent(hit, 6), "phantom",
         said(message_id(6))),
    Kind("told another offset", "beside one",
         lambda hit: _sent(hit, 12, end_offset=17), "misplaced", said(message_id(12))),
    Kind("told another message id", "beside one",
         lambda hit: _sent(hit, 13, end_msg_id="7F00000100002A9F" + "0" * 13 + "400"), "misplaced",
         said(message_id(13))),
    Kind("failed for certain, and stored", "beside one",
         lambda hit: _sent(hit, 15, end_type="fail"), "failed_stored", said(message_id(15))),
    Kind("another body was sent", "beside one", lambda hit: _sent(hit, 18, invoke_crc=1), "altered",
         said(message_id(18))),
    Kind("acknowledged, and nowhere", "beside one",
         _history({"type": "invoke", "f": "send", "op": 9_999, "id": "9" * 32, "topic": TOPIC,
                   "order": "", "seq": 0},
                  _ok("send", op=9_999, queue=0, offset=3, attempts=1)), "missing", said("9" * 32)),
    Kind("two outcomes", "beside one",
         _history(_ok("send", op=1, queue=0, offset=0, attempts=1)), "history_operations"),
    Kind("an order key turned round", "beside two",
         lambda hit: _sent(hit, 9, invoke_seq=0), "order", said(message_id(9)), names=False),
    Kind("consumed, and not stored", "beside three",
         _history(_ok("consume", topic=TOPIC, queue=0, offsets=[500], ids=["8" * 32])),
         "consumed_not_stored", said("'offset': 500")),
    Kind("not consumed when all was", "beside three",
         _history(_ok("consume", topic=TOPIC, queue=0, offsets=[0], ids=[message_id(0)]),
                  _ok("drain", topic=TOPIC, group="G", complete=True)), "not_consumed"),
    Kind("an offset behind the end", "beside three",
         _history(_ok("commit", **COMMITTED, offset=9_000)), "committed_beyond", said("9000")),
    Kind("an offset that went back", "beside three",
         _history(_ok("commit", **COMMITTED, offset=9), _ok("fetch", **COMMITTED, offset=3)),
         "linearizable_consumer_offsets", said(f"{TOPIC}-0")),
    Kind("a commit below the one before", "beside three",
         _history(_ok("commit", **COMMITTED, offset=9), _ok("commit", **COMMITTED, offset=2)),
         "consumer_offsets_going_back"),
    Kind("a topic that went back", "beside three",
         _history({"type": "invoke", "f": "meta_write", "op": 9_998, **TOPIC_T, "version": 4},
                  _ok("meta_write", op=9_998, **TOPIC_T, version=4),
                  {"type": "invoke", "f": "meta_read", "op": 9_997, **TOPIC_T},
                  _ok("meta_read", op=9_997, **TOPIC_T, version=3)), "linearizable_metadata",
         said("topic T")),
    Kind("two leaders of a term", "beside three",
         _history(_ok("leader", node="n0", group="g", term=7),
                  _ok("leader", node="n1", group="g", term=7)), "two_leaders_in_one_term",
         said("term 7: n0, n1")),
    Kind("a traceback in a log", "beside three",
         _history(_ok("log_line", node="n1", line="Traceback (most recent call last)", level="e")),
         "failures_in_server_logs", said("Traceback")),
)  # fmt: skip
STORE_KINDS = (
    *LOG_KINDS,
    *QUEUE_KINDS,
    *INDEX_KINDS,
    *TABLE_KINDS,
    *RAFT_KINDS,
    *CHECKPOINT_KINDS,
)
