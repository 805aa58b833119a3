"""spreadTopic: each broker group gets its share of a topic's queues, and no message is hidden."""

from __future__ import annotations

import asyncio
import json
import random
from functools import partial
from typing import Any

import pytest

from raftmq.client.admin.bodies import Progress, TopicOffset
from raftmq.client.message import MessageQueue
from raftmq.mqadmin.runner import LATER
from raftmq.mqadmin.spread_topic import Work, opened, shares, unconsumed
from tests.mqadmin.conftest import CLUSTER, NEW, OLD, Two
from tests.waiting import wait_until


def sized(read: int, write: int) -> dict[str, Any]:
    return {"readQueueNums": read, "writeQueueNums": write, "perm": 6, "order": False}


def test_queue_shares_differ_by_at_most_one_and_sum_to_all_queues() -> None:
    assert shares(24, ["b", "a", "c"]) == {"a": 8, "b": 8, "c": 8}
    assert shares(25, ["b", "a", "c"]) == {"a": 9, "b": 8, "c": 8}
    rng = random.Random(24)
    for _ in range(200):
        names = [f"g{number:02}" for number in range(rng.randint(1, 20))]
        queues = rng.randint(len(names), 200)
        result = shares(queues, names)
        counts = [result[name] for name in names]
        assert sum(counts) == queues and counts[0] - counts[-1] <= 1
        assert counts == sorted(counts, reverse=True)


def test_spread_topic_opens_queues_and_keeps_all_read_queues() -> None:
    rng = random.Random(25)
    for _ in range(500):
        has: dict[str, Any] = {
            name: rng.choice([None, sized(rng.randint(1, 9), rng.randint(1, 9))]) for name in "abc"
        }
        has["d"] = sized(3, 3)
        share = shares(rng.randint(4, 30), has)
        after = opened(has, share)
        for name, bean in after.items():
            assert bean["writeQueueNums"] == share[name]
            before = has[name]["readQueueNums"] if has[name] else 0
            assert bean["readQueueNums"] == max(before, share[name])
        assert opened(after, share) == after


def test_spread_topic_keeps_a_queue_until_all_groups_have_consumed_it() -> None:
    def queue(number: int) -> MessageQueue:
        return MessageQueue("T", "a", number)

    def progress(*consumed: int) -> dict[MessageQueue, Progress]:
        return {queue(n): Progress(10, offset, offset, 0) for n, offset in enumerate(consumed)}

    offsets = {queue(n): TopicOffset(start, 10, 0) for n, start in enumerate((0, 0, 7, 10))}
    groups = {"fast": progress(10, 10, 10, 10), "slow": progress(4, 4, 4, 4)}

    def left(groups: dict, first: int) -> list[tuple]:
        rows = unconsumed(offsets, groups, first)
        return [(row["queue"], row["messages"], row["groups"]) for row in rows]

    assert left(groups, 0) == [(0, 6, ["slow"]), (1, 6, ["slow"]), (2, 3, ["slow"])]
    assert left(groups, 2) == [(2, 3, ["slow"])]
    assert left({"fast": groups["fast"]}, 0) == []
    assert left({}, 1) == [(1, 10, []), (2, 3, [])]


def spread(two: Two, *arguments: str) -> tuple[int, dict[str, tuple], list[tuple]]:
    done = two.run("spreadTopic", *arguments, "--wait", "0", "--json")
    assert done.exit_code in (0, LATER), done.stderr
    reported = json.loads(done.stdout)
    queues = reported if isinstance(reported, list) else reported["queues"]
    left: list[dict[str, Any]] = [] if isinstance(reported, list) else reported["not consumed"]
    return (
        done.exit_code,
        {row["broker"]: (row["before"], row["after"], row["outcome"]) for row in queues},
        [(row["broker"], row["queue"], row["messages"], row["groups"]) for row in left],
    )


def ok(two: Two, *arguments: str) -> str:
    done = two.run(*arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_spread_topic_closes_consumes_then_removes_surplus_queues(two: Two) -> None:
    ok(two, "updateTopic", "-b", two.at(OLD), "-t", "Wide", "-r", "6", "-w", "6")
    wait_until(lambda: two.run("topicRoute", "-t", "Wide").exit_code == 0)
    for queue in ("0", "3", "4"):
        ok(two, "sendMessage", "-t", "Wide", "-p", "x", "-b", OLD, "-i", queue)
    requested = ("-t", "Wide", "--queues", "6")
    closing = {OLD: ("6/6", "5/3", "changed"), NEW: ("", "3/3", "made")}
    left: list[tuple] = [(OLD, 3, 1, []), (OLD, 4, 1, [])]
    assert spread(two, *requested, "--dryRun") == (0, closing, left)
    assert spread(two, *requested) == (LATER, closing, left)
    there = {OLD: ("5/3", "5/3", "there already"), NEW: ("3/3", "3/3", "there already")}
    assert spread(two, *requested) == (LATER, there, left)
    wait_until(partial(two.is_routed, "Wide", NEW))
    for _ in range(12):  # producers use each open queue, and no closed one
        ok(two, "sendMessage", "-t", "Wide", "-p", "y")
    status = json.loads(ok(two, "topicStatus", "-t", "Wide", "--json"))
    ends = {(row["broker"], row["queue"]): row["maxOffset"] for row in status}
    assert [ends[OLD, queue] for queue in (3, 4)] == [1, 1]
    assert sum(ends.values()) == 15

    ok(two, "updateSubGroup", "-c", CLUSTER, "-g", "late", "-r", "3")
    ok(two, "resetOffsetByTime", "-g", "late", "-t", "Wide", "-b", OLD, "-q", "3", "-o", "1",
       "-s", "0")  # fmt: skip
    assert spread(two, *requested) == (LATER, there, [(OLD, 4, 1, ["late"])])
    ok(two, "resetOffsetByTime", "-g", "late", "-t", "Wide", "-s", "-1")
    done = {OLD: ("5/3", "3/3", "changed"), NEW: ("3/3", "3/3", "there already")}
    assert spread(two, *requested) == (0, done, [])
    wider = {OLD: ("3/3", "4/4", "changed"), NEW: ("3/3", "3/3", "there already")}
    assert spread(two, "-t", "Wide", "--queues", "7") == (0, wider, [])


def test_spread_topic_gives_no_queues_to_a_draining_group(two: Two) -> None:
    ok(two, "updateTopic", "-b", two.at(OLD), "-t", "Kept", "-r", "4", "-w", "4")
    ok(two, "drainGroup", "-b", NEW)
    try:
        status, after, left = spread(two, "-t", "Kept", "--queues", "4")
        assert (status, left) == (0, []) and after == {OLD: ("4/4", "4/4", "there already")}
        listed = json.loads(ok(two, "definitions", "--json"))
        assert "Kept" not in [row["name"] for row in listed]
    finally:
        ok(two, "drainGroup", "-b", NEW, "--cancel")


def test_spread_topic_updates_order_topic_queues_for_clients(two: Two) -> None:
    ok(two, "updateTopic", "-b", two.at(OLD), "-t", "Rows", "-r", "4", "-w", "4", "-o", "true")
    wait_until(lambda: two.run("topicRoute", "-t", "Rows").exit_code == 0)
    status, after, left = spread(two, "-t", "Rows", "--queues", "4", "--withOrdered")
    assert (status, left) == (0, [])
    assert after == {OLD: ("4/4", "2/2", "changed"), NEW: ("", "2/2", "made")}
    assert two.order_of("Rows") == f"{OLD}:2;{NEW}:2"


def test_spread_topic_closes_an_ordered_topic_until_it_is_consumed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send() -> bool:
        return two.run("sendMessage", "-t", "Keyed", "-p", "x", "-b", OLD, "-i", "3").exit_code == 0

    requested = ("spreadTopic", "-t", "Keyed", "--queues", "4", "--withOrdered", "--wait", "0")
    kinds = "+message.type=FIFO"
    ok(two, "updateTopic", "-b", two.at(OLD), "-t", "Keyed", "-r", "4", "-w", "4", "-a", kinds)
    wait_until(lambda: two.run("topicRoute", "-t", "Keyed").exit_code == 0)
    wait_until(send)
    ok(two, "updateSubGroup", "-c", CLUSTER, "-g", "late", "-r", "3")
    failed = two.run(*requested, "--within", "0")
    assert failed.exit_code == 1 and "1 messages are not consumed" in failed.stderr
    assert "has its old queues again" in failed.stderr
    wait_until(send)
    until_consumed = Work.until_consumed

    async def consumed_meanwhile(*arguments: Any) -> None:
        assert not await asyncio.to_thread(send)
        skipped = "resetOffsetByTime", "-g", "late", "-t", "Keyed", "-s", "-1"
        await asyncio.to_thread(ok, two, *skipped)
        await until_consumed(*arguments)

    monkeypatch.setattr(Work, "until_consumed", consumed_meanwhile)
    done = two.run(*requested, "--within", "60")
    assert done.exit_code == 0, done.stderr
    wait_until(lambda: two.run("sendMessage", "-t", "Keyed", "-p", "y", "-b", OLD, "-i", "1")
               .exit_code == 0)  # fmt: skip
    assert not send()  # its queue went to the other group


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("-t", "None", "--queues", "4"), 1, "no broker group of the cluster has topic None"),
        (("-t", "Keys", "--queues", "1"), 2, "each of the 2 broker groups gets a queue"),
        (("-t", "Keys", "--queues", "4"), 1, "topic Keys: ordered, and a key's queue would"),
        (("-t", "Both", "--queues", "4"), 1, f"FIFO in {OLD}, NORMAL in {NEW}"),
        (("-t", "Keys", "--queues", "4", "-c", "Other"), 1, "there is no cluster 'Other'"),
    ],
)
def test_spread_topic_rejection_changes_nothing(two: Two, arguments, status, says) -> None:
    for name, topic, kind in (
        (OLD, "Keys", "FIFO"),
        (OLD, "Both", "FIFO"),
        (NEW, "Both", "NORMAL"),
    ):
        kinds = f"+message.type={kind}"
        ok(two, "updateTopic", "-b", two.at(name), "-t", topic, "-r", "6", "-w", "6", "-a", kinds)
    done = two.run("spreadTopic", *arguments)
    assert (done.exit_code, says in done.stderr) == (status, True), done.stderr
    for topic in ("Keys", "Both"):
        wait_until(partial(two.is_routed, topic, OLD))
        route = json.loads(ok(two, "topicRoute", "-t", topic, "--json"))
        assert {row["writeQueues"] for row in route["queues"]} == {6}
