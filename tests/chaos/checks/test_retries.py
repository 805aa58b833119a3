"""Retries and dead letters that are lost, doubled or unjustified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.events import HistoryError
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks.judging import check, failed, suite_of

LOST = "given back and lost"
TURN = "retries out of turn"
COPIES = "retries stored more than once"
W: dict[str, Any] = {"work": "retries"}
AGAIN: dict[str, Any] = {"work": "retries", "topic": "%RETRY%G"}
DEAD: dict[str, Any] = {"work": "retries", "topic": "%DLQ%G"}


def clean() -> HistoryBuilder:
    """`once` fails once, `dead` three times (the maximum is 2), `fine` never."""
    plant = HistoryBuilder()
    for name in ("fine", "once", "dead"):
        plant.posted(name, **W)
    plant.delivered("fine", 0, **W)
    plant.delivered("once", 1, accepted=False, **W)
    plant.given_back("once", 0)
    plant.delivered("once", 0, times=1, **AGAIN)
    plant.delivered("dead", 2, accepted=False, **W)
    plant.given_back("dead", 0)
    plant.delivered("dead", 1, times=1, accepted=False, **AGAIN)
    plant.given_back("dead", 1)
    plant.delivered("dead", 2, times=2, accepted=False, **AGAIN)
    plant.given_back("dead", 2, dead=True)
    plant.delivered("dead", 0, times=3, **DEAD)
    return plant


def end(plant: HistoryBuilder) -> HistoryBuilder:
    plant.drained()
    return plant


def test_clean_retry_history_passes() -> None:
    results = {c.name: c.verdict for c in suite_of(end(clean()).records).results()}
    assert results == dict.fromkeys((LOST, TURN, COPIES), Verdict.PASS)


def test_dead_letter_moves_from_a_group_that_leaves() -> None:
    plant = clean()
    plant.delivered("dead", 0, times=3, broker="another", **DEAD)
    results = {c.name: c.verdict for c in suite_of(end(plant).records).results()}
    assert results == dict.fromkeys((LOST, TURN, COPIES), Verdict.PASS)


def never_delivered(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)


def lost_once_given_back(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.delivered("x", 7, accepted=False, **W)
    plant.given_back("x", 0, "unknown")


def lost_although_the_broker_had_it(plant: HistoryBuilder) -> None:
    plant.given_back("fine", 0)  # was also accepted; only the answer was broken


def no_dead_letter(plant: HistoryBuilder) -> None:
    plant.given_back("once", 2, dead=True)


def came_again_uncalled(plant: HistoryBuilder) -> None:
    plant.delivered("fine", 7, times=1, **AGAIN)


def came_again_with_a_wrong_count(plant: HistoryBuilder) -> None:
    plant.delivered("once", 7, times=2, **AGAIN)


def resurrected_from_the_dead_letters(plant: HistoryBuilder) -> None:
    plant.delivered("dead", 7, times=4, **AGAIN)


def dead_too_early(plant: HistoryBuilder) -> None:
    plant.delivered("once", 7, times=1, **DEAD)


def nobody_sent_it(plant: HistoryBuilder) -> None:
    plant.delivered("ghost", 7, **W)


def came_again_twice(plant: HistoryBuilder) -> None:
    plant.delivered("once", 7, times=1, **AGAIN)


def two_dead_letters(plant: HistoryBuilder) -> None:
    plant.delivered("dead", 7, times=3, **DEAD)


def sent_once_and_stored_twice(plant: HistoryBuilder) -> None:
    plant.delivered("fine", 7, **W)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (never_delivered, LOST),
        (lost_once_given_back, LOST),
        (lost_although_the_broker_had_it, LOST),
        (no_dead_letter, LOST),
        (came_again_uncalled, TURN),
        (came_again_with_a_wrong_count, TURN),
        (resurrected_from_the_dead_letters, TURN),
        (dead_too_early, TURN),
        (nobody_sent_it, TURN),
        (came_again_twice, COPIES),
        (two_dead_letters, COPIES),
        (sent_once_and_stored_twice, COPIES),
    ],
)
def test_retry_check_finds_each_planted_fault(
    damage: Callable[[HistoryBuilder], None], name: str
) -> None:
    plant = clean()
    damage(plant)
    assert failed(end(plant)) == {name}


def test_retry_check_accepts_permitted_histories() -> None:
    plant = clean()
    plant.posted("x", attempts=2, **W)
    plant.delivered("x", 7, accepted=False, **W)  # a client's own retry makes two copies
    plant.delivered("x", 8, accepted=False, **W)
    plant.given_back("x", 0, tries=2)
    plant.delivered("x", 7, times=1, **AGAIN)  # asked for twice
    plant.delivered("x", 8, times=1, **AGAIN)
    plant.given_back("x", 0, "unknown", tries=3)
    # No broker took it back; the client delivered it by itself, and counted.
    plant.posted("y", **W)
    plant.delivered("y", 9, accepted=False, **W)
    plant.given_back("y", 0, "unknown", tries=3)
    plant.delivered("y", 9, accepted=False, **W)
    plant.given_back("y", 0, seen=1)
    plant.delivered("y", 9, times=2, **AGAIN)
    assert failed(end(plant)) == set()


def test_retry_loss_is_undecided_without_a_complete_drain() -> None:
    plant = clean()
    never_delivered(plant)
    plant.drained(complete=False)
    assert check(plant, LOST).verdict is Verdict.UNKNOWN


def test_contradictory_retry_history_is_rejected() -> None:
    plant = HistoryBuilder()
    plant.given_back("x", 0)
    with pytest.raises(HistoryError, match="never sent"):
        suite_of(plant.records)
    plant = clean()
    plant.posted("fine", **W)
    with pytest.raises(HistoryError, match="two messages"):
        suite_of(plant.records)
