"""`mqadmin top`: what a look finds, and the rates between two."""

from __future__ import annotations

import json
from pathlib import Path

from raftmq.mqadmin.command import Table
from raftmq.mqadmin.targets import Replica
from raftmq.mqadmin.top import sections_of
from raftmq.mqadmin.top_data import GroupProgress, Sample, broker_rows, group_rows, topic_rows
from tests.mqadmin.conftest import Small

ONE = Replica("C", "broker-a", 0, "h:1")


def made(at_s: float, stored: int, consumed: int, put: int) -> Sample:
    look = Sample(at_s, 0)
    said = {"msgPutTotalTodayNow": str(put), "raftRole": "leader", "raftTerm": "3"}
    look.replicas = [(ONE, said)]
    look.brokers = {"quiet": ("a",), "busy": ("a",)}
    look.stored = {"quiet": {"a": (1, 7)}, "busy": {"a": (4, stored)}}
    look.progress = {
        ("g", "busy"): {"a": GroupProgress(consumed, stored - consumed, 2)},
        ("h", "busy"): {"a": GroupProgress(stored, 0, 0)},
        ("h", "%RETRY%h"): {"a": GroupProgress(3, 0, 0)},
    }
    return look


def add_second(look: Sample, stored: int, consumed: int) -> Sample:
    """Have another broker group answer for the busy topic."""
    look.brokers["busy"] = ("a", "b")
    look.stored["busy"]["b"] = (4, stored)
    look.progress["g", "busy"]["b"] = GroupProgress(consumed, stored - consumed, 1)
    return look


def without_second(look: Sample) -> Sample:
    """Have the other one be silent."""
    look.brokers["busy"] = ("a", "b")
    look.silent["b"] = "no answer from b"
    look.unseen.add("busy")
    return look


def test_top_rates_are_per_time_between_two_samples() -> None:
    before, now = made(10.0, 100, 40, 500), made(12.0, 300, 60, 900)
    (broker,) = broker_rows(now, before)
    assert (broker["role"], broker["term"], broker["inTps"]) == ("leader", 3, 200.0)
    busy, quiet = topic_rows(now, before)
    assert (busy["topic"], busy["inTps"], busy["lag"], busy["groups"]) == ("busy", 100.0, 240, 2)
    assert (quiet["topic"], quiet["inTps"], quiet["lag"]) == ("quiet", 0.0, 0)
    behind, level = group_rows(now, before)
    assert (behind["group"], behind["outTps"], behind["lag"], behind["inFlight"]) == (
        "g", 10.0, 240, 2,
    )  # fmt: skip
    assert (level["group"], level["outTps"], level["lag"]) == ("h", 100.0, 0)


def test_top_shows_no_rate_for_new_rows_and_restarted_counters() -> None:
    now = made(12.0, 300, 60, 900)
    assert broker_rows(now, None)[0]["inTps"] is None
    assert broker_rows(now, made(10.0, 1, 1, 901))[0]["inTps"] is None  # started again
    assert topic_rows(now, Sample(10.0, 0))[0]["inTps"] is None
    now.replicas = [(ONE, {"error": "no answer"})]
    assert broker_rows(now, None)[0]["role"] == "no answer"


def test_top_counts_no_traffic_of_a_broker_group_that_was_silent() -> None:
    before, now = without_second(made(10.0, 100, 40, 500)), made(12.0, 300, 60, 900)
    add_second(now, 10_000, 9_000)
    assert topic_rows(now, before)[0]["inTps"] == 100.0
    (group,) = (row for row in group_rows(now, before) if row["group"] == "g")
    assert (group["outTps"], group["lag"], group["inFlight"]) == (10.0, 1_240, 3)


def test_top_shows_no_sum_while_a_broker_group_is_silent() -> None:
    before, now = add_second(made(10.0, 100, 40, 500), 10_000, 9_000), made(12.0, 300, 60, 900)
    without_second(now)
    busy, quiet = topic_rows(now, before)
    assert (busy["inTps"], busy["stored"], busy["queues"]) == (100.0, None, None)
    assert busy["lag"] == "no answer from b"
    assert (quiet["stored"], quiet["lag"]) == (7, 0)
    for row in group_rows(now, before):
        assert (row["lag"], row["inFlight"]) == ("no answer from b", None)
    assert group_rows(now, before)[0]["outTps"] == 10.0
    now.stored["busy"] = {"b": (4, 1)}
    assert topic_rows(now, Sample(10.0, 0, stored={"busy": {"a": (4, 1)}}))[0]["inTps"] is None


def test_top_shows_queues_of_a_broker_group_that_denies_progress() -> None:
    """To an account that is no administrator, for one."""
    now = add_second(made(12.0, 300, 60, 900), 10_000, 9_000)
    now.silent["b"] = "not for you"
    busy, quiet = topic_rows(now, None)
    assert (busy["stored"], busy["queues"], busy["lag"]) == (10_300, 8, "not for you")
    now.silent.clear()
    now.unseen.add("quiet")
    busy, quiet = topic_rows(now, None)
    assert (busy["stored"], busy["lag"]) == (10_300, 1_240)
    assert (quiet["stored"], quiet["lag"]) == (None, 0)


def test_top_limits_tables_and_says_so_in_the_title() -> None:
    parts = sections_of(made(1.0, 1, 1, 1), None, 1)
    titles = [part.title for part in parts if isinstance(part, Table)]
    assert titles == ["brokers", "topics, 1 of 2", "groups, 1 of 2"]


def test_top_samples_a_running_cluster(small: Small, tmp_path: Path) -> None:
    small.make_topic("orders")
    file = tmp_path / "in"
    file.write_text("".join(f"{n}\n" for n in range(20)))
    assert small.run("produce", "orders", str(file)).exit_code == 0
    small.run("consume", "orders", "-g", "billing", "-c", "5")
    said = small.run("top", "--once", "--interval", "0.2", "--json")
    assert (said.exit_code, said.stderr) == (0, "")
    result = json.loads(said.stdout)
    (broker,) = result["brokers"]
    assert (broker["role"], broker["leader"]) == ("leader", broker["node"])
    (topic,) = result["topics"]  # the system's are left out
    assert (topic["topic"], topic["stored"], topic["groups"]) == ("orders", 20, 1)
    (group,) = result["groups"]
    assert (group["group"], group["lag"]) == ("billing", 15)
    every = json.loads(small.run("top", "--once", "--interval", "0.2", "--json", "-a").stdout)
    assert len(every["topics"]) > 1
    table = small.run("top", "--once", "--interval", "0.2", "-t", "orders").stdout
    assert "brokers" in table and "orders" in table
    assert small.run("top", "--interval", "0").exit_code == 2
