"""When leadership goes to the preferred replica, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from raftmq.dledger.node.leadership_transfer import LAG_FRAMES_MAX, hindrance_of
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Change, ChangeKind, founding
from raftmq.dledger.raft.preferred_leader import Preference, PreferenceLimits, Seen

LIMITS = PreferenceLimits()
STEP_MS = 100.0
GOOD = Seen("n0", 7, "n0", "n1", ready=True, at_hand=True)


class Replica:
    """A replica that looks every 100 ms, and does as it is told."""

    def __init__(self, limits: PreferenceLimits = LIMITS) -> None:
        self.preference = Preference(limits)
        self.now_ms = 1_000.0

    def look(self, seen: Seen) -> str | None:
        self.now_ms += STEP_MS
        return self.preference.look(seen, self.now_ms)

    def until_told(self, seen: Seen, for_ms: float) -> float | None:
        """After how long it is told to hand over; None: not within `for_ms`."""
        begun_ms = self.now_ms
        while self.now_ms - begun_ms < for_ms:
            if self.look(seen) is not None:
                return self.now_ms - begun_ms
        return None

    def passes(self, seen: Seen, for_ms: float) -> None:
        assert self.until_told(seen, for_ms) is None


def led_by(leader: str, term: int) -> Seen:
    return replace(GOOD, leader=leader, term=term, ready=leader == "n0")


def about(found: float | None, wanted_ms: float) -> bool:
    return found is not None and wanted_ms <= found <= wanted_ms + 3 * STEP_MS


def test_it_goes_to_the_preferred_one_once_that_has_been_able_for_a_while() -> None:
    replica = Replica()
    assert about(replica.until_told(GOOD, 60_000), LIMITS.steady_ms)
    assert replica.preference.reason == "leadership goes to n1"
    replica.passes(replace(GOOD, transferring=True), 800)
    replica.passes(led_by("n1", 8), 120_000)
    assert replica.preference.reason == "n1 leads"


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({"preferred": ""}, "nobody is preferred"),
        ({"preferred": "n0"}, "n0 leads"),
        ({"ready": False}, "the leader sees to it"),
        ({"leader": "n2", "ready": False}, "the leader sees to it"),
        ({"hindrance": "n1 is recovering"}, "n1 is recovering"),
        ({"busy": "n2 is being refilled"}, "n2 is being refilled"),
        ({"transferring": True}, "leadership is being handed over"),
        ({"at_hand": False}, "n1 lacks the newest frames"),
    ],
)
def test_what_stands_against_it(changes: dict[str, object], standing: str) -> None:
    replica = Replica()
    against = replace(GOOD, **changes)  # type: ignore[arg-type]
    replica.passes(against, 120_000)
    assert replica.preference.reason == standing
    wait_ms = STEP_MS if changes == {"at_hand": False} else LIMITS.steady_ms
    assert about(replica.until_told(GOOD, 60_000), wait_ms)


def test_a_moment_of_trouble_starts_the_wait_anew() -> None:
    replica = Replica()
    for _ in range(10):
        replica.passes(GOOD, LIMITS.steady_ms - 2 * STEP_MS)
        assert replica.look(replace(GOOD, hindrance="n1 is silent")) is None
    assert about(replica.until_told(GOOD, 60_000), LIMITS.steady_ms)


def test_a_hand_over_that_comes_to_nothing_doubles_the_wait_up_to_the_limit() -> None:
    replica = Replica()
    waits = []
    for _ in range(12):
        told = replica.until_told(GOOD, 2 * LIMITS.back_off_ms_max)
        assert told is not None
        waits.append(told)
        replica.passes(replace(GOOD, transferring=True), 1_000)
    assert about(waits[0], LIMITS.steady_ms)
    for number, wait in enumerate(waits[1:]):
        wanted = min(LIMITS.back_off_ms_max, LIMITS.back_off_ms * 2**number)
        per_minute = 60_000 if number == 1 else 0  # the third in a minute would be one too many
        assert wanted <= wait <= max(wanted + 300, per_minute), (number, wait)
    replica.preference.look(GOOD, replica.now_ms)
    assert replica.preference.reason.startswith("n1 has been able for 0 s")


def test_no_more_than_so_many_moves_in_a_minute_whoever_made_them() -> None:
    limits = replace(LIMITS, moves_per_minute_max=3, settled_ms=0)  # no leadership is too short
    replica = Replica(limits)
    moves = []
    term = 7
    while replica.now_ms < 400_000:  # somebody takes leadership away from it all the time
        assert replica.until_told(replace(GOOD, term=term), 120_000) is not None
        moves.append(replica.now_ms)
        replica.passes(led_by("n1", term + 1), 500)
        term += 2
        replica.look(led_by("n0", term))
    for first, fourth in zip(moves, moves[3:], strict=False):
        assert fourth - first >= 60_000
    assert len(moves) >= 16  # but so many


def test_a_follower_counts_what_others_move() -> None:
    replica = Replica(replace(LIMITS, settled_ms=0))
    for term in (1, 3):
        replica.passes(led_by("n2", term), 8_000)
        replica.passes(led_by("n1", term + 1), 8_000)
    first_ms = 9_100.0  # when n1 led first
    assert replica.until_told(led_by("n0", 5), 120_000) is not None
    assert first_ms + 60_000 <= replica.now_ms <= first_ms + 60_000 + STEP_MS


def test_a_short_leadership_counts_as_a_failure_and_a_long_one_forgives() -> None:
    replica = Replica()
    replica.passes(led_by("n1", 1), 3_000)  # it led for a moment, and somebody else was elected
    assert about(replica.until_told(led_by("n0", 2), 60_000), LIMITS.back_off_ms - STEP_MS)
    replica.passes(led_by("n1", 3), 3_000)
    assert about(replica.until_told(led_by("n0", 4), 120_000), 2 * LIMITS.back_off_ms - STEP_MS)
    replica.passes(led_by("n1", 5), LIMITS.settled_ms + 1_000)
    assert about(replica.until_told(led_by("n0", 6), 60_000), LIMITS.steady_ms)


def test_somebody_else_was_elected() -> None:
    replica = Replica()
    assert replica.until_told(GOOD, 60_000) is not None
    replica.passes(led_by("n2", 8), 1_000)  # not the one it was handed to
    assert about(replica.until_told(led_by("n0", 9), 60_000), LIMITS.back_off_ms - 1_000)


def test_nobody_known_to_lead_is_no_news() -> None:
    replica = Replica()
    replica.passes(led_by("n1", 1), LIMITS.settled_ms + 1_000)
    replica.passes(replace(led_by("n1", 2), leader=None), 2_000)
    replica.passes(led_by("n1", 2), 1_000)
    assert about(replica.until_told(led_by("n0", 3), 60_000), LIMITS.steady_ms)


def test_another_preferred_one_starts_anew() -> None:
    replica = Replica()
    assert replica.until_told(GOOD, 60_000) is not None
    replica.passes(GOOD, 4_000)  # given up
    other = replace(GOOD, preferred="n2")
    assert about(replica.until_told(other, 60_000), LIMITS.steady_ms)


NOW_MS = 10_000.0


@pytest.mark.parametrize(
    ("changes", "words", "at_hand"),
    [
        ({}, "", True),
        ({"match_index": 100 - LAG_FRAMES_MAX}, "", True),
        ({"match_index": 99 - LAG_FRAMES_MAX}, "", False),
        ({"lag_bytes": (1 << 20) + 1}, "n1 lacks 1048577 bytes of the log", True),
        ({"recovering": 4711}, "n1 is recovering", True),
        ({"recovering": None}, "n1 has not been heard yet", True),
        ({"heard_ms": NOW_MS - CoreConfig().election_ms_min}, "", True),
        ({"heard_ms": NOW_MS - CoreConfig().election_ms_min - 1}, "n1 is silent", True),
        ({"open": False}, "n1 is not connected", True),
        (
            {"no_room": True},
            "n1 should not lead: its disk is short of room or slow, or its clock is wrong",
            True,
        ),
    ],
)
def test_what_hinders_a_replica(changes: dict[str, object], words: str, at_hand: bool) -> None:
    good: dict[str, object] = {
        "peer": "n1", "recovering": 0, "heard_ms": NOW_MS, "match_index": 100, "lag_bytes": 0,
        "open": True, "no_room": False,
    }  # fmt: skip
    other = SimpleNamespace(**(good | changes))
    configuration = founding([("n0", "h:1"), ("n1", "h:2")])
    core = SimpleNamespace(
        progress={"n1": other},
        membership=SimpleNamespace(voters=configuration.voters),
        config=CoreConfig(),
        last_index=100,
        lag_bytes=lambda progress: progress.lag_bytes,
    )
    found = hindrance_of("n1", core, lambda peer: other.open, NOW_MS)  # type: ignore[arg-type]
    assert found == (words, at_hand)


def test_who_is_gone_or_does_not_vote_cannot_lead() -> None:
    learner = founding([("n0", "h:1")]).after(Change(ChangeKind.ADD_LEARNER, "n1", "h:2"))
    membership = SimpleNamespace(voters=learner.voters)
    core = SimpleNamespace(progress={"n1": None}, membership=membership)
    words, _ = hindrance_of("n1", core, lambda peer: True, NOW_MS)  # type: ignore[arg-type]
    assert words == "n1 is no other voter of this group"
