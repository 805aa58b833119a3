"""Recovery times out of hand-made histories (1 ms per event)."""

from __future__ import annotations

import pytest

from raftmq.chaos.report.recovery import carried, ms_text, percentile, recoveries, spread, summary
from tests.chaos.builder import HistoryBuilder


def test_answer_in_flight_when_the_leader_died_does_not_end_an_outage() -> None:
    builder = HistoryBuilder()
    early = builder.invoke("a")  # 1 ms
    builder.kill()  # 2 and 3 ms
    builder.ok(early, 0, 0)  # 4 ms, an answer of the dead leader
    builder.sent("b", 0, 1)  # 5, 6 ms
    (result,) = recoveries(builder.build())
    assert result.everybody_ms == 4.0
    assert result.longest_gap_ms == 2.0


def test_retried_send_counts_and_each_client_has_its_own_time() -> None:
    builder = HistoryBuilder()
    first = builder.invoke("a", process="producer-0")
    second = builder.invoke("b", process="producer-1")
    builder.kill()  # 3, 4 ms
    builder.ok(first, 0, 0, attempts=2, process="producer-0")  # 5 ms
    builder.ok(second, 0, 1, attempts=3, process="producer-1")  # 6 ms
    (result,) = recoveries(builder.build())
    assert result.everybody_ms == 2.0
    assert result.per_client_ms == {"producer-0": 2.0, "producer-1": 3.0}
    assert result.worst_client_ms == 3.0


def test_kill_without_recovery_before_the_next_has_no_time() -> None:
    builder = HistoryBuilder()
    builder.kill("n0")
    builder.kill("n1")
    builder.sent("a", 0, 0)
    first, second = recoveries(builder.build())
    assert first.everybody_ms is None and first.worst_client_ms is None
    assert second.everybody_ms == 3.0
    figures = summary([first, second])
    assert (figures["faults"], figures["recovered"]) == (2, 1)
    assert list(figures["kinds"]) == ["kill:leader"]
    assert figures["everybody"] == {"count": 1, "p50_ms": 3.0, "p99_ms": None, "max_ms": 3.0}


def test_send_before_the_fault_is_in_force_does_not_end_the_outage() -> None:
    """Proxies are informed in turn, so the link is cut some time after the nemesis started."""
    builder = HistoryBuilder()
    fields = {"fault": 1, "kind": "cut-node", "whom": "leader", "nodes": ["n0"]}
    op = builder.add("invoke", "inject", "nemesis", **fields)
    builder.sent("a", 0, 0)
    builder.add("ok", "inject", "nemesis", op, **fields)
    builder.wait(2)
    builder.sent("b", 0, 1)
    (result,) = recoveries(builder.build())
    assert result.everybody_ms == result.worst_client_ms == 2003.0
    assert result.longest_gap_ms == 2003.0


def test_fault_with_a_long_injection_has_its_longest_outage() -> None:
    builder = HistoryBuilder()
    fields = {"fault": 1, "kind": "rolling-restart", "whom": "all", "nodes": ["n0", "n1"]}
    op = builder.add("invoke", "inject", "nemesis", **fields)  # 1 ms
    for number, seconds in enumerate((0.1, 3.0, 0.1)):
        builder.wait(seconds)
        builder.sent(str(number), 0, number)
    builder.add("ok", "inject", "nemesis", op, **fields)
    builder.sent("x", 0, 3)
    (result,) = recoveries(builder.build())
    assert result.everybody_ms == 3002.0


def test_silence_until_the_next_fault_or_the_end_is_a_gap() -> None:
    builder = HistoryBuilder()
    builder.sent("a", 0, 0)
    builder.kill("n0")
    builder.wait(5)
    builder.kill("n1")
    builder.sent("b", 0, 1)
    for name in ("c", "d"):
        builder.wait(1)
        builder.ended(name, "unknown")
    first, second = recoveries(builder.build())
    assert first.longest_gap_ms == 5002.0
    assert second.longest_gap_ms == 2004.0  # until the last was given up


def test_usual_rate_returns_when_as_many_are_acknowledged_as_before() -> None:
    builder = HistoryBuilder()
    names = iter(range(10_000))
    for _ in range(1000):  # 500 a second for two seconds
        builder.sent(str(next(names)), 0, 0)
    builder.fault("cut-node", "n0", heal=False)
    builder.wait(0.3)
    for _ in range(3):  # a client succeeds now and then
        builder.sent(str(next(names)), 0, 0)
        builder.wait(0.2)
    for _ in range(400):
        builder.sent(str(next(names)), 0, 0)
    (result,) = recoveries(builder.build())
    assert result.everybody_ms is not None and 300 <= result.everybody_ms < 310
    assert result.normal_ms is not None and 890 <= result.normal_ms < 930
    assert (result.kind, result.node) == ("cut-node", "n0")


def test_unhealed_fault_without_earlier_load_has_no_usual_rate() -> None:
    builder = HistoryBuilder()
    builder.fault("pause", "n1")
    builder.sent("a", 0, 0)
    (result,) = recoveries(builder.build())
    assert result.normal_ms is None
    assert result.everybody_ms is not None


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([1.0, 2.0], 0.99, 2.0),
    ],
)
def test_percentile_is_nearest_rank(values: list[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == expected


def test_spread_of_no_values_is_none() -> None:
    assert spread([]) is None


@pytest.mark.parametrize(
    ("fraction", "fewest"), [(0.5, 1), (0.9, 10), (0.99, 100), (0.999, 1000), (1.0, 1)]
)
def test_percentile_needs_enough_values(fraction: float, fewest: int) -> None:
    ordered = [float(n) for n in range(fewest)]
    assert carried(ordered, fraction) is not None
    assert fewest == 1 or carried(ordered[1:], fraction) is None
    assert ms_text(None) == "-" and ms_text(1234.4) == "1,234 ms"
