"""A small writer of stores and histories, so that every kind of damage can be planted.

Written by hand from the formats rather than with the project's CommitLog: what is audited here is
never what a running store would have written by itself.
"""

import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from google_crc32c import value as crc32c

from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.properties import encode_properties, fields_sum, tags_code
from raftmq.store.record import MessageRecord, encode_record, offset_message_id

SEGMENT_SIZE_BYTES = 16 * 1024
HOST = ("127.0.0.1", 10911)
BLANK = struct.Struct(">iI")
UNIT = struct.Struct(">qiq")
BORN_MS = 1_700_000_000_000  # all messages
GARBAGE = b"\xda\xa3\x20\xa7 stale "  # stands behind blank records, where anything may stand


@dataclass
class Message:
    """A message to be stored; `queue_offset` None: the next of its queue."""

    id: str
    body: bytes
    topic: str = "Flights"
    queue: int = 0
    tag: str = "AA"
    order: str = ""
    queue_offset: int | None = None
    sys_flag: int = 0
    indexed: bool = True
    store_ms: int = 1_700_000_000_001
    times: int = 0  # given back
    more: dict[str, str] = field(default_factory=dict)  # properties
    due_ms: int | None = None  # where it waits: what its unit says instead of a tags code


@dataclass
class Placed:
    """Where a message came to stand."""

    message: Message
    position: int
    size: int
    queue_offset: int


@dataclass
class Log:
    """A CommitLog in memory with the units of its ConsumeQueues."""

    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    framed: bool = True
    segments: dict[int, bytearray] = field(default_factory=dict)
    end: int = 0
    index: int = 0
    placed: list[Placed] = field(default_factory=list)
    frames: list[tuple[int, int]] = field(default_factory=list)  # (position, size)
    next_offsets: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def frame(
        self, term: int, messages: list[Message], index: int | None = None, command: bytes = b""
    ) -> None:
        """Append one frame of messages behind a command (without frames: the bare records)."""
        size = sum(len(self._encode(m, 0, 0)) for m in messages) + (60 if self.framed else 0)
        at = self._place(size + len(command))
        payload = command
        for message in messages:
            position = at + (60 if self.framed else 0) + len(payload)
            key = (message.topic, message.queue)
            offset = message.queue_offset
            if offset is None:
                offset = self.next_offsets[key]
            if message.sys_flag & 0xC in (0, 8):
                self.next_offsets[key] = offset + 1
            data = self._encode(message, offset, position)
            self.placed.append(Placed(message, position, len(data), offset))
            payload += data
        if self.framed:
            kind = FrameKind.MESSAGES
            self._seal(term, at, kind, payload, len(messages), index, len(command))
        else:
            self._write(at, payload)

    def other(self, term: int, kind: int, payload: bytes = b"", index: int | None = None) -> None:
        """Append a frame that holds no messages."""
        self._seal(term, self._place(60 + len(payload)), kind, payload, 0, index)

    def patch(self, position: int, data: bytes) -> None:
        """Overwrite bytes of the log, as damage does."""
        base = position - position % self.segment_size_bytes
        self.segments[base][position - base : position - base + len(data)] = data

    def byte(self, position: int) -> int:
        base = position - position % self.segment_size_bytes
        return self.segments[base][position - base]

    def flip(self, position: int) -> None:
        """Invert one byte."""
        self.patch(position, bytes([self.byte(position) ^ 0xFF]))

    def copy(self) -> "Log":
        """The same log, whose bytes can be damaged alone."""
        log = Log(self.segment_size_bytes, self.framed)
        log.segments = {base: bytearray(data) for base, data in self.segments.items()}
        log.end, log.index = self.end, self.index
        log.placed, log.frames = list(self.placed), list(self.frames)
        log.next_offsets = defaultdict(int, self.next_offsets)
        return log

    def until(self, frames: int) -> "Log":
        """The log of a replica that has only so many frames."""
        log = self.copy()
        log.frames, log.index = self.frames[:frames], self.index - len(self.frames[frames:])
        log.end = sum(log.frames[-1])
        log.placed = [placed for placed in self.placed if placed.position < log.end]
        for base, data in self.segments.items():
            if base >= log.end:
                del log.segments[base]
            else:
                kept = data[: log.end - base]
                log.segments[base] = bytearray(kept.ljust(len(data), b"\0"))
        return log

    def _seal(
        self,
        term: int,
        at: int,
        kind: int,
        payload: bytes,
        count: int,
        index: int | None,
        command_length: int = 0,
    ) -> None:
        self.index = self.index + 1 if index is None else index
        stamp_ms = 1_700_000_000_000
        data = seal_frame(self.index, term, at, stamp_ms, kind, count, payload, command_length).data
        self.frames.append((at, len(data)))
        self._write(at, data)

    def _place(self, size: int) -> int:
        base = self.end - self.end % self.segment_size_bytes
        left = base + self.segment_size_bytes - self.end
        if self.end in self.segments or base in self.segments:
            if size + 8 > left:
                garbage = (GARBAGE * (left // len(GARBAGE) + 1))[: left - 8]
                self._write(self.end, BLANK.pack(left, 0xCBD43194) + garbage)
                self.end = base + self.segment_size_bytes
        return self.end

    def _write(self, at: int, data: bytes) -> None:
        base = at - at % self.segment_size_bytes
        segment = self.segments.setdefault(base, bytearray(self.segment_size_bytes))
        segment[at - base : at - base + len(data)] = data
        assert len(segment) == self.segment_size_bytes
        self.end = at + len(data)

    @staticmethod
    def _encode(message: Message, queue_offset: int, position: int) -> bytes:
        return encode_record(
            MessageRecord(
                topic=message.topic,
                body=message.body,
                properties=encode_properties(properties_of(message)),
                queue_id=message.queue,
                flag=0,
                queue_offset=queue_offset,
                physical_offset=position,
                sys_flag=message.sys_flag,
                born_timestamp_ms=BORN_MS,
                born_host=("127.0.0.1", 50000),
                store_timestamp_ms=message.store_ms,
                store_host=HOST,
                reconsume_times=message.times,
                prepared_transaction_offset=0,
            )
        )


def unit_bytes(placed: Placed) -> bytes:
    """The ConsumeQueue unit of a stored message."""
    due_ms = placed.message.due_ms
    code = tags_code(placed.message.tag) if due_ms is None else due_ms
    return UNIT.pack(placed.position, placed.size, code)


def write_store(
    directory: Path,
    log: Log,
    commit: int | None = None,
    units: dict[tuple[str, int], bytes] | None = None,
) -> Path:
    """Write a store directory; `commit` None: everything is committed. `units` replaces those."""
    (directory / "commitlog").mkdir(parents=True)
    for base, data in log.segments.items():
        (directory / "commitlog" / f"{base:020d}").write_bytes(data)
    for (topic, queue), content in (queue_units(log) if units is None else units).items():
        folder = directory / "consumequeue" / topic / str(queue)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(content.ljust(515 * 20, b"\0"))
    stamp = 1_700_000_000_001
    confirmed = log.end if commit is None else commit
    head = struct.pack(">qqqqq", stamp, stamp, 0, confirmed, confirmed)
    (directory / "checkpoint").write_bytes(head.ljust(4096, b"\0"))
    return directory


def note_time(store: Path, own_ms: int) -> None:
    """Note the log's own time when the store was last open, as a broker does."""
    times = struct.pack(">qq", own_ms, 0)
    path = store / "checkpoint"
    data = path.read_bytes()
    noted = times + struct.pack(">4sI", b"RMQT", crc32c(times))
    path.write_bytes(data[:64] + noted + data[64 + len(noted) :])


def properties_of(message: Message) -> dict[str, str]:
    """The properties that a message is stored with."""
    properties = {"UNIQ_KEY": message.id, "KEYS": f"k{message.id[-4:]}", **message.more}
    if message.tag:
        properties["TAGS"] = message.tag
    if message.order:
        properties["__SHARDINGKEY"] = message.order
    return properties


def queue_units(log: Log) -> dict[tuple[str, int], bytes]:
    """The ConsumeQueues that belong to a log, by topic and queue."""
    queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
    for placed in log.placed:
        if placed.message.sys_flag & 0xC in (0, 8) and placed.message.indexed:
            content = queues[placed.message.topic, placed.message.queue]
            content[placed.queue_offset * 20 : placed.queue_offset * 20 + 20] = unit_bytes(placed)
    return {key: bytes(content) for key, content in queues.items()}


@dataclass
class History:
    """The lines of a history file."""

    events: list[dict[str, Any]] = field(
        default_factory=lambda: [{"type": "meta", "version": 1, "wall_ms": 0, "t_ns": 0}]
    )
    op: int = 0

    def invoke(
        self,
        message: Message,
        seq: int = 0,
        body: bytes | None = None,
        fields: tuple[int, dict[str, str]] | None = None,
    ) -> int:
        """A send begins; `body`, and `fields` (flag and properties), are what was sent if it is not
        what is stored."""
        self.op += 1
        flag, properties = fields or (0, properties_of(message))
        crc = crc32(message.body if body is None else body) & 0x7FFFFFFF
        self._add(
            "invoke",
            "send",
            id=message.id,
            topic=message.topic,
            key="",
            order=message.order,
            seq=seq,
            crc=crc,
            fields=fields_sum(flag, properties),
            born=BORN_MS,
        )
        return self.op

    def ok(self, op: int, placed: Placed, attempts: int = 1, **changed: Any) -> None:
        fields = {
            "queue": placed.message.queue,
            "offset": placed.queue_offset,
            "msg_id": offset_message_id(HOST, placed.position),
            "attempts": attempts,
        }
        self._add("ok", "send", op, **(fields | changed))

    def lost(self, op: int, outcome: str, attempts: int = 1) -> None:
        """A send ends as 'fail' or 'unknown'."""
        self._add(outcome, "send", op, error="planted", attempts=attempts)

    def consume(self, queue: int, offsets: list[int], ids: list[str], topic: str) -> None:
        self.op += 1
        self._add("ok", "consume", topic=topic, queue=queue, offsets=offsets, ids=ids)

    def commit(self, queue: int, offset: int, topic: str) -> None:
        self.op += 1
        self._add("ok", "commit", topic=topic, group="G", queue=queue, offset=offset)

    def drain(self, complete: bool, topic: str) -> None:
        self.op += 1
        self._add("ok", "drain", topic=topic, group="G", complete=complete)

    def event(self, kind: str, function: str, op: int | None = None, /, **fields: Any) -> int:
        """Any other event; without `op` an operation of its own. Returns its operation."""
        if op is None:
            self.op += 1
            op = self.op
        self._add(kind, function, op, **fields)
        return op

    def write(self, path: Path) -> Path:
        end = {"type": "ok", "f": "end", "op": self.op + 1, "t_ns": 1 << 60, "p": "runner"}
        path.write_text("".join(json.dumps(event) + "\n" for event in (*self.events, end)))
        return path

    def _add(self, kind: str, function: str, op: int | None = None, /, **fields: Any) -> None:
        event = {"type": kind, "f": function, "op": self.op if op is None else op}
        event["t_ns"] = len(self.events)
        self.events.append(event | {"p": "producer-0"} | fields)
