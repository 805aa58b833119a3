"""Series of samples: rates, restarts, gaps, and percentiles only where samples carry them."""

from itertools import pairwise

import pytest

from raftmq.broker.history.samples import Span, of_broker, of_group, of_topic, quantile_ms
from raftmq.ops.metrics import LATENCY_BOUNDS_S


def sample(t, total, *, boot=1, topics=None, groups=None, append=None):
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    return {
        "t": t, "boot": boot, "leads": True, "in": total, "out": 2 * total, "log": 100 * total,
        "append": append or counts, "topics": topics or {}, "groups": groups or {},
    }  # fmt: skip


def spans(*samples):
    return [Span(a, b) for a, b in pairwise(samples)]


def values(series, name, topic=None):
    (result,) = [one.values for one in series if (one.name, one.topic) == (name, topic)]
    return result


def test_history_rates_are_over_the_time_between_two_samples():
    result = of_broker(spans(sample(0, 0), sample(2_000, 10), sample(12_000, 10)))
    assert values(result, "messagesInPerS") == [5, 0]
    assert values(result, "messagesOutPerS") == [10, 0]
    assert values(result, "logBytesPerS") == [500, 0]


def test_history_after_a_restart_has_log_rates_and_no_process_rates():
    result = of_broker(spans(sample(0, 50), sample(1_000, 60, boot=2)))
    assert values(result, "messagesInPerS") == [None]
    assert values(result, "logBytesPerS") == [1_000]


def test_history_value_missing_in_a_sample_is_none():
    known, other = sample(1_000, 1, topics={"A": [7, 3]}), sample(2_000, 1, topics={"B": [1, 1]})
    result = of_topic([Span(None, known), Span(known, other), Span(other, None)], "A")
    assert values(result, "messagesInPerS") == [None, None, None]
    assert values(result, "messages") == [3, None, None]
    assert values(of_broker([Span(known, known)]), "messagesInPerS") == [None]


def test_history_of_a_recreated_topic_has_no_negative_rate():
    result = of_topic(
        spans(sample(0, 0, topics={"A": [9, 9]}), sample(1_000, 0, topics={"A": [1, 1]})), "A"
    )
    assert values(result, "messagesInPerS") == [None]


def test_history_of_a_group_is_per_topic():
    groups = {"g": {"A": [0, 5], "B": [3, 0]}}, {"g": {"A": [4, 1], "B": [3, 2]}}
    pair = spans(sample(0, 0, groups=groups[0]), sample(2_000, 0, groups=groups[1]))
    result = of_group(pair, "g")
    assert values(result, "lag", "A") == [1] and values(result, "messagesOutPerS", "A") == [2]
    assert values(result, "lag", "B") == [2]
    assert {one.topic for one in of_group(pair, "g", "B")} == {"B"}
    assert of_group(pair, "h") == []


def test_history_percentiles_need_enough_group_commits():
    none, few, many = ([n if i == 3 else 0 for i in range(len(LATENCY_BOUNDS_S) + 1)]
                       for n in (0, 10, 110))  # fmt: skip
    result = of_broker(spans(*(sample(n, 0, append=c) for n, c in enumerate((none, few, many)))))
    assert values(result, "appendP50Ms") == [pytest.approx(0.75), pytest.approx(0.75)]
    assert values(result, "appendP99Ms") == [None, pytest.approx(0.995)]
    other = sample(9, 0, append=[1] * 3)  # of a program with other bounds
    assert values(of_broker(spans(sample(8, 0), other)), "appendP50Ms") == [None]


def test_history_quantile_beyond_the_last_bound_is_that_bound():
    assert quantile_ms([0] * len(LATENCY_BOUNDS_S) + [5], 0.5) == LATENCY_BOUNDS_S[-1] * 1000
