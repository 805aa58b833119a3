"""Of a topic's broker groups one has no leader: changes are refused, and answers say so."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.mqadmin.conftest import CLUSTER, Small

HEADLESS = "group-x"
NOBODY = f"nobody leads {HEADLESS} at the moment"
OF_GROUP = ("-g", "billing", "-t", "orders")


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """One group leads and has both topics; the other has them, too, and no leader."""
    cluster = Small(tmp_path_factory.mktemp("partial"))
    cluster.start()
    try:
        cluster.make_topic("orders")
        cluster.make_topic("%RETRY%billing")
        for arguments in (
            ("updateSubGroup", "-c", CLUSTER, "-g", "billing"),
            ("sendMessage", "-t", "orders", "-p", "consumed"),
            ("resetOffsetByTime", *OF_GROUP, "-s", "-1"),
            ("sendMessage", "-t", "orders", "-p", "not yet"),
            ("consumerProgress", *OF_GROUP),
        ):
            result = cluster.run(*arguments)
            assert result.exit_code == 0, result.output
        cluster.add_headless(HEADLESS, "orders", "%RETRY%billing")
        yield cluster
    finally:
        cluster.stop()


def offsets(cluster: Small) -> dict[str, list[int]]:
    actual = {}
    for group in ("billing", "audit"):
        result = cluster.run("consumerProgress", "-g", group, "-t", "orders", "--json")
        actual[group] = [row["consumerOffset"] for row in json.loads(result.stdout)["queues"]]
    return actual


@pytest.mark.parametrize(
    "arguments",
    [
        ("resetOffsetByTime", *OF_GROUP, "-s", "-1"),
        ("skipAccumulatedMessage", *OF_GROUP),
        ("cloneGroupOffset", "-s", "billing", "-d", "audit", "-t", "orders"),
        ("deleteWriter", "-t", "orders", "-w", "etl"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_change_is_rejected_up_front_while_a_group_has_no_leader(
    partial: Small, arguments: tuple[str, ...]
) -> None:
    before = offsets(partial)
    result = partial.run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"mqadmin: {NOBODY}\n"
    assert offsets(partial) == before


def test_consumer_progress_has_no_total_while_a_group_has_no_leader(partial: Small) -> None:
    result = partial.run("consumerProgress", *OF_GROUP, "--json")
    reported = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [row["broker"] for row in reported["queues"]] == ["group-a", "group-a", HEADLESS]
    assert reported["queues"][-1]["diff"] == NOBODY
    assert len({tuple(row) for row in reported["queues"]}) == 1
    assert set(reported["total"].values()) == {None}


@pytest.mark.parametrize(
    "arguments, column",
    [
        (("consumerProgress",), "diff"),
        (("topicList", "-c"), "group"),
        (("topicStatus", "-t", "orders"), "maxOffset"),
        (("writers", "-t", "orders"), "lastTime"),
        (("statsAll", "-t", "orders"), "behind"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_answer_reports_a_group_without_leader_in_its_row(
    partial: Small, arguments: tuple[str, ...], column: str
) -> None:
    result = partial.run(*arguments, "--json")
    assert result.exit_code == 1
    (reported,) = [row for row in json.loads(result.stdout) if row[column] == NOBODY]
    assert reported.get("topic", "orders") in ("orders", "")


def test_top_shows_no_lag_while_a_group_has_no_leader(partial: Small) -> None:
    result = partial.run("top", "--once", "--interval", "0.2", "--json")
    assert result.exit_code == 1
    reported = json.loads(result.stdout)
    (topic,) = reported["topics"]
    (group,) = reported["groups"]
    assert (topic["lag"], topic["stored"], group["lag"]) == (NOBODY, None, NOBODY)
    assert topic["inTps"] == 0.0


def test_reset_of_one_broker_works_while_another_group_has_no_leader(partial: Small) -> None:
    arguments = ("resetOffsetByTime", *OF_GROUP, "-s", "0", "-b")
    result = partial.run(*arguments, "group-a", "--json")
    assert result.exit_code == 0
    assert [row["broker"] for row in json.loads(result.stdout)] == ["group-a", "group-a"]
    assert "leads no broker group" in partial.run(*arguments, HEADLESS).stderr
