"""The HA stream's bytes: vectors, byte by byte, cut anywhere, and everything that is refused."""

import struct
from dataclasses import replace
from itertools import pairwise

import pytest

from raftmq.broker.replication.ha.protocol import (
    HELD_BACK_MAX,
    REPORT,
    TRANSFER_SIZE_MAX,
    HaProtocolError,
    RecordRuns,
    ReportReader,
    Transfer,
    TransferReader,
    transfer,
)
from raftmq.store.record import BLANK, MAGIC_BLANK, SYS_BORN_HOST_V6, encode_record
from tests.store.make import PLAIN

SEGMENT = 1000


def stored(position, body=b"hi", **fields):
    return encode_record(replace(PLAIN, physical_offset=position, body=body, **fields))


def a_log():
    """Three records, a blank record at the segment's end, two records behind it."""
    parts, position = [], 0
    for n in range(3):
        parts.append(stored(position, b"x" * (150 + n), store_timestamp_ms=100 + n))
        position += len(parts[-1])
    rest = SEGMENT - position
    parts.append(BLANK.pack(rest, MAGIC_BLANK) + b"\xaa" * (rest - 8))  # what follows it is copied
    position = SEGMENT
    for n in range(2):
        parts.append(stored(position, b"y" * (20 + n), store_timestamp_ms=200 + n))
        position += len(parts[-1])
    return b"".join(parts), len(parts[0]) + len(parts[1]), rest


def test_ha_protocol_test_vectors():
    assert REPORT.pack(1024).hex() == "0000000000000400"
    assert b"".join(transfer(1024, b"ab")).hex() == "0000000000000400" + "00000002" + "6162"
    assert b"".join(transfer(5, b"")).hex() == "000000000000000500000000"


@pytest.mark.parametrize("size", [1, 3, 8, 11, 1000])
def test_ha_reports_are_read_from_any_pieces(size):
    data = b"".join(REPORT.pack(n) for n in (0, 1 << 40, 7))
    reader, result = ReportReader(), []
    for at in range(0, len(data), size):
        result += reader.feed(data[at : at + size])
    assert result == [0, 1 << 40, 7]


def test_ha_negative_report_is_rejected():
    with pytest.raises(HaProtocolError, match="-1"):
        ReportReader().feed(REPORT.pack(-1))


@pytest.mark.parametrize("size", [1, 5, 12, 13, 1000])
def test_ha_transfers_are_read_from_any_pieces(size):
    data = b"".join(b"".join(transfer(n, bytes(n))) for n in (0, 3, 30))
    reader, result = TransferReader(), []
    for at in range(0, len(data), size):
        result += reader.feed(data[at : at + size])
    assert result == [Transfer(n, bytes(n)) for n in (0, 3, 30)]


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, TRANSFER_SIZE_MAX + 1)])
def test_ha_transfers_out_of_bounds_are_rejected(offset, size):
    with pytest.raises(HaProtocolError):
        TransferReader().feed(struct.pack(">qi", offset, size))


@pytest.mark.parametrize("size", [1, 7, 88, 91, 300, 5000])
def test_record_runs_hold_back_incomplete_records(size):
    log, last, rest = a_log()
    runs, result = RecordRuns(0, SEGMENT), []
    for at in range(0, len(log), size):
        result += runs.feed(log[at : at + size])
        assert runs.received == min(len(log), at + size)
        assert runs.position == sum(len(run.data) for run in result)
    assert b"".join(run.data for run in result) == log
    blanks = [run for run in result if run.last_record < 0]
    assert [(run.position, len(run.data)) for run in blanks] == [(SEGMENT - rest, rest)]
    before = [run for run in result if 0 <= run.last_record < SEGMENT]
    assert (before[-1].last_record, before[-1].newest_ms) == (last, 102)
    assert result[-1].newest_ms == 201
    for run, following in pairwise(result):
        assert run.position + len(run.data) == following.position


def test_ha_stream_may_start_in_the_middle_of_the_log():
    log, last, _ = a_log()
    runs = RecordRuns(last, SEGMENT)
    result = runs.feed(log[last:])
    assert [run.position for run in result] == [last, result[1].position, SEGMENT]


def test_record_runs_read_long_topics_and_ipv6_hosts():
    first = stored(0, topic="t" * 200)
    second = stored(len(first), sys_flag=SYS_BORN_HOST_V6, born_host=("::1", 5))
    runs = RecordRuns(0, 4096)
    (run,) = runs.feed(first + second)
    assert (run.data, run.last_record) == (first + second, len(first))


def damaged(data, at, value):
    return data[:at] + bytes((value,)) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (damaged(stored(0), 7, 0), "no record at 0"),
        (bytes(100), "no record at 0"),
        (stored(500), "a record at 0 says 500"),
        (damaged(stored(0), 89, 0), "damaged"),
        (damaged(stored(0, sys_flag=SYS_BORN_HOST_V6, born_host=("::1", 5)), 101, 0), "CRC"),
        (damaged(stored(0), 84, 0x7F), "damaged"),
        (damaged(stored(0), 3, 50), "50 bytes"),
        (stored(0, b"z" * (SEGMENT - 100)), "mappedFileSizeCommitLog"),
        (BLANK.pack(SEGMENT - 1, MAGIC_BLANK), "mappedFileSizeCommitLog"),
    ],
)
def test_record_runs_reject_a_discontinuous_stream(data, why):
    runs = RecordRuns(0, SEGMENT)
    with pytest.raises(HaProtocolError, match=why):
        runs.feed(data)
    assert runs.position == 0


def test_record_runs_hold_back_a_bounded_number_of_bytes():
    runs = RecordRuns(0, 1 << 30)
    assert runs.feed(BLANK.pack(1 << 30, MAGIC_BLANK) + bytes(HELD_BACK_MAX - 8)) == []
    with pytest.raises(HaProtocolError, match="no record ends within"):
        runs.feed(b"x")
