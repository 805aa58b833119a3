"""definitions and copyDefinitions: what is made, what is raised, what is left, what is refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from raftmq.client.admin.topics import TopicAdmin
from raftmq.client.errors import BrokerRefused
from raftmq.mqadmin.definitions import _all_same, _by_name, copied_topic
from tests.mqadmin.conftest import NEW, OLD, Two
from tests.waiting import wait_until

COPY = ("copyDefinitions", "--from", OLD, "--to", NEW)


BEAN: dict[str, Any] = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False}


def rows(two: Two, *arguments: str) -> dict[tuple[str, str], tuple[str, str]]:
    done = two.run(*COPY, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    return {(row["kind"], row["name"]): (row["outcome"], row["why"]) for row in result}


def topic(two: Two, group: str, name: str) -> dict:
    route = json.loads(two.run("topicRoute", "-t", name, "--json").stdout)
    (queue,) = (row for row in route["queues"] if row["broker"] == group)
    return queue


def ok(two: Two, command: str) -> None:
    done = two.run(*command.split())
    assert done.exit_code == 0, done.stderr


def test_copy_definitions_copies_once_and_leaves_differing_ones(two: Two) -> None:
    old, new = two.at(OLD), two.at(NEW)
    ok(two, f"updateTopic -b {old} -t Orders -r 3 -w 5 -a +message.type=FIFO")
    ok(two, f"updateTopic -b {old} -t Bills -r 2 -w 2")
    ok(two, f"updateTopic -b {new} -t Bills -r 7 -w 7")
    ok(two, f"updateSubGroup -b {old} -g Billing -r 3")
    ok(two, f"updateSubGroup -b {old} -g Known -r 3")
    ok(two, f"updateSubGroup -b {new} -g Known -r 9")

    left = "readQueueNums is 7, was 2; writeQueueNums is 7, was 2"
    expected = {
        ("topic", "Orders"): ("made", ""),
        ("topic", f"only-{OLD}"): ("made", ""),
        ("topic", "Bills"): ("left: it differs", left),
        ("group", "Billing"): ("made", ""),
        ("group", "Known"): ("changed", "retryMaxTimes was 9"),
    }
    assert rows(two, "--dryRun") == expected
    assert rows(two, "--dryRun") == expected  # it has changed nothing
    assert rows(two) == expected
    again = rows(two)
    assert set(again.values()) == {("there already", ""), ("left: it differs", left)}
    wait_until(partial(two.is_routed, "Orders", NEW))
    made = topic(two, NEW, "Orders")
    assert (made["readQueues"], made["writeQueues"], made["perm"]) == (3, 5, "R")
    assert topic(two, NEW, "Bills")["readQueues"] == 7


def test_copy_definitions_rejects_topic_attributes_without_effect_here() -> None:
    attributes = {"cleanup.policy": "COMPACTION", "message.type": "NORMAL"}
    step = copied_topic("T", BEAN | {"attributes": attributes}, NEW, None, 4)
    assert (step.outcome, step.why) == ("refused", "brokers here do not act by cleanup.policy")
    step = copied_topic("U", BEAN | {"attributes": {"queue.type": "SimpleCQ"}}, NEW, None, 4)
    assert step.outcome == "made" and step.puts[NEW]["perm"] == 4


async def test_equal_definitions_of_many_groups_share_one_object() -> None:
    async def read(address: str) -> dict[str, dict[str, Any]]:
        own = {"only there": {"perm": 6}} if address == "n9:1" else {}
        odd = {"odd": {"perm": 6 if address == "n7:1" else 4}}
        return {f"t{number}": {"topicName": f"t{number}"} for number in range(3)} | odd | own

    leaders = {f"g{number:02}": f"n{number}:1" for number in range(20)}
    found = await _by_name(read, leaders)
    assert list(found) == ["odd", "only there", "t0", "t1", "t2"]
    assert len({id(bean) for bean in found["t1"].values()}) == 1 and _all_same(found["t1"])
    assert not _all_same(found["odd"]) and not _all_same(found["only there"])
    assert found["odd"]["g07"] == {"perm": 6} and found["odd"]["g08"] == {"perm": 4}
    assert found["only there"] == dict.fromkeys(leaders) | {"g09": {"perm": 6}}


def test_copy_definitions_error_names_the_topic_and_the_progress(two: Two, monkeypatch) -> None:
    async def refused(self, address, header):
        raise BrokerRefused(1, "no room", address)

    ok(two, f"updateTopic -b {two.at(OLD)} -t Last -r 1 -w 1")
    monkeypatch.setattr(TopicAdmin, "put", refused)
    done = two.run(*COPY)
    assert done.exit_code == 1 and "topic Last: " in done.stderr and "no room" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--from", "none", "--to", NEW), 1, f"no broker group 'none' with a leader; known: {OLD}"),
        (("--from", OLD, "--to", OLD), 2, "the same broker group"),
        (("--from", OLD), 2, "Missing option '--to'"),
        (("--from", OLD, "--to", NEW, "--perm", "7"), 2, "--perm 7: expected 2, 4 or 6"),
    ],
)  # fmt: skip
def test_copy_definitions_rejects_wrong_arguments(two: Two, arguments, status, says) -> None:
    done = two.run("copyDefinitions", *arguments)
    assert (done.exit_code, says in done.stderr) == (status, True), done.stderr


def test_definitions_align_changes_a_cluster_once(two: Two) -> None:
    old, new = two.at(OLD), two.at(NEW)
    ok(two, f"updateTopic -b {old} -t Parcels -r 2 -w 2 -a +message.type=DELAY")
    ok(two, f"updateTopic -b {old} -t Letters -r 2 -w 2")
    ok(two, f"updateTopic -b {new} -t Letters -r 5 -w 5 -p 4")
    ok(two, f"updateTopic -b {old} -t Steps -r 2 -w 2 -o true")
    ok(two, f"updateTopic -b {old} -t Clash -r 2 -w 2 -a +message.type=FIFO")
    ok(two, f"updateTopic -b {new} -t Clash -r 2 -w 2")
    ok(two, f"updateSubGroup -b {old} -g Post -r 3")
    ok(two, f"updateSubGroup -b {old} -g Odd -r 3")
    ok(two, f"updateSubGroup -b {new} -g Odd -r 9")

    def told(*arguments: str) -> dict[str, tuple[Any, str, str]]:
        done = two.run("definitions", *arguments, "--json")
        assert done.exit_code == 1, done.stderr  # because of Clash
        return {
            row["name"]: (row["has"], row["outcome"], row["why"])
            for row in json.loads(done.stdout)
            if not row["name"].startswith(("only-", "Orders", "Bills", "Billing", "Known", "Last"))
        }

    first = told()
    why = "ordered, and a key's queue would change; --withOrdered"
    assert first == {
        "Clash": ({OLD: "2/2 RW FIFO", NEW: "2/2 RW"}, "refused",
                  f"message.type is FIFO in {OLD}, NORMAL in {NEW}"),
        "Letters": ({OLD: "2/2 RW", NEW: "5/5 R"}, "changed", f"5/5 in {OLD}; left: perm"),
        "Parcels": ({OLD: "2/2 RW DELAY", NEW: "missing"}, "made", f"2/2 in {NEW}"),
        "Steps": ({OLD: "2/2 RW order", NEW: "missing"}, "left: it differs", why),
        "Odd": ({OLD: "retryMaxTimes 3", NEW: "retryMaxTimes 9"}, "left: it differs",
                "retryMaxTimes: --like BROKER"),
        "Post": ({OLD: "there", NEW: "missing"}, "made", ""),
    }  # fmt: skip
    assert told("--align", "--dryRun") == first
    assert told("--align", "--like", NEW, "--withOrdered").keys() == first.keys()
    assert {name: row[1] for name, row in told().items()} == {
        "Clash": "refused", "Letters": "left: it differs"
    }  # fmt: skip
    for name in ("Parcels", "Steps"):
        wait_until(partial(two.is_routed, name, NEW))
    assert two.order_of("Steps") == f"{OLD}:2;{NEW}:2"
    made = two.run("topicRoute", "-t", "Parcels", "--json").stdout
    assert {row["perm"] for row in json.loads(made)["queues"]} == {"RW"}
    assert topic(two, OLD, "Letters")["writeQueues"] == 5
    assert topic(two, NEW, "Letters")["perm"] == "R"


def test_definitions_shows_a_group_without_leader_and_aligns_nothing(two: Two) -> None:
    two.add_headless("group-x")
    done = two.run("definitions", "--json")
    (row,) = (row for row in json.loads(done.stdout) if row["kind"] == "broker group")
    assert (done.exit_code, row["why"]) == (1, "nobody leads group-x at the moment")
    done = two.run("definitions", "--align")
    assert (done.exit_code, done.stderr) == (1, "mqadmin: nobody leads group-x at the moment\n")
