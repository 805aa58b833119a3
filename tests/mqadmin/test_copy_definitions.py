"""copyDefinitions: what is made in the new broker group, what is left, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftmq.client.admin.topics import TopicAdmin
from raftmq.client.errors import BrokerRefused
from raftmq.mqadmin import copy_definitions as moving
from raftmq.remoting.names import SYSTEM_TOPICS
from tests.mqadmin.conftest import NEW, OLD, Two
from tests.waiting import wait_until

COPY = ("copyDefinitions", "--from", OLD, "--to", NEW)


def rows(two: Two, *arguments: str) -> dict[tuple[str, str], tuple[str, str]]:
    done = two.run(*COPY, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    return {(row["kind"], row["name"]): (row["outcome"], row["why"]) for row in found}


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
    wanted = {
        ("topic", "Orders"): ("made", ""),
        ("topic", f"only-{OLD}"): ("made", ""),
        ("topic", "Bills"): ("left: it differs", left),
        ("group", "Billing"): ("made", ""),
        ("group", "Known"): ("changed", "retryMaxTimes was 9"),
    }
    assert rows(two, "--dryRun") == wanted
    assert rows(two, "--dryRun") == wanted  # it has changed nothing
    assert rows(two) == wanted
    again = rows(two)
    assert set(again.values()) == {("there already", ""), ("left: it differs", left)}

    def routed() -> bool:
        return NEW in two.run("topicRoute", "-t", "Orders").stdout

    wait_until(routed)
    made = topic(two, NEW, "Orders")
    assert (made["readQueues"], made["writeQueues"], made["perm"]) == (3, 5, "R")
    assert topic(two, NEW, "Bills")["readQueues"] == 7


def test_a_topic_whose_attributes_nobody_acts_by_is_not_made(two: Two) -> None:
    bean = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    compacted = bean | {"attributes": {"cleanup.policy": "COMPACTION", "message.type": "NORMAL"}}
    old: dict[str, dict[str, Any]] = {
        "T": compacted,
        "U": bean,
        "%RETRY%g": bean,
        "SELF_TEST_TOPIC": bean,
        "C_REPLY_TOPIC": bean,
    }
    steps = {step.name: (step.what, step.why) for step in moving._topics(old, {}, SYSTEM_TOPICS)}
    refused = ("not copied", "brokers here do not act by cleanup.policy")
    assert steps == {"T": refused, "U": ("made", "")}


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
