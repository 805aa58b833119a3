"""The parts of /metrics: histograms, families, the loop's lag; what every exposition keeps to."""

import asyncio

import pytest

from raftmq.broker.admin.metrics import OTHER_REASON, REASONS, reason_of
from raftmq.ops.metrics import LAG_BOUNDS_S, Exposition, Families, LoopLag, Timings
from tests.waiting import until


def test_timings_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    timings = Timings((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 2.0):
        timings.observe(seconds)
    assert timings.buckets() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert sum(timings.counts) == 4
    assert timings.sum_s == pytest.approx(2.65)


def test_metric_families_have_the_common_labels() -> None:
    def collect():
        families = Families((("node", "n0"),))
        families.gauges("g", "Doc.", ("peer",), [(("n1",), 1), (("n2",), 2)])
        families.counter("c_total", "Doc.", 3)
        families.states("role", "Doc.", "role", ("leader", "follower"), "learner")
        timings = Timings((1.0,))
        timings.observe(0.5)
        families.histogram("h_seconds", "Doc.", timings)
        return families.all

    text, content_type = Exposition(collect).render()
    assert content_type.startswith("text/plain")
    lines = text.decode().splitlines()
    for line in (
        'g{node="n0",peer="n2"} 2.0',
        'c_total{node="n0"} 3.0',
        'role{node="n0",role="learner"} 1.0',  # one that nobody thought of is seen, too
        'role{node="n0",role="leader"} 0.0',
        'h_seconds_bucket{le="1.0",node="n0"} 1.0',
        'h_seconds_count{node="n0"} 1.0',
    ):
        assert line in lines
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


def test_scraper_may_request_openmetrics() -> None:
    text, content_type = Exposition(list).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_counter_names_end_in_total() -> None:
    with pytest.raises(AssertionError):
        Families(()).counter("sends", "Doc.", 1)


async def test_event_loop_lag_is_measured() -> None:
    timings = Timings(LAG_BOUNDS_S)
    lag = LoopLag(timings)
    lag.start()
    await until(lambda: sum(timings.counts) >= 2)
    lag.stop()
    count = sum(timings.counts)
    await asyncio.sleep(0)
    assert sum(timings.counts) == count
    assert 0 <= timings.sum_s < 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no majority answers", "no_quorum"),
        ("too few replicas have recovered", "not_whole"),
        ("n2 may not know its vote", "not_whole"),
        ("fdatasync has not returned for 900 ms", "disk_stalled"),
        ("no room for the next frame: [Errno 28]", "disk_full"),
        ("reading the log failed: [Errno 5]", "disk_unreadable"),
        ("writing failed: OSError(5)", "disk_failed"),
        ("n1 asks for votes", "higher_term"),
        ("n1 is ahead", "higher_term"),
        ("n1 leads", "higher_term"),
        ("removed from the group", "removed"),
        ("something new", OTHER_REASON),
    ],
)
def test_reasons_have_few_names(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_metric_reasons_occur_in_the_sources() -> None:
    """Each text that is looked for stands in the core or its shell: none is left behind there."""
    from pathlib import Path

    room = Path(__file__).parent.parent.parent / "dledger"
    sources = "".join(path.read_text() for path in sorted(room.rglob("*.py")))
    for part, _ in REASONS:
        assert part in sources, part
