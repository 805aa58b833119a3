"""Whole clusters in the simulator: seeds, and that a seed repeats."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from unittest.mock import patch

import pytest

from tests.simulator.apart import apart, replays
from tests.simulator.cluster.world import LONG, ClusterWorld, Wish

CHUNKS = 2
SEEDS_A_CHUNK = 8
LONG_SEEDS = range(40)
FLIPPED, LONG_FLIPPED = range(3), range(3, 12)
SET_BACK, LONG_SET_BACK = range(101, 104), range(104, 112)
TAKEN, LONG_TAKEN = range(2), range(2, 20)
TAKING_PLACES = ("take_place", "take_place", "kill", "kill_leader", "isolate", "stop_planned")
SETTING_BACK = ("set_back", "set_back", "kill", "kill_leader", "isolate", "stop_planned", "wipe")
FLIPPING = ("flip_bits", "flip_bits", "kill", "kill_leader", "isolate", "freeze", "stop_planned")
FOUND = (
    700773,  # a removed replica campaigned on, because a second change was open
    700869,  # a pop that was decided under an earlier leadership passed messages over
    730013,  # the load waited for a message that had come before its send was answered
    741487,  # a frame that rotted was mended, and power might still be cut before that is durable
    14000198,  # of the judges here: the same, and the sync of what was mended failed
    15000560,  # and of a frame that rotted before power was cut
    18001831,  # of the judges here: most clocks are off, and the leader started on an empty disk
    16000465,  # of the judges here: retention took a frame whose commit a frozen leader had to hear
    730419,  # a replica being filled said that a topic does not exist, and was believed
    747779,  # a stranger's store beside an empty one hid from the operator that it was empty
    747885,  # a transaction was given up before its producer's next heartbeat could come
    746184,  # a property that had rotted below a running replica was handed out
    746485,  # a leader kept what it wanted to hand over, and was judged by voters that came later
    53,  # what a start had dropped from the queues was missed by the next, after a power cut
    752490,  # of two commits at the same time the one answered last was taken as the last
    102,  # of the restorer here: an operator who restored onto a full disk was no operator's error
    9950038,  # a new leader took a consumer's commit for an administrator's, and undid a reset
    9950156,  # the queues of a guest without power waited until the broker gave it up, 120 s
    9900004,  # of the recorder here: a guest that lost power ended its work at the world's end
    9950484,  # of the ports here: a broker with another's name by mistake had its address
    12000160,  # of the complaints here: a broker was refused a store that its second start had
    12000471,  # files that were behind the core, whose vote was being saved, accused the others
    12000777,  # of the judges here: retention took a message, and an earlier attempt's was read
    12000793,  # of the judges here: a broker with another's name by mistake was elected
    12002004,  # a process that had been stopped for 50 s reported that nobody leads its group
    12001448,  # the same of a replica that had been cut off for so long
    12001161,  # of the judges here: a replica had acknowledged a frame, and then got an empty disk
    20000059,  # a consumer repeated a pop that was answered at once, 25,000 times per second
    49,  # of the network here: a connection hung whose other end had died with bytes unread
)
FOUND_SCALED = (
    19000002,  # a group was removed before another had the topics that were made in it
    19000007,  # a new leader of a closed group took sends until its next look at the clock
    19000073,  # a replica that had just started had no definitions yet, and was taken for a new one
    19000075,  # the same
    22000046,  # a group was removed while no other was listed, and took a new topic with it
    22000061,  # a group was removed between a half message's check and the next look at it
)
SCALED, LONG_SCALED = FOUND_SCALED[:1], (*FOUND_SCALED[1:], *range(30))
SCALED_OPERATIONS_MIN = 150  # they are few, since most faults leave a group without a leader
BRIEF = {"faults_s": 1.0, "refilled": False, "timed": False, "operated": False}
OPERATIONS_MIN, FAULTS_MIN = 500, 20  # of a seed, on average over a chunk


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_simulated_clusters_keep_every_guarantee(chunk: int) -> None:
    seeds = range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK)
    totals = apart(played, seeds, Wish())
    judge(totals, SEEDS_A_CHUNK)
    assert totals["popped"] > 0
    assert totals["filled"] > 0
    assert totals["read late"] > 0
    assert totals["guests"] > 0
    assert totals["asked"] > 0
    if not chunk % 2:  # what a few worlds of sixteen have
        assert totals["files spoiled"] > 0
        assert totals["fault lose_time"] > 0
    else:
        assert totals["settings changed"] > 0
        assert totals["taken while they waited"] > 0


@pytest.mark.long
def test_recorded_failing_seeds_pass() -> None:
    judge(apart(played, FOUND, Wish()), 0)


@pytest.mark.parametrize("seeds", [FLIPPED, pytest.param(LONG_FLIPPED, marks=pytest.mark.long)])
def test_simulated_clusters_tolerate_bit_flips_between_replicas(seeds: range) -> None:
    judge(apart(played, seeds, Wish(faults=FLIPPING)), len(seeds))


@pytest.mark.parametrize("seeds", [SET_BACK, pytest.param(LONG_SET_BACK, marks=pytest.mark.long)])
def test_simulated_clusters_tolerate_rolled_back_disks(seeds: range) -> None:
    totals = apart(played, seeds, Wish(faults=SETTING_BACK, profile={"operated": False}))
    judge(totals, len(seeds))
    assert totals["set back"] >= max(1, len(seeds) // 4)


@pytest.mark.parametrize("seeds", [TAKEN, pytest.param(LONG_TAKEN, marks=pytest.mark.long)])
def test_simulated_clusters_tolerate_exchanged_stores(seeds: range) -> None:
    totals = apart(played, seeds, Wish(faults=TAKING_PLACES, profile={"operated": False}))
    judge(totals, len(seeds))


@pytest.mark.parametrize("seeds", [SCALED, pytest.param(LONG_SCALED, marks=pytest.mark.long)])
def test_simulated_clusters_tolerate_broker_groups_that_join_and_leave(
    seeds: Sequence[int],
) -> None:
    totals = apart(played, seeds, Wish(profile={"scaled": True}))
    assert totals["operations"] >= SCALED_OPERATIONS_MIN * len(seeds)
    assert totals["faults"] >= FAULTS_MIN * len(seeds)
    assert totals["contents compared"] > 0
    assert totals["joins"] > 0
    if len(seeds) > 1:  # what some worlds have
        assert totals["groups removed"] > 0
        assert totals["topics deleted"] > 0


@pytest.mark.long
def test_simulated_clusters_keep_every_guarantee_over_long_runs() -> None:
    judge(apart(played, LONG_SEEDS, Wish(size=LONG)), len(LONG_SEEDS))


def judge(totals: Counter[str], worlds: int) -> None:
    """Check that the worlds were not idle: else their silence would prove nothing."""
    assert totals["operations"] >= OPERATIONS_MIN * worlds
    assert totals["faults"] >= FAULTS_MIN * worlds
    assert totals["acknowledged"] > 0
    assert totals["tables compared"] > 0
    assert totals["contents compared"] > 0
    assert totals["checks without evidence"] <= worlds // 4


def played(seeds: Iterable[int], wish: Wish) -> Counter[str]:
    """Play these seeds; return their numbers, summed up."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        totals.update(ClusterWorld(seed, wish=wish).run())
    return totals


@pytest.mark.long
def test_seed_repeats_to_the_bit_in_any_process() -> None:
    """Also where strings hash differently: no order may come out of a set. (Each run of the suite
    holds that of a changed schedule: test_cluster_search.py.)"""
    traces = replays(["-m", "tests.simulator", "--verbose", "3"], ("1", "2"))
    assert b"'operations'" in traces[0]
    assert b"\ndigest " in traces[0]
    assert traces[0] == traces[1]


def test_seed_gives_the_same_world_on_any_host() -> None:
    """Whatever its address, its time zone, its memory, its limits and its name are."""
    here = apart(digest_on, "10.1.2.3", "UTC", 1 << 18, 48)
    assert here == apart(digest_on, "192.168.100.200", "Asia/Tokyo", 1 << 24, 1 << 16)


def digest_on(address: str, zone: str, pages: int, files: int) -> int:
    """Return the digest of a short world that is played on this host, as its programs see it."""
    memory = {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096, "SC_CLK_TCK": 99}
    os.environ["TZ"] = zone
    time.tzset()
    with (
        patch.object(socket.socket, "getsockname", lambda _: (address, 0)),
        patch.object(socket, "gethostname", lambda: address),
        patch.object(os, "sysconf", memory.__getitem__),
        patch.object(resource, "getrlimit", lambda _: (files, files)),
    ):
        world = ClusterWorld(3, wish=Wish(("pop", "idempotent"), profile=BRIEF))
        world.run()
    return world.digest()
