"""Walking segments: every item once however the segment is cut, damage reported once and whole."""

import random
import struct

import numpy as np
import pytest

from raftmq.audit.read.log_scanner import Walk, shape_holds, shapes_hold, walk_range
from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind
from tests.audit.stores import Log, Message


def sample(framed: bool = True) -> Log:
    """Three segments of records, frames of other kinds, blanks with garbage behind them."""
    log = Log(8192, framed)
    for i in range(40):
        messages = [Message(f"{i:031d}{j}", b"b" * (37 * j + i), queue=j) for j in range(3)]
        log.frame(1 + i // 15, messages)
        if framed and i % 4 == 0:
            log.other(1 + i // 15, FrameKind.COMMAND, b"\xda\xa3\x20\xa7" * (i + 1))
    assert len(log.segments) >= 3
    return log


def walked(log: Log, base: int, step: int | None = None) -> Walk:
    data = memoryview(bytes(log.segments[base]))
    step = step or len(data)
    total = Walk()
    for start in range(0, len(data), step):
        part = walk_range(data, base, start, min(start + step, len(data)))
        total.records += part.records
        total.frames += part.frames
        total.gaps += part.gaps
    return total


@pytest.mark.parametrize("framed", [True, False])
def test_log_walk_finds_every_record_and_frame(framed: bool) -> None:
    log = sample(framed)
    records, frames = [], []
    for base in log.segments:
        walk = walked(log, base)
        records += [base + at for at in walk.records]
        frames += [(base + f.at, f.index) for f in walk.frames]
        last = walk.gaps[-1]
        assert [g.kind for g in walk.gaps] == [
            ItemKind.END if base == max(log.segments) else ItemKind.BLANK
        ]
        assert last.at + last.size_bytes == log.segment_size_bytes
    assert records == [p.position for p in log.placed]
    assert [at for at, _ in frames] == [at for at, _ in log.frames]
    assert [index for _, index in frames] == list(range(1, len(frames) + 1))


@pytest.mark.parametrize("step", [1, 7, 61, 100, 1000, 8191])
def test_log_walk_is_equal_for_any_split(step: int) -> None:
    log = sample()
    for base in log.segments:
        assert walked(log, base, step) == walked(log, base)


def test_old_records_after_a_blank_are_not_items() -> None:
    """A roll after a truncation leaves valid old records, at their own positions, in the tail."""
    log = Log(8192, framed=False)
    log.frame(1, [Message(f"{i:032d}", b"old", queue=i) for i in range(20)])
    third = log.placed[2].position
    left = 8192 - third
    log.patch(third, struct.pack(">iI", left, 0xCBD43194))
    for step in (500, 8192):
        walk = walked(log, 0, step)
        assert walk.records == [p.position for p in log.placed[:2]]
        assert [(g.kind, g.at, g.size_bytes) for g in walk.gaps] == [(ItemKind.BLANK, third, left)]


def test_blank_pattern_in_a_body_hides_no_record() -> None:
    log = Log(8192, framed=False)
    body = struct.pack(">iI", 8, 0xCBD43194)
    log.frame(1, [Message(f"{i:032d}", body, queue=i) for i in range(4)])
    for step in (64, 8192):
        assert walked(log, 0, step).records == [p.position for p in log.placed]


def test_record_nested_in_a_body_is_not_an_item() -> None:
    inner = Log(8192, framed=False)
    inner.frame(1, [Message("A" * 32, b"inner")] * 3)
    log = Log(8192, framed=False)
    log.frame(1, [Message("B" * 32, bytes(inner.segments[0][: inner.end])), Message("C" * 32, b"")])
    for step in (1, 64, 8192):
        assert walked(log, 0, step).records == [p.position for p in log.placed]


DAMAGE = {
    "record magic": (4, b"\0\0\0\0", "no item"),
    "record size": (0, b"\0\0\1\1", "do not add up"),
    "record position": (28, b"\7" * 8, "record for position"),
    "record body length": (84, b"\0\0\7\7", "do not add up"),
    "zeros": (0, bytes(88), "zeros"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("step", [50, 333, 8192])
def test_log_walk_reports_damage_as_a_hole_and_continues(kind: str, step: int) -> None:
    log = sample(framed=False)
    victim = log.placed[4]
    at, data, reason = DAMAGE[kind]
    if kind == "zeros":
        data = bytes(victim.size)
    log.patch(victim.position + at, data)
    walk = walked(log, 0, step)
    assert [p.position for p in log.placed if p.position < 8192 and p is not victim] == walk.records
    hole = walk.gaps[0]
    assert (hole.kind, hole.at, hole.size_bytes) == (ItemKind.HOLE, victim.position, victim.size)
    assert reason in hole.reason
    assert [g.kind for g in walk.gaps[1:]] == [ItemKind.BLANK]


@pytest.mark.parametrize("step", [50, 8192])
def test_damaged_frame_header_loses_only_the_header(step: int) -> None:
    log = sample()
    position, _ = log.frames[2]
    log.flip(position + 10)
    walk = walked(log, 0, step)
    assert [(g.at, g.size_bytes, g.reason) for g in walk.gaps if g.kind is ItemKind.HOLE] == [
        (position, 60, "frame header CRC does not match")
    ]
    assert walk.records == [p.position for p in log.placed if p.position < 8192]


def test_damaged_first_item_and_an_empty_segment() -> None:
    log = sample()
    log.flip(1)
    assert (walked(log, 0).gaps[0].kind, walked(log, 0).gaps[0].at) == (ItemKind.HOLE, 0)
    empty = walk_range(memoryview(bytes(5000)), 0, 0, 5000)
    assert [(g.kind, g.at, g.size_bytes) for g in empty.gaps] == [(ItemKind.END, 0, 5000)]
    tiny = walk_range(memoryview(bytes(3)), 0, 0, 3)
    assert [(g.kind, g.size_bytes) for g in tiny.gaps] == [(ItemKind.END, 3)]


def test_log_truncated_at_every_byte_is_walked() -> None:
    log = Log(8192)
    log.frame(1, [Message("D" * 32, b"some body", queue=1), Message("E" * 32, b"x")])
    log.other(1, FrameKind.COMMAND, b"abc")
    full = bytes(log.segments[0][: log.end])
    second = log.placed[1].position
    for size in range(1, len(full)):
        walk = walk_range(memoryview(full[:size]), 0, 0, size)
        complete = [p.position for p in log.placed if p.position + p.size <= size]
        result = [at for at in walk.records if at in complete]
        assert result == walk.records
        if size > second:
            # The frame's payload is cut: its header vouches for nothing, but whole records count.
            assert walk.records[:1] == [log.placed[0].position]


@pytest.mark.parametrize("seed", range(100))
def test_vectorized_shape_check_equals_the_single_one(seed: int) -> None:
    rng, log = random.Random(seed), sample(framed=bool(seed % 2))
    base = sorted(log.segments)[seed % 3]
    data = bytearray(log.segments[base])
    starts = [p.position - base for p in log.placed if base <= p.position < base + len(data)]
    assert starts
    for at in rng.sample(starts, min(len(starts), 6)):
        # Sizes are at least a record's, as the walk has seen to; all else may be anything.
        where = rng.choice((8, 36, 84, 86, 88 + rng.randrange(60)))
        data[at + where : at + where + 2] = rng.randbytes(2)
        if rng.random() < 0.3:
            data[at : at + 4] = rng.choice((91, 200, 9_000)).to_bytes(4, "big")
    del data[len(data) - rng.randrange(100) :]
    view = memoryview(bytes(data))
    for at in starts:
        if at + 91 <= len(view):
            size, magic = struct.unpack_from(">ii", view, at)
            one = shape_holds(view, at, size, magic)
            assert shapes_hold(view, np.array([at])).tolist() == [one]
