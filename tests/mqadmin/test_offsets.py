"""Groups that only some broker groups know: their progress, and moving them."""

from __future__ import annotations

import json

from click.testing import Result

from raftmq.client.admin.offsets import OffsetAdmin
from raftmq.client.errors import BrokerUnreachable
from tests.mqadmin.conftest import CLUSTER, NEW, OLD, Two
from tests.waiting import wait_until

UNKNOWN = "group[partly] does not exist"


def ran(two: Two, command: str) -> Result:
    done = two.run(*command.split())
    assert done.exit_code == 0, done.stderr
    return done


def make_topic(two: Two, topic: str) -> None:
    """Make a topic of one queue in both broker groups, with a message in each."""
    ran(two, f"updateTopic -c {CLUSTER} -t {topic} -r 1 -w 1")
    wait_until(lambda: two.run("topicRoute", "-t", topic).stdout.count("group-") >= 4)
    for name in (OLD, NEW):
        ran(two, f"sendMessage -t {topic} -p x -b {name} -i 0")


def test_reset_moves_group_where_known_and_reports_other_brokers(two: Two) -> None:
    make_topic(two, "orders")
    ran(two, f"updateSubGroup -b {two.at(OLD)} -g partly")
    for command in ("resetOffsetByTime -s -1", "skipAccumulatedMessage"):
        done = two.run(*command.split(), "-g", "partly", "-t", "orders", "--json")
        moved, refused = json.loads(done.stdout)
        assert (done.exit_code, done.stderr) == (1, "")
        assert moved == {"broker": OLD, "queue": 0, "offset": 1}
        assert (refused["broker"], refused["queue"]) == (NEW, None)
        assert UNKNOWN in refused["offset"]


def test_consumer_progress_covers_only_brokers_that_know_the_group(two: Two) -> None:
    make_topic(two, "bills")
    ran(two, f"updateSubGroup -b {two.at(OLD)} -g here")
    ran(two, f"resetOffsetByTime -b {OLD} -g here -t bills -s 0")
    progress = json.loads(ran(two, "consumerProgress -g here --json").stdout)
    assert [(row["topic"], row["broker"]) for row in progress["queues"]] == [("bills", OLD)]
    assert progress["total"]["diffTotal"] == 1


def test_unknown_consumer_group_is_an_error(two: Two) -> None:
    make_topic(two, "parcels")
    for command in ("consumerProgress", "resetOffsetByTime -t parcels -s 0"):
        done = two.run(*command.split(), "-g", "nobody")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "group[nobody] does not exist" in done.stderr


def test_reset_reports_unanswering_broker_beside_moved_offsets(two: Two, monkeypatch) -> None:
    make_topic(two, "letters")
    ran(two, f"updateSubGroup -c {CLUSTER} -g everywhere")
    reset = OffsetAdmin.reset
    silent = two.at(NEW)
    unknown = False

    async def some_reset(self, address, *arguments, **named):
        if address == silent:
            raise BrokerUnreachable(f"{address}: refused", unknown)
        return await reset(self, address, *arguments, **named)

    monkeypatch.setattr(OffsetAdmin, "reset", some_reset)
    moving = ("skipAccumulatedMessage", "-g", "everywhere", "-t", "letters", "--json")
    done = two.run(*moving)
    assert done.exit_code == 1
    assert [row["broker"] for row in json.loads(done.stdout)] == [OLD, NEW]
    unknown = True
    done = two.run(*moving)
    assert (done.exit_code, done.stderr) == (4, "")
    moved, doubtful = json.loads(done.stdout)
    assert moved == {"broker": OLD, "queue": 0, "offset": 1}
    assert doubtful["broker"] == NEW
    assert doubtful["offset"].startswith("it is unknown whether this was done: ")
