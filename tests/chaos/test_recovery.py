"""Recovery times out of hand-made histories (1 ms per event)."""

from __future__ import annotations

import pytest

from chaos.report.recovery import percentile, recoveries, spread, summary
from tests.chaos.builder import HistoryBuilder


def test_answer_on_its_way_when_the_leader_died_does_not_count() -> None:
    builder = HistoryBuilder()
    early = builder.invoke("a")  # 1 ms
    builder.kill()  # 2 and 3 ms
    builder.ok(early, 0, 0)  # 4 ms: the dead leader's last words
    builder.sent("b", 0, 1)  # 5, 6 ms
    (found,) = recoveries(builder.build())
    assert found.everybody_ms == 4.0
    assert found.longest_gap_ms == 2.0


def test_retried_send_counts_and_each_client_has_its_own_time() -> None:
    builder = HistoryBuilder()
    first = builder.invoke("a", process="producer-0")
    second = builder.invoke("b", process="producer-1")
    builder.kill()  # 3, 4 ms
    builder.ok(first, 0, 0, attempts=2, process="producer-0")  # 5 ms
    builder.ok(second, 0, 1, attempts=3, process="producer-1")  # 6 ms
    (found,) = recoveries(builder.build())
    assert found.everybody_ms == 2.0
    assert found.per_client_ms == {"producer-0": 2.0, "producer-1": 3.0}
    assert found.worst_client_ms == 3.0


def test_kill_without_recovery_before_the_next_says_so() -> None:
    builder = HistoryBuilder()
    builder.kill("n0")
    builder.kill("n1")
    builder.sent("a", 0, 0)
    first, second = recoveries(builder.build())
    assert first.everybody_ms is None and first.worst_client_ms is None
    assert second.everybody_ms == 3.0
    figures = summary([first, second])
    assert (figures["kills"], figures["recovered"]) == (2, 1)
    assert figures["everybody"] == {"count": 1, "p50_ms": 3.0, "p99_ms": 3.0, "max_ms": 3.0}


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


def test_spread_of_nothing_is_nothing() -> None:
    assert spread([]) is None
