"""Consumer offsets, topics and groups that went back: what is wrong is found, and only that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftmq.chaos.checks.offsets import UNANSWERED_MAX
from raftmq.chaos.checks.prefix import KEPT_MAX, PrefixMax
from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.builder import HistoryBuilder, clean
from tests.chaos.checks.judging import METADATA, OFFSETS, check, failed


def committed_offset_went_back(plant: HistoryBuilder) -> None:
    plant.committed(0, 1)


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


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (committed_offset_went_back, "G T-0: consumer-0 committed 1 after 2"),
        (broker_answers_an_older_offset, "read 0 after 2"),
        (broker_knows_no_offset_any_more, "read nothing after 2"),
        (answer_below_an_earlier_answer, "read 5 after 7"),
        (another_offset_than_the_unanswered_commit, "read 0 after 2"),
        (joined_and_began_below_a_commit, "consumer-0.2 began at 1 though 2 had been"),
    ],
)
def test_planted_fault_is_found(plant: Callable[[HistoryBuilder], None], words: str) -> None:
    builder = clean()
    plant(builder)
    assert failed(builder) == {OFFSETS}
    found = check(builder, OFFSETS)
    assert found.count == len(found.examples) == 1
    assert words in found.examples[0]


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


@pytest.mark.parametrize(
    "allow",
    [
        a_reset,
        an_answer_asked_for_before_the_commit,
        an_unanswered_lower_commit_that_may_have_happened,
        a_lower_commit_by_whoever_took_over,
        two_commits_at_the_same_time,
        two_commits_at_the_same_time_the_lower_one_answered_first,
        joined_before_the_commit,
        joined_and_began_where_a_reset_said,
        joined_and_an_old_commit_came_through,
        the_same_queue_of_another_broker,
    ],
)
def test_what_clients_do_themselves_is_not_blamed(allow: Callable[[HistoryBuilder], None]) -> None:
    builder = clean()
    allow(builder)
    assert failed(builder) == set()
    assert check(builder, OFFSETS).verdict is Verdict.PASS


def test_unanswered_commits_are_bounded() -> None:
    builder = clean()
    for _ in range(UNANSWERED_MAX):
        builder.committing(0, 1, "consumer-1")
    builder.fetched(0, 1)
    assert failed(builder) == set()
    builder.committed(0, 9)
    builder.committing(0, 3, "consumer-1")
    for _ in range(UNANSWERED_MAX):
        builder.committing(0, 4, "consumer-1")
    builder.fetched(0, 3)  # its commit is forgotten by now
    assert failed(builder) == {OFFSETS}


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


def gone_after_it_was_read(plant: HistoryBuilder) -> None:
    plant.wrote(3, "unknown")
    plant.read(3)
    plant.read(2)


def a_version_nobody_wrote(plant: HistoryBuilder) -> None:
    plant.read(7)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (an_older_version, "topic X has version 1 after 2"),
        (absent, "topic X is absent after 2"),
        (gone_after_it_was_read, "topic X has version 2 after 3"),
        (a_version_nobody_wrote, "topic X has version 7, which nobody wrote"),
    ],
)
def test_metadata_that_went_back_is_found(
    plant: Callable[[HistoryBuilder], None], words: str
) -> None:
    builder = written()
    plant(builder)
    assert failed(builder) == {METADATA}
    (example,) = check(builder, METADATA).examples
    assert words in example


def test_metadata_that_may_or_may_not_count() -> None:
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


def test_metadata_never_read_is_undecided() -> None:
    builder = clean()
    builder.wrote(1)
    assert check(builder, METADATA).verdict is Verdict.UNKNOWN


# ---- the rising maximum


def test_prefix_max_answers_for_moments() -> None:
    rising = PrefixMax()
    assert rising.before(5) is None and rising.last is None
    for t_ns, value in ((10, 3), (20, 2), (30, 5), (25, 7)):
        rising.note(t_ns, value)
    # 7 came with an earlier time than 5: it is taken as certain from 30 on.
    assert [rising.before(t) for t in (10, 11, 30, 31)] == [None, 3, 3, 7]
    rising.clear()
    assert rising.before(99) is None


def test_prefix_max_is_bounded() -> None:
    rising = PrefixMax()
    for number in range(2 * KEPT_MAX + 1):
        rising.note(number, number)
    assert len(rising._times) == KEPT_MAX + 1
    assert rising.before(KEPT_MAX) is None  # forgotten: no claim is made
    assert rising.before(2 * KEPT_MAX) == 2 * KEPT_MAX - 1
