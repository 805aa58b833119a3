"""compare: each kind of difference between two places is counted and found."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import cast

import pytest

from raftmq.client import Message, MessageExt, MessageQueue, Producer
from raftmq.client.admin import Admin
from raftmq.client.admin.bodies import TopicOffset
from raftmq.mqadmin import compare
from tests.mqadmin.conftest import CLUSTER, NEW, OLD, Two
from tests.waiting import wait_until

NAMES = (f"compared{number}" for number in itertools.count())
A, B, C, D = (("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4"))
SAME = [A, B, C]


def store(two: Two, topic: str, group: str, messages: list[tuple[str, bytes]]) -> None:
    """Store messages in queue 0 of a broker group."""
    made = two.run("updateTopic", "-b", two.at(group), "-t", topic, "-r", "2", "-w", "2")
    assert made.exit_code == 0, made.stderr
    wait_until(lambda: group in two.run("topicRoute", "-t", topic).stdout)

    async def send() -> None:
        async with Producer("g", two.namesrv) as producer:
            for key, body in messages:
                message = Message(topic, body, unique_key=key)
                await producer.send(message, queue=MessageQueue(topic, group, 0))

    asyncio.run(send())


@pytest.mark.parametrize(
    ("old", "new", "by", "counts", "found"),
    [
        (SAME, SAME, "", "0 0 0 0", []),
        (SAME, [A, C], "", "1 0 0 0", [("missing", "b")]),
        (SAME, [A, ("b", b"x"), C], "key", "0 1 0 0", [("changed", "b")]),
        (SAME, [A, ("b", b"x"), C], "body", "1 0 0 1", [("missing", "b"), ("more", "b")]),
        (SAME, [A, B, B, C], "", "0 0 1 0", [("doubled", "b")]),
        ([A, B, B], [B, A, B], "", "0 0 0 0", []),
        (SAME, [C, A, B, D], "", "0 0 0 1", [("more", "d")]),
        (SAME, [], "", "3 0 0 0", [("missing", "a"), ("missing", "b"), ("missing", "c")]),
        (SAME, [D, A, C], "key", "1 0 0 1", [("missing", "b"), ("more", "d")]),
    ],
)  # fmt: skip
def test_compare_counts_differences_of_two_broker_groups(
    two: Two, old, new, by, counts, found
) -> None:
    topic = next(NAMES)
    store(two, topic, OLD, old)
    store(two, topic, NEW, new)
    arguments = ("compare", "--from", OLD, "--to", two.at(NEW), "-t", topic, "--json")
    done = two.run(*arguments, *(["--by", by] if by else []))
    bad = sum(map(int, counts.split()[:3]))
    assert done.exit_code == (1 if bad else 0), done.stderr
    reported = json.loads(done.stdout)
    (row,) = reported["topics"]
    assert (row["from"], row["to"]) == (len(old), len(new))
    assert " ".join(str(row[k]) for k in ("missing", "changed", "doubled", "more")) == counts
    assert sorted((d["what"], d["msgId"]) for d in reported.get("differences", ())) == found


def test_compare_matches_queues_of_one_broker_name_by_offset(two: Two) -> None:
    """As of a master and its slave, or of a store before and after a move: here it is one."""
    topic = next(NAMES)
    store(two, topic, OLD, SAME)
    host, port = two.at(OLD).split(":")
    other = f"localhost:{port}"  # the same broker by another name
    assert host == "127.0.0.1"
    done = two.run("compare", "--from", OLD, "--to", other, "-t", topic, "--json")
    reported = json.loads(done.stdout)
    assert reported["topics"][0]["by"] == "offset"
    queues = [(q["broker"], q["queue"], q["from"], q["to"]) for q in reported["queues"]]
    assert queues == [(OLD, 0, 3, 3), (OLD, 1, 0, 0)]
    assert done.exit_code == 0


class Copies:
    """Two replicas' queue 0, as an admin client's `topic` and `message`; offsets may be missing."""

    def __init__(self, **copies: dict[int, bytes]) -> None:
        self.topic = self.message = self
        self._copies = copies

    async def offsets_at(self, address: str, topic: str) -> dict[MessageQueue, TopicOffset]:
        copy = self._copies[address]
        return {MessageQueue(topic, "b", 0): TopicOffset(min(copy), max(copy) + 1, 0)}

    async def pull_at(
        self, address: str, queue: MessageQueue, offset: int, count: int
    ) -> tuple[list[MessageExt], int]:
        copy = self._copies[address]
        result = [at for at in copy if offset <= at < offset + count]
        return [_stored(at, copy[at]) for at in result], offset + count


def _stored(offset: int, body: bytes) -> MessageExt:
    properties = f"UNIQ_KEY\1k{offset}\2".encode()
    return MessageExt(
        "T", body, properties, "b", 0, offset, 0, 0, 0, 0, b"", 0, b"", 0, 0, len(body)
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({7: None}, [("missing", 7)]),
        ({0: None}, [("missing", 0)]),
        ({7: b"x", 4_000: None}, [("changed", 7), ("missing", 4_000)]),
    ],
)
def test_compare_by_offset_finds_one_difference_among_many(change, found) -> None:
    master = {offset: b"%d" % offset for offset in range(5_000)}
    slave = {at: body for at, body in (master | change).items() if body is not None}
    sides = [compare.Side(name, [name]) for name in ("master", "slave")]
    admin = cast(Admin, Copies(master=master, slave=slave))

    async def read() -> list[tuple[str, int]]:
        known = [await compare.queues_at(admin, "T", side) for side in sides]
        rows = compare.Rows([list(queues) for queues in known])
        assert await compare.read_both(admin, known, "", rows) == "offset"
        return [(what, offset) for what, _, (_, _, offset) in rows.differences()]

    assert sorted(asyncio.run(read())) == found


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--from", "none", "--to", NEW), 1, "'none' is no broker's address, group or cluster"),
        (("--from", "beheaded", "--to", NEW), 1, "nobody leads beheaded"),
        (("--from", NEW, "--to", CLUSTER), 1, "nobody leads beheaded"),
        (("--from", OLD, "--to", OLD), 2, "the same brokers"),
        (("--from", OLD, "--to", NEW, "--by", "time"), 2, "'time' is not one of"),
        (("--from", OLD, "--to", "127.0.0.1:1"), 3, "127.0.0.1:1"),
    ],
)
def test_compare_rejects_wrong_arguments(two: Two, arguments, status, says) -> None:
    two.add_headless("beheaded")
    wait_until(lambda: "beheaded" in two.run("clusterList").stdout)
    done = two.run("compare", *arguments)
    assert (done.exit_code, says in done.stderr) == (status, True), done.stderr
