"""Histories of a group's replicas, merged."""

from raftmq.namesrv.http.history import merged


def answer(leading, *series, times=(10, 20, 30)):
    return {
        "times": list(times),
        "leading": list(leading),
        "series": [{"name": n, "topic": t, "values": list(v)} for n, t, v in series],
    }


def test_merged_history_uses_the_leaders_value_or_the_largest():
    one = answer((True, False, None), ("lag", "T", (5, 9, None)))
    other = answer((False, False, False), ("lag", "T", (7, 3, 4)))
    (series,) = merged([other, one], (10, 20, 30), ())
    assert series == {"name": "lag", "topic": "T", "values": [5, 9, 4]}


def test_merged_history_sums_series_that_are_split_over_replicas():
    one = answer((True, True, True), ("out", None, (1, None, 2)), ("p99", None, (3, None, 4)))
    other = answer((False, False, False), ("out", None, (10, None, None)))
    assert merged([one, other], (10, 20, 30), ("out",)) == [
        {"name": "out", "topic": None, "values": [11, None, 2]},
        {"name": "p99", "topic": None, "values": [3, None, 4]},
    ]


def test_merged_history_accepts_replicas_with_other_sample_times():
    one = answer((True,), ("lag", "T", (5,)), times=(30,))
    other = answer((False, False), ("lag", "T", (1, 2)), times=(15, 30))
    (series,) = merged([one, other], (15, 30), ())
    assert series["values"] == [1, 5]
