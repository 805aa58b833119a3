"""Consumer offsets, topics and groups as registers, with planted violations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftmq.chaos.checks.order import KEPT_MAX, PrefixMax
from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.builder import HistoryBuilder, clean
from tests.chaos.checks.judging import METADATA, OFFSETS, OFFSETS_BACK, check, failed, suite_of


def broker_answers_an_older_offset(plant: HistoryBuilder) -> None:
    plant.fetched(0, 0)


def broker_knows_no_offset_any_more(plant: HistoryBuilder) -> None:
    plant.fetched(0, None)


def answer_below_an_earlier_answer(plant: HistoryBuilder) -> None:
    plant.fetched(1, 7)
    plant.fetched(1, 5)


def another_offset_than_the_unanswered_commit(plant: HistoryBuilder) -> None:
    plant.committing(0, 1, "consumer-1")
    plant.fetched(0, 0)


def joined_and_began_below_a_commit(plant: HistoryBuilder) -> None:
    plant.joined("consumer-0.2")
    plant.consumed(0, (1, "b"), process="consumer-0.2")


def a_commit_that_was_acknowledged_is_gone_later(plant: HistoryBuilder) -> None:
    plant.fetched(0, 2)
    plant.committed(0, 3)
    plant.fetched(0, 2)


def a_commit_that_was_replaced_comes_back(plant: HistoryBuilder) -> None:
    plant.committed(0, 1, process="consumer-1")  # it had taken over
    plant.fetched(0, 2)


def gone_after_it_was_read(plant: HistoryBuilder) -> None:
    plant.committing(0, 5)
    plant.fetched(0, 5)
    plant.fetched(0, 2)


def read_before_its_commit_began(plant: HistoryBuilder) -> None:
    plant.fetched(0, 3)
    plant.committed(0, 3)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (
            broker_answers_an_older_offset,
            "observer read 2 (0.0 to 0.0 ms); observer read 0 (1.0 to 1.0 ms)",
        ),
        (broker_knows_no_offset_any_more, "observer read nothing"),
        (answer_below_an_earlier_answer, "observer read 7 (0.0 to 0.0 ms); observer read 5"),
        (
            another_offset_than_the_unanswered_commit,
            "observer read 0 (2.0 to 2.0 ms)",
        ),
        (joined_and_began_below_a_commit, "consumer-0.2 joined and began at 1"),
        (a_commit_that_was_acknowledged_is_gone_later, "committed 3 (0.0 to 0.0 ms); observer"),
        (a_commit_that_was_replaced_comes_back, "consumer-1 committed 1 (0.0 to 0.0 ms); observer"),
        (
            gone_after_it_was_read,
            "observer read 2 (2.0 to 2.0 ms); under way or without an answer: c",
        ),
        (
            read_before_its_commit_began,
            "G T-0: no order explains observer read 2 (0.0 to 0.0 ms); obser",
        ),
    ],
)
def test_offset_check_finds_each_planted_fault(
    plant: Callable[[HistoryBuilder], None], words: str
) -> None:
    builder = clean()
    builder.fetched(0, 2)
    plant(builder)
    assert failed(builder) == {OFFSETS}
    result = check(builder, OFFSETS)
    assert result.count == len(result.examples) == 1
    assert words in result.examples[0]


def commits_less(plant: HistoryBuilder) -> None:
    plant.committed(0, 1)


def commits_less_after_another_one_was_replaced(plant: HistoryBuilder) -> None:
    plant.committed(0, 0, process="consumer-1")
    plant.committed(0, 2)
    plant.committed(0, 1)


def commits_less_than_another_one_may_have_set(plant: HistoryBuilder) -> None:
    plant.committing(0, 2, "consumer-1")
    plant.committed(0, 1)


def commits_less_after_its_own_had_no_answer(plant: HistoryBuilder) -> None:
    one = plant.committing(0, 1, "consumer-1")
    plant.committing(0, 0)
    plant.answered(one, 0, 1, "consumer-1")
    plant.committed(0, 2)
    plant.committed(0, 1)


@pytest.mark.parametrize(
    "plant",
    [
        commits_less,
        commits_less_after_another_one_was_replaced,
        commits_less_than_another_one_may_have_set,
        commits_less_after_its_own_had_no_answer,
    ],
)
def test_consumer_that_commits_less_than_before_is_found(
    plant: Callable[[HistoryBuilder], None],
) -> None:
    builder = clean()
    plant(builder)
    assert failed(builder) == {OFFSETS_BACK}
    assert check(builder, OFFSETS_BACK).examples == ("G T-0: consumer-0 committed 1 after 2",)


def a_reset(builder: HistoryBuilder) -> None:
    builder.committed(0, 0, "reset", "admin")
    builder.fetched(0, 0)
    builder.committed(0, 1)


def an_answer_asked_for_before_the_commit(builder: HistoryBuilder) -> None:
    asked_ns = builder.records[-1]["t_ns"]
    builder.committed(0, 9)
    builder.fetched(0, 2, invoked_ns=asked_ns)


def an_unanswered_lower_commit_that_may_have_happened(builder: HistoryBuilder) -> None:
    builder.committing(0, 1, "consumer-1")
    builder.fetched(0, 1)
    builder.fetched(0, 1)


def a_lower_commit_by_whoever_took_over(builder: HistoryBuilder) -> None:
    builder.committed(0, 1, process="consumer-1")
    builder.fetched(0, 1)


def a_commit_that_was_sent_again_and_comes_late(builder: HistoryBuilder) -> None:
    builder.committing(0, 5)
    again = builder.committing(0, 5)
    builder.fetched(0, 5)
    builder.answered(again, 0, 5)
    builder.committed(0, 7, process="consumer-1")
    builder.fetched(0, 7)
    builder.fetched(0, 5)


def two_commits_at_the_same_time(builder: HistoryBuilder) -> None:
    one, other = builder.committing(0, 5), builder.committing(0, 4, "consumer-1")
    builder.answered(one, 0, 5)
    builder.answered(other, 0, 4, "consumer-1")
    builder.fetched(0, 4)


def two_commits_at_the_same_time_the_lower_one_answered_first(builder: HistoryBuilder) -> None:
    one, other = builder.committing(0, 5), builder.committing(0, 4, "consumer-1")
    builder.answered(other, 0, 4, "consumer-1")
    builder.answered(one, 0, 5)
    builder.fetched(0, 4)


def two_commits_of_one_consumer_at_the_same_time(builder: HistoryBuilder) -> None:
    one, other = builder.committing(0, 4), builder.committing(0, 5)
    builder.answered(other, 0, 5)
    builder.answered(one, 0, 4)
    builder.fetched(0, 5)


def a_lower_commit_after_two_at_the_same_time(builder: HistoryBuilder) -> None:
    one, other = builder.committing(0, 5), builder.committing(0, 3, "consumer-1")
    builder.answered(other, 0, 3, "consumer-1")
    builder.answered(one, 0, 5)
    builder.committed(0, 4)  # it had lost the queue, and started at 3


def a_lower_commit_after_one_that_was_never_answered(builder: HistoryBuilder) -> None:
    builder.committing(0, 2, "consumer-1")
    builder.committed(0, 5)
    builder.committed(0, 4)


def a_lower_commit_after_a_reset_at_the_same_time(builder: HistoryBuilder) -> None:
    one = builder.committing(0, 5)
    builder.committed(0, 0, "reset", "admin")
    builder.answered(one, 0, 5)
    builder.committed(0, 1)


def joined_before_the_commit(builder: HistoryBuilder) -> None:
    builder.joined("consumer-1")
    builder.committed(1, 2)
    builder.consumed(1, (1, "d"), process="consumer-1")


def joined_and_began_where_a_reset_said(builder: HistoryBuilder) -> None:
    builder.joined("consumer-1")
    builder.committed(0, 0, "reset", "admin")
    builder.consumed(0, (0, "a"), process="consumer-1")


def joined_and_an_old_commit_came_through(builder: HistoryBuilder) -> None:
    builder.joined("consumer-1")
    builder.committing(0, 1, "consumer-0")
    builder.consumed(0, (1, "b"), process="consumer-1")


def the_same_queue_of_another_broker(builder: HistoryBuilder) -> None:
    builder.committed(0, 1, broker="broker-b")
    builder.fetched(0, 0, broker="broker-c")


def a_group_without_an_offset_in_a_queue_that_is_empty_at_first(builder: HistoryBuilder) -> None:
    for result in (None, 0, None):
        builder.fetched(5, result)
    builder.committed(5, 1)
    builder.fetched(5, 1)


@pytest.mark.parametrize(
    "allow",
    [
        a_commit_that_was_sent_again_and_comes_late,
        a_reset,
        an_answer_asked_for_before_the_commit,
        an_unanswered_lower_commit_that_may_have_happened,
        a_lower_commit_by_whoever_took_over,
        two_commits_at_the_same_time,
        two_commits_at_the_same_time_the_lower_one_answered_first,
        two_commits_of_one_consumer_at_the_same_time,
        a_lower_commit_after_two_at_the_same_time,
        a_lower_commit_after_one_that_was_never_answered,
        a_lower_commit_after_a_reset_at_the_same_time,
        joined_before_the_commit,
        joined_and_began_where_a_reset_said,
        joined_and_an_old_commit_came_through,
        the_same_queue_of_another_broker,
        a_group_without_an_offset_in_a_queue_that_is_empty_at_first,
    ],
)
def test_offset_check_accepts_permitted_client_behaviour(
    allow: Callable[[HistoryBuilder], None],
) -> None:
    builder = clean()
    builder.fetched(0, 2)
    allow(builder)
    assert failed(builder) == set()
    assert check(builder, OFFSETS).verdict is Verdict.PASS
    assert check(builder, OFFSETS_BACK).verdict is Verdict.PASS


def test_offset_request_takes_effect_once() -> None:
    builder = clean()
    one = builder.committing(0, 5)
    builder.answered(one, 0, 5)
    builder.committed(0, 7, process="consumer-1")
    builder.fetched(0, 5)
    assert failed(builder) == {OFFSETS}


def test_offsets_check_is_absent_without_offsets() -> None:
    results = suite_of(clean().records).results()
    assert OFFSETS not in {result.name for result in results}


# ---- metadata


def written() -> HistoryBuilder:
    builder = clean()
    builder.wrote(1)
    builder.read(1)
    builder.wrote(2)
    return builder


def an_older_version(plant: HistoryBuilder) -> None:
    plant.read(1)


def absent(plant: HistoryBuilder) -> None:
    plant.read(None)


def version_gone_after_it_was_read(plant: HistoryBuilder) -> None:
    plant.wrote(3, "unknown")
    plant.read(3)
    plant.read(2)


def a_version_nobody_wrote(plant: HistoryBuilder) -> None:
    plant.read(7)


def a_version_whose_write_had_failed(plant: HistoryBuilder) -> None:
    plant.wrote(3, "fail")
    plant.read(3)


def a_version_of_another_writer_that_was_replaced(plant: HistoryBuilder) -> None:
    plant.wrote(7, writer="other")
    plant.wrote(6)
    plant.read(7)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (an_older_version, "topic X: no order explains writer wrote version 2"),
        (absent, "reader found nothing"),
        (version_gone_after_it_was_read, "reader found version 2"),
        (a_version_nobody_wrote, "reader found version 7"),
        (a_version_whose_write_had_failed, "reader found version 3"),
        (a_version_of_another_writer_that_was_replaced, "writer wrote version 6"),
    ],
)
def test_metadata_that_went_back_are_found(
    plant: Callable[[HistoryBuilder], None], words: str
) -> None:
    builder = written()
    plant(builder)
    assert failed(builder) == {METADATA}
    (example,) = check(builder, METADATA).examples
    assert words in example


def test_metadata_writes_of_unknown_outcome_may_or_may_not_count() -> None:
    builder = written()
    early = builder.reading()
    builder.wrote(3, "unknown")
    builder.read(2)
    builder.read(3)
    builder.read(2, early)  # asked for before 3 was read
    builder.wrote(4, "fail")
    builder.wrote(5, "")  # no answer
    builder.read(5)
    builder.read(None, name="never written")
    op = builder.reading()
    builder.add("fail", "meta_read", "reader", op, error="nobody leads")
    assert failed(builder) == set()
    assert check(builder, METADATA).verdict is Verdict.PASS


def test_metadata_never_read_are_undecided() -> None:
    builder = clean()
    builder.wrote(1)
    assert check(builder, METADATA).verdict is Verdict.UNKNOWN


# ---- the rising maximum


def test_prefix_max_answers_for_moments() -> None:
    rising = PrefixMax()
    assert rising.before(5) is None
    for t_ns, value in ((10, 3), (20, 2), (30, 5), (25, 7)):
        rising.note(t_ns, value)
    # 7 had an earlier time than 5, so it is certain from 30 on.
    assert [rising.before(t) for t in (10, 11, 30, 31)] == [None, 3, 3, 7]


def test_prefix_max_is_limited_in_memory() -> None:
    rising = PrefixMax()
    for number in range(2 * KEPT_MAX + 1):
        rising.note(number, number)
    assert len(rising._times) == KEPT_MAX + 1
    assert rising.before(KEPT_MAX) is None  # forgotten, so no claim is made
    assert rising.before(2 * KEPT_MAX) == 2 * KEPT_MAX - 1
