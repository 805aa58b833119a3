"""Compares the CommitLogs of a group's replicas as files, stopped or running. Blocking.

`compare_replicas` hashes the same log positions in every store and returns the content of a
"replicas" record of the history (`write_replicas` writes it; chaos.checks.replicas judges it). The
comparison runs from the first position that all stores still have, to

- In Raft mode the end of frame `commit_index`, which every node must have committed; without it the
  lowest commit position of the nodes' checkpoints (each may be stale, none is too high);
- in classic mode the end of the last complete record that all nodes hold. A slave is a copy of its
  master's bytes, so nothing below may differ.

The rest of a segment behind a blank record is garbage and is ignored. Store files are found by
RocketMQ's names (DIR/commitlog/<20 digits>, DIR/checkpoint) and are only read.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.store.frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, parse_header
from raftmq.store.record import BLANK_SIZE_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

from ..history.files import HistoryWriter

NAME_DIGITS = 20
CHECKPOINT_CONFIRM_AT = 32  # int64 confirmPhyOffset
RECORD_SIZE_BYTES_MIN = 91
_SIZE_MAGIC = struct.Struct(">ii")
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28


class StoreUnreadable(Exception):
    """The directory is not a store, or its log ends before it should."""


@dataclass(slots=True)
class LogShape:
    """The segments of a store's log, the ends of its items, and the ends of its frames by index."""

    segments: dict[int, Path]
    start: int
    end: int = 0  # of the last whole item
    tails: list[tuple[int, int]] = field(default_factory=list)  # garbage behind blanks
    frame_ends: dict[int, int] = field(default_factory=dict)  # Raft index → frame's end
    framed: bool = False
    term: int = 0  # of the last frame


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison; see chaos.history.events.Replicas."""

    start: int
    end: int
    parts: dict[str, dict[int, str]]
    errors: dict[str, str]


def compare_replicas(stores: Mapping[str, Path], commit_index: int | None = None) -> Comparison:
    """Compare stores (node → store directory). Unreadable stores are reported in `errors`."""
    shapes: dict[str, LogShape] = {}
    errors: dict[str, str] = {}
    for node, directory in stores.items():
        try:
            shapes[node] = shape_of(directory)
        except (StoreUnreadable, OSError) as error:
            errors[node] = str(error)
    if not shapes:
        return Comparison(0, 0, {}, errors)
    start = max(shape.start for shape in shapes.values())
    ends = {}
    for node, shape in shapes.items():
        try:
            ends[node] = _end_of(shape, stores[node], commit_index)
        except StoreUnreadable as error:
            errors[node] = str(error)
    end = min(ends.values(), default=start)
    # A log that ends before its node's commit position is hashed up to its end, and so differs.
    parts = {node: _digests(shape, start, min(end, shape.end)) for node, shape in shapes.items()}
    return Comparison(start, max(start, end), parts, errors)


def write_replicas(
    history: HistoryWriter,
    group: str,
    stores: Mapping[str, Path],
    commit_index: int | None = None,
) -> Comparison:
    result = compare_replicas(stores, commit_index)
    parts = {
        node: {str(position): digest for position, digest in digests.items()}
        for node, digests in result.parts.items()
    }
    history.record(
        "replicas",
        "runner",
        group=group,
        start=result.start,
        end=result.end,
        parts=parts,
        errors=result.errors,
    )
    return result


def shape_of(store: Path) -> LogShape:
    """Walk a store's log. Raises StoreUnreadable, OSError."""
    directory = store / "commitlog"
    if not directory.is_dir():
        raise StoreUnreadable(f"{store} has no commitlog directory")
    segments = {
        int(path.name): path
        for path in sorted(directory.iterdir())
        if len(path.name) == NAME_DIGITS and path.name.isdigit() and path.stat().st_size
    }
    if not segments:
        raise StoreUnreadable(f"{store} has no CommitLog segment")
    shape = LogShape(segments, min(segments))
    for base, path in segments.items():
        if base > shape.start and base != shape.end:
            break  # a gap, or the log ended in the segment before
        with path.open("rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _walk(shape, base, data)
    return shape


def _walk(shape: LogShape, base: int, data: mmap.mmap) -> None:
    total = len(data)
    at = 0
    while at + BLANK_SIZE_BYTES <= total:
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic == FRAME_MAGIC:
            length = _frame_length(shape, base, data, at)
            if length is None:
                break
            at += length
        elif magic in (MAGIC_V1, MAGIC_V2):
            if size < RECORD_SIZE_BYTES_MIN or at + size > total:
                break
            if _PHYSICAL_OFFSET.unpack_from(data, at + _PHYSICAL_OFFSET_AT)[0] != base + at:
                break
            at += size
        elif magic == MAGIC_BLANK and size == total - at:
            shape.tails.append((base + at + BLANK_SIZE_BYTES, base + total))
            at = total
        else:
            break
    shape.end = base + at


def _frame_length(shape: LogShape, base: int, data: mmap.mmap, at: int) -> int | None:
    """Return the size of the frame at `at` with its payload, noting it in `shape`; None if none."""
    try:
        fields = parse_header(data[at : at + HEADER_SIZE_BYTES], 0)
    except FrameError:
        return None
    index, term, position, length = fields[2], fields[3], fields[4], fields[6]
    frame_bytes = HEADER_SIZE_BYTES + length
    # A lower term was left over behind a truncation, and is not part of the log.
    if position != base + at or at + frame_bytes > len(data) or term < shape.term:
        return None
    shape.framed, shape.term = True, term
    shape.frame_ends[index] = base + at + frame_bytes
    return int(frame_bytes)


def _end_of(shape: LogShape, store: Path, commit_index: int | None) -> int:
    """Return how far this store's log must be right. Raises StoreUnreadable."""
    if not shape.framed:
        return shape.end
    if commit_index is None:
        confirmed = confirmed_position(store)
        if confirmed > shape.end:
            raise StoreUnreadable(f"committed up to {confirmed}, but the log ends at {shape.end}")
        return confirmed
    end = shape.frame_ends.get(commit_index)
    if end is None:
        raise StoreUnreadable(f"frame {commit_index}, which was committed, is not in the log")
    return end


def confirmed_position(store: Path) -> int:
    """Return confirmPhyOffset of the checkpoint; 0 without any."""
    try:
        content = (store / "checkpoint").read_bytes()
    except FileNotFoundError:
        return 0
    field = content[CHECKPOINT_CONFIRM_AT : CHECKPOINT_CONFIRM_AT + 8]
    if len(field) < 8:
        raise StoreUnreadable(f"{store / 'checkpoint'} is cut short")
    return int.from_bytes(field, "big", signed=True)


def _digests(shape: LogShape, start: int, end: int) -> dict[int, str]:
    """Return SHA-256 of log positions [begin, end) by segment, without garbage."""
    result = {}
    for base, path in sorted(shape.segments.items()):
        with path.open("rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                low, high = max(start, base), min(end, base + len(data))
                for tail_low, tail_high in shape.tails:
                    if tail_low <= high <= tail_high:
                        high = max(low, tail_low)
                if low < high:
                    view = memoryview(data)
                    digest = hashlib.sha256(view[low - base : high - base]).hexdigest()
                    view.release()
                    result[low] = digest
    return result
