"""definitions and copyDefinitions: what is made, what is raised, what is left, what is refused."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import pytest

from raftmq.client.admin.topics import TopicAdmin
from raftmq.client.errors import BrokerRefused
from raftmq.mqadmin.definitions import aligned_group, aligned_topic, copied_topic
from tests.mqadmin.conftest import NEW, OLD, Two
from tests.waiting import wait_until

COPY = ("copyDefinitions", "--from", OLD, "--to", NEW)


BEAN: dict[str, Any] = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False}
FIFO = {"attributes": {"message.type": "FIFO"}}


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


def test_definitions_are_copied_once_and_what_differs_is_left(two: Two) -> None:
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


def test_a_topic_whose_attributes_nobody_acts_by_is_not_made() -> None:
    attributes = {"cleanup.policy": "COMPACTION", "message.type": "NORMAL"}
    step = copied_topic("T", BEAN | {"attributes": attributes}, NEW, None, 4)
    assert (step.outcome, step.why) == ("refused", "brokers here do not act by cleanup.policy")
    step = copied_topic("U", BEAN | {"attributes": {"queue.type": "SimpleCQ"}}, NEW, None, 4)
    assert step.outcome == "made" and step.puts[NEW]["perm"] == 4


def test_a_refusal_says_at_what_and_how_far_it_is(two: Two, monkeypatch) -> None:
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
def test_what_is_asked_for_wrongly(two: Two, arguments, status, says) -> None:
    done = two.run("copyDefinitions", *arguments)
    assert (done.exit_code, says in done.stderr) == (status, True), done.stderr


def sized(read: int, write: int, **more: Any) -> dict[str, Any]:
    return BEAN | {"readQueueNums": read, "writeQueueNums": write} | more


@pytest.mark.parametrize(
    ("has", "outcome", "why", "puts"),
    [
        ((sized(4, 4), sized(4, 4)), "there already", "", {}),
        ((sized(4, 4), None), "made", "4/4 in b", {"b": (4, 4, 6)}),
        ((sized(2, 6, perm=4), sized(8, 1)), "changed", "8/6 in a, b; left: perm",
         {"a": (8, 6, 4), "b": (8, 6, 6)}),
        ((sized(4, 4), sized(4, 4, order=True)), "left: it differs", "left: order", {}),
        ((sized(4, 4, **FIFO), sized(4, 4)), "refused", "message.type is FIFO in a, NORMAL in b",
         {}),
        ((sized(4, 4, attributes={"x": "y"}), None), "refused", "brokers here do not act by x", {}),
        ((sized(4, 4, **FIFO), None), "left: it differs",
         "ordered, and a key's queue would change; --withOrdered", {}),
        ((sized(4, 4, order=True), sized(2, 2, order=True)), "left: it differs",
         "ordered, and a key's queue would change; --withOrdered", {}),
    ],
)  # fmt: skip
def test_how_a_topic_is_aligned(has, outcome, why, puts) -> None:
    step = aligned_topic("T", dict(zip("ab", has, strict=True)), with_ordered=False)
    fields = ("readQueueNums", "writeQueueNums", "perm")
    result = {name: tuple(bean[key] for key in fields) for name, bean in step.puts.items()}
    assert (step.outcome, step.why, result) == (outcome, why, puts)


def test_alignment_lowers_nothing_and_ends_at_the_second_time() -> None:
    rng = random.Random(44)
    for _ in range(500):
        has = {
            name: rng.choice([None, sized(rng.randint(1, 9), rng.randint(1, 9))]) for name in "abc"
        }
        has["d"] = sized(3, 3)
        step = aligned_topic("T", has, with_ordered=False)
        after: dict[str, Any] = {**has, **step.puts}
        for name, bean in has.items():
            for key in ("readQueueNums", "writeQueueNums"):
                assert after[name][key] == max(b[key] for b in has.values() if b)
                assert bean is None or after[name][key] >= bean[key]
        assert aligned_topic("T", after, with_ordered=False).outcome == "there already"


def test_settings_of_consumer_groups_are_left_until_a_broker_is_named() -> None:
    one, other = {"groupName": "g", "retryMaxTimes": 3}, {"groupName": "g", "retryMaxTimes": 9}
    has = {"a": one, "b": other, "c": None}
    left = aligned_group("g", has, "")
    assert (left.outcome, left.why) == ("left: it differs", "retryMaxTimes: --like BROKER")
    assert aligned_group("g", has, "c") == left  # which has none
    made = aligned_group("g", has, "b")
    assert (made.outcome, made.why, made.puts) == (
        "made", "retryMaxTimes was 3", {"a": other, "c": other}
    )  # fmt: skip
    alike = aligned_group("g", {"a": one, "b": one, "c": None}, "")
    assert (alike.outcome, alike.puts) == ("made", {"c": one})


def test_a_cluster_is_aligned_once(two: Two) -> None:
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


def test_a_group_without_a_leader_is_shown_and_nothing_is_aligned(two: Two) -> None:
    two.add_headless("group-x")
    done = two.run("definitions", "--json")
    (row,) = (row for row in json.loads(done.stdout) if row["kind"] == "broker group")
    assert (done.exit_code, row["why"]) == (1, "nobody leads group-x at the moment")
    done = two.run("definitions", "--align")
    assert (done.exit_code, done.stderr) == (1, "mqadmin: nobody leads group-x at the moment\n")
