"""Dispatch of stored records to ConsumeQueues, as entries made in a single pass per batch.

An entry is 20 bytes: int64 CommitLog offset, int32 record size, int64 tags code. The tags code is
the sign-extended hash of TAGS. For a message in SCHEDULE_TOPIC_XXXX it is the delivery time in ms,
for a message in rmq_sys_wheel_timer it is `timer_code`. Records of transaction types none and
commit get an entry; prepared and rolled-back records do not. (Half messages are stored with their
transaction bits cleared, so the half topic has entries.)

This loop runs for every message of a frame without entries (store.frame_entries). It reads a fixed
head per record, finds TAGS with a single search and caches tag hashes. It trusts the bytes, because
CRCs verified the frames, and `check_record` the records. It does check that sizes add up and queue
offsets are consecutive, which would silently make wrong entries. Measured with 128-byte bodies and
four properties: 0.9 us per record, 1.3 us if every record ends differently. Pure, without I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from .frame import Frame
from .properties import TAGS, decode_properties, tags_code
from .record import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    hosts_extra,
    store_timestamp_at,
)

QUEUE_ENTRY = struct.Struct(">qiq")
QUEUE_ENTRY_BYTES = QUEUE_ENTRY.size
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_OUT_MS = "TIMER_OUT_MS"  # the slot of a timer message
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"  # of a message that recalls a timer message
DELAY_LEVELS_MS = tuple(
    1000 * s
    for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)

# TOTALSIZE, MAGIC, QUEUEID, QUEUEOFFSET, SYSFLAG, BODYLEN of a record with IPv4 hosts
_HEAD = struct.Struct(">ii4xi4xq8xi44xi")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_UNUSUAL = 0x30 | SYS_TRANSACTION_MASK  # an IPv6 host, or a transaction type except none
_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_TAGS_MARK = TAGS.encode() + b"\x01"
_TAGS_CACHE_MAX = 16_384  # entries; then the cache is cleared, since real tags are few

assert QUEUE_ENTRY_BYTES == 20
assert _HEAD.size == 88


class QueueEntries(NamedTuple):
    """Consecutive entries of a queue, from `first_queue_offset` (an EntryBatch)."""

    topic: str
    queue_id: int
    first_queue_offset: int
    entries: bytes


class DispatchError(AssertionError):
    """The records are contradictory, by a bug or damage, and must not be indexed. `position` is the
    CommitLog offset of the wrong record."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} at {position}")
        self.position = position
        self.reason = reason


class QueueRestarted(DispatchError):
    """A queue's next record has queue offset 0. In a classic log of Apache's broker its topic was
    deleted and created again. `at` is the record's offset in the data."""

    def __init__(self, position: int, reason: str, at: int) -> None:
        super().__init__(position, reason)
        self.at = at


class Dispatcher:
    """Makes ConsumeQueue entries from records, with the delay table and the tag cache."""

    def __init__(self, delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._codes: dict[bytes, int] = {}

    def index_frame(self, frame: Frame) -> list[QueueEntries]:
        """Return the entries of a message frame's records. Raises DispatchError."""
        at = frame.records_at
        return self.index(frame.data, frame.position + at, at)

    def index(
        self, data: bytes, base_offset: int, start: int = 0, end: int | None = None
    ) -> list[QueueEntries]:
        """Return the entries of the records in data[start:end], by queue in order of appearance.
        `base_offset` is the CommitLog offset of data[start]. Raises DispatchError."""
        end = len(data) if end is None else end
        try:
            return self._index(data, base_offset - start, start, end)
        except (IndexError, struct.error) as error:
            raise DispatchError(base_offset, "a record is cut short behind") from error

    def _index(self, data: bytes, shift: int, start: int, end: int) -> list[QueueEntries]:
        """Run the loop of `index`; CommitLog offset = offset in data + shift."""
        head, pack, rfind, find = _HEAD.unpack_from, QUEUE_ENTRY.pack, data.rfind, data.find
        same_ending, known_codes = data.endswith, self._codes.get
        # Compare before searching, because a producer's records usually end alike from TAGS on.
        ending, ending_code = b"\x02never", 0
        groups: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
        # The next record expected in the run, because a queue's records are usually adjacent.
        run_topic, run_queue, run_next = b"", -1, 0
        entries: list[bytes] = []
        offset = start
        while offset < end:
            if offset + 88 > end:
                raise DispatchError(offset + shift, f"{end - offset} bytes left")
            size, magic, queue_id, queue_offset, sys_flag, body_length = head(data, offset)
            at = offset + 88 + body_length
            if magic != MAGIC_V1 or sys_flag & _UNUSUAL:
                if sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_TRANSACTION_COMMIT):
                    offset = _skip(size, magic, offset, shift, end)
                    continue
                topic_start, topic_length = _unusual_topic(data, offset, magic, sys_flag, shift)
            else:
                topic_start, topic_length = at + 1, data[at]
            next_offset = offset + size
            at = topic_start + topic_length
            if not at + 2 <= next_offset <= end or size < 91:
                raise DispatchError(offset + shift, f"record that does not fit its size {size}")
            topic = data[topic_start:at]
            if topic == _SCHEDULE:
                code = self._deliver_time(data, offset, at + 2, next_offset)
            elif topic == _TIMER:
                code = timer_code(decode_properties(data[at + 2 : next_offset]))
            elif same_ending(ending, at + 2, next_offset):
                code = ending_code
            elif (mark := rfind(_TAGS_MARK, at + 2, next_offset)) < 0:
                code = 0
            elif mark == at + 2 or data[mark - 1] == 2:
                stop = find(b"\x02", mark + 5, next_offset)
                tags = data[mark + 5 : stop if stop >= 0 else next_offset]
                known = known_codes(tags)
                code = self._code(tags, data[at + 2 : next_offset]) if known is None else known
                if tags and mark > at + 2:
                    ending, ending_code = data[mark - 1 : next_offset], code
            else:  # "TAGS" ends the name or is in the value of a different property
                code = _tags_code_of(data[at + 2 : next_offset])
            if topic != run_topic or queue_id != run_queue:
                run_topic, run_queue = topic, queue_id
                first, entries = groups.setdefault((topic, queue_id), (queue_offset, []))
                run_next = first + len(entries)
            if queue_offset != run_next:
                position = offset + shift
                why = f"queue offset {queue_offset} after {run_next - 1} of {topic!r}/{queue_id}"
                if not queue_offset:
                    raise QueueRestarted(position, why, offset)
                raise DispatchError(position, why)
            entries.append(pack(offset + shift, size, code))
            run_next += 1
            offset = next_offset
        return [
            QueueEntries(str(topic, "utf-8"), queue_id, first, b"".join(entries))
            for (topic, queue_id), (first, entries) in groups.items()
        ]

    def _code(self, tags: bytes, properties: bytes) -> int:
        """Hash a new tag. An empty tag is no valid pair, so decode the properties."""
        if not tags:
            return _tags_code_of(properties)
        if len(self._codes) >= _TAGS_CACHE_MAX:
            self._codes.clear()
        code = self._codes[tags] = tags_code(tags)
        return code

    def _deliver_time(self, data: bytes, offset: int, start: int, end: int) -> int:
        """Return the store time plus the level's delay. Without a delay table the delay is a
        second, and a level beyond the table counts as the last. A message without DELAY keeps its
        tag."""
        properties = decode_properties(data[start:end])
        level = properties.get("DELAY")
        if level is None or not level.isdecimal() or int(level) == 0:
            return tags_code(properties.get(TAGS))
        levels = self._delay_levels_ms
        delay_ms = levels[min(int(level), len(levels)) - 1] if levels else 1000
        return store_timestamp_at(data, offset) + delay_ms


def timer_code(properties: Mapping[str, str]) -> int:
    """Return TIMER_OUT_MS; negative if the message is a recall; 0 without a valid time."""
    text = properties.get(TIMER_OUT_MS, "")
    out_ms = int(text) if text.isdecimal() and len(text) < 16 else 0
    return -out_ms if TIMER_DEL_UNIQKEY in properties else out_ms


def _skip(size: int, magic: int, offset: int, shift: int, end: int) -> int:
    if magic not in (MAGIC_V1, MAGIC_V2) or size < 91 or offset + size > end:
        raise DispatchError(offset + shift, "no record")
    return offset + size


def _unusual_topic(
    data: bytes, offset: int, magic: int, sys_flag: int, shift: int
) -> tuple[int, int]:
    """Return (start, length) of a topic, with IPv6 hosts or a two-byte topic length."""
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise DispatchError(offset + shift, f"no record but {magic & 0xFFFFFFFF:#010x}")
    body_start = offset + 88 + hosts_extra(sys_flag)
    if body_start + 2 > len(data):
        raise DispatchError(offset + shift, "record that is cut short")
    topic_length_at = body_start + _INT.unpack_from(data, body_start - 4)[0]
    if not body_start <= topic_length_at <= len(data) - 2:
        raise DispatchError(offset + shift, "record that is cut short")
    if magic == MAGIC_V2:
        return topic_length_at + 2, _SHORT.unpack_from(data, topic_length_at)[0]
    return topic_length_at + 1, data[topic_length_at]


def _tags_code_of(properties: bytes) -> int:
    return tags_code(decode_properties(properties).get(TAGS))
