"""Every checker passes a clean history and finds the one fault planted for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checks.checkers import (
    CHECKS,
    EXAMPLES_MAX,
    Check,
    Verdict,
    check_all,
    check_broker_duplicates,
    check_leaders,
    check_lost,
    check_offsets,
    check_order,
    check_phantom,
    check_positions,
    count_redeliveries,
    count_retry_duplicates,
    count_unknown_delivered,
    merge,
)
from chaos.history.events import History
from tests.chaos.builder import HistoryBuilder, clean


def test_clean_history_passes_everything() -> None:
    checks = check_all(clean().build())
    assert [check.verdict for check in checks] == [Verdict.PASS] * len(CHECKS)
    assert [check.count for check in checks] == [0] * len(CHECKS)
    assert merge(checks) is Verdict.PASS


def test_empty_history_proves_nothing() -> None:
    assert merge(check_all(HistoryBuilder().build())) is Verdict.UNKNOWN


def lost_below_a_later_offset(plant: HistoryBuilder) -> None:
    plant.records = [r for r in plant.records if r.get("f") != "drain"]
    plant.sent("e", 0, 2)
    plant.sent("f", 0, 3)
    plant.consumed(0, (3, "f"))


def lost_at_the_end_of_a_drained_queue(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2)


def never_sent(plant: HistoryBuilder) -> None:
    plant.consumed(0, (2, "ghost"))


def failed_for_certain_yet_there(plant: HistoryBuilder) -> None:
    plant.ended("e", "fail")
    plant.consumed(0, (2, "e"))


def two_messages_at_one_offset(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 1)


def stored_elsewhere_than_acknowledged(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2)
    plant.consumed(0, (3, "e"))


def stored_twice_for_one_attempt(plant: HistoryBuilder) -> None:
    plant.consumed(1, (2, "a"))


def committed_offset_went_back(plant: HistoryBuilder) -> None:
    plant.committed(0, 1)


def broker_answers_an_older_offset(plant: HistoryBuilder) -> None:
    plant.committed(0, 0, "fetch")


def later_message_stored_before(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 3, order="k", seq=2)
    plant.sent("f", 0, 2, order="k", seq=3)


def key_changed_its_queue(plant: HistoryBuilder) -> None:
    plant.sent("e", 1, 2, order="k", seq=2)


def workload_sent_two_of_a_key_at_once(plant: HistoryBuilder) -> None:
    first = plant.invoke("e", order="k", seq=2)
    second = plant.invoke("f", order="k", seq=3)
    plant.ok(first, 0, 2)
    plant.ok(second, 0, 3)


def second_leader_in_a_term(plant: HistoryBuilder) -> None:
    plant.leader("n1", 1)


@pytest.mark.parametrize(
    ("fault", "checker", "words"),
    [
        (lost_below_a_later_offset, check_lost, "e at T-0@2"),
        (lost_at_the_end_of_a_drained_queue, check_lost, "e at T-0@2"),
        (never_sent, check_phantom, "ghost at T-0@2"),
        (failed_for_certain_yet_there, check_phantom, "failed for certain"),
        (two_messages_at_one_offset, check_positions, "T-0@1 holds both b and e"),
        (stored_elsewhere_than_acknowledged, check_positions, "acknowledged at T-0@2"),
        (stored_twice_for_one_attempt, check_broker_duplicates, "a stored at T-0@0, T-1@2"),
        (committed_offset_went_back, check_offsets, "committed 1 after 2"),
        (broker_answers_an_older_offset, check_offsets, "read 0 after 2"),
        (later_message_stored_before, check_order, "2 lies at T-0@3"),
        (key_changed_its_queue, check_order, "T-1@2"),
        (workload_sent_two_of_a_key_at_once, check_order, "the workload itself"),
        (second_leader_in_a_term, check_leaders, "term 1: n0, n1"),
    ],
)
def test_planted_fault_is_found(
    fault: Callable[[HistoryBuilder], None], checker: Callable[[History], Check], words: str
) -> None:
    plant = clean()
    fault(plant)
    found = checker(plant.build())
    assert found.verdict is Verdict.FAIL
    assert found.count == len(found.examples) == 1
    assert words in found.examples[0]
    assert merge(check_all(plant.build())) is Verdict.FAIL


def test_what_retries_and_unknown_sends_may_do_is_counted_not_blamed() -> None:
    allowed = clean()
    allowed.sent("e", 0, 3, order="k", seq=2, attempts=2)  # its first attempt lies at 2
    allowed.ended("u", "unknown", attempts=2)
    allowed.ended("v", "unknown")
    allowed.invoke("open")
    allowed.consumed(0, (2, "e"), (3, "e"), (4, "u"), (5, "u"), (6, "open"))
    allowed.consumed(0, (2, "e"), process="consumer-1")
    allowed.drained()
    history = allowed.build()
    assert merge(check_all(history)) is Verdict.PASS
    assert count_retry_duplicates(history).count == 2
    assert count_unknown_delivered(history).count == 2
    assert count_redeliveries(history).count == 1


def test_unknown_send_stays_concurrent_with_later_ones() -> None:
    builder = clean()
    op = builder.invoke("late", order="k", seq=2)
    builder.add("unknown", "send", "producer-0", op, error="", attempts=1)
    builder.sent("e", 0, 2, order="k", seq=3)
    builder.consumed(0, (2, "e"), (3, "late"))
    assert check_order(builder.build()).verdict is Verdict.PASS


def test_without_a_drain_the_tail_is_not_judged() -> None:
    builder = clean()
    builder.records = [r for r in builder.records if r.get("f") != "drain"]
    builder.drained(complete=False)
    builder.sent("e", 0, 2)
    found = check_lost(builder.build())
    assert (found.verdict, found.count) == (Verdict.UNKNOWN, 1)


def test_examples_are_bounded_but_the_count_is_not() -> None:
    plant = clean()
    for number in range(EXAMPLES_MAX + 5):
        plant.consumed(0, (10 + number, f"ghost-{number}"))
    found = check_phantom(plant.build())
    assert found.count == EXAMPLES_MAX + 5
    assert len(found.examples) == EXAMPLES_MAX
