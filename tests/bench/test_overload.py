"""bench.overload, its counts and a short run."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from bench.flood import DEAF, NOTHING, ONE_WAY, SENDS, SLOW, Link, Plan, outcome_of
from bench.group import floor_server
from bench.overload import ROWS, Latencies, NormalClient, Spans, flooded, measure, outcomes_text
from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand

ROOT = Path(__file__).parent.parent.parent


def answer(code: int, remark: str | None = None) -> bytes:
    return encode_command(RemotingCommand(code, 7, 1, remark, {"queueId": "0"}))


@pytest.mark.parametrize(
    ("frame", "outcome"),
    [
        (answer(ResponseCode.SUCCESS), "stored"),
        (answer(ResponseCode.SYSTEM_BUSY, "[BUSY] try again"), "BUSY"),
        (answer(ResponseCode.SYSTEM_ERROR, "[OUTCOME_UNKNOWN] who knows"), "OUTCOME_UNKNOWN"),
        (answer(ResponseCode.TOPIC_NOT_EXIST, "no [BUSY] here"), "code 17"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x04{}{}", "no answer of a broker"),
    ],
)
def test_what_an_answer_says(frame: bytes, outcome: str) -> None:
    assert outcome_of(frame, 0, len(frame)) == outcome


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_answers_are_counted_however_they_are_cut(size: int) -> None:
    counts: Counter[str] = Counter()
    link = Link(counts)
    data = b"".join([answer(0), answer(2, "[BUSY] x"), answer(0)] * 5)
    for at in range(0, len(data), size):
        link.data_received(data[at : at + size])
    assert counts == {"stored": 10, "BUSY": 5}


@pytest.mark.parametrize(
    ("kind", "rate"), [(NOTHING, 0), (SENDS, 500), (DEAF, 500), (SLOW, 0), (ONE_WAY, 0)]
)
async def test_every_kind_of_load_is_offered(kind: str, rate: float) -> None:
    async with floor_server() as address:
        _, report = await flooded(Plan(kind, address, "T", 0.2, 3, rate, 1_000, 0.2))
    assert (report["connected"], report["refused"]) == (3, 0)
    assert report["sent"] + report["held_back"] >= report["due"]
    if kind == SENDS:
        assert report["outcomes"] == {"stored": report["sent"]}
        assert report["due"] > 0
    elif kind == SLOW:
        assert report["sent"] == 3
        assert not report["outcomes"]
    elif kind in (DEAF, ONE_WAY):
        assert report["sent"] > 0
        assert kind == ONE_WAY or not report["outcomes"]  # not read


def client_with(sends: list[tuple[float, float, str]]) -> NormalClient:
    client = NormalClient(None)  # type: ignore[arg-type]
    client.sends = sends
    return client


BEFORE = Latencies(100, 0, 5.0, 10.0)


@pytest.mark.parametrize(
    ("bad", "back"),
    [
        ([], 0),
        ([(0.5, 500.0, "")], 1),
        ([(0.5, 500.0, ""), (2.5, 31.0, "")], 3),  # p99 10 before: 30 is as before, 31 is not
        ([(0.5, 5.0, "SendFailed")], 1),
        ([(4.5, 500.0, "")], -1),
    ],
)
def test_when_a_client_is_served_as_before(bad: list[tuple[float, float, str]], back: int) -> None:
    good = [(second + 0.1, 30.0, "") for second in range(5)]
    assert client_with(good + bad).back_after_s(0.0, 5.0, BEFORE) == back


def test_a_second_without_any_send_is_not_as_before() -> None:
    assert client_with([(0.1, 1.0, ""), (2.1, 1.0, "")]).back_after_s(0.0, 3.0, BEFORE) == 2


def test_latencies_are_of_what_succeeded() -> None:
    seen = client_with([(0.1, 1.0, ""), (0.2, 3.0, ""), (0.3, 9.0, "SendFailed")]).span(0, 1)
    assert (seen.sends, seen.failed, seen.p50_ms, seen.p99_ms) == (3, 1, 3.0, 3.0)
    assert math.isnan(client_with([]).span(0, 1).p50_ms)


def test_shares_are_of_what_was_sent() -> None:
    flood = {
        "sent": 200, "due": 400, "held_back": 200, "outcomes": {"stored": 20, "BUSY": 170},
        "closed_by_broker": 0, "refused": 1,
    }  # fmt: skip
    assert outcomes_text(flood) == (
        "BUSY 85.0%, stored 10.0%, unanswered 5.0%, held back 50.0%, 1 connections refused"
    )


async def test_a_slow_disk_is_overloaded_and_says_so() -> None:
    """The whole of it, short. How fast this machine is just now is not asserted."""
    row = next(row for row in ROWS if row.name == "slow disk")
    result = await measure(ROOT, row, Spans(2.0, 0.5, 0.5, 1.0, 1.0, 1.0), 4)
    outcomes = result.flood["outcomes"]
    assert result.flood["connected"] == 4
    assert result.capacity > 0
    assert outcomes["stored"] > 0
    assert sum(outcomes.values()) <= result.flood["sent"] <= result.flood["due"]
    assert 0 < result.leader.before <= result.leader.peak
    assert len(result.followers) == 2
    assert result.latencies["during"].sends > 0
    json.dumps(result.flood)
