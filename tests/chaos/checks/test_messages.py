"""Messages and their order. A clean history passes; only the planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftmq.chaos.checks.ledger import DENSE_GAP_MAX, TIMES_MAX, Ledger, OffsetCounts
from raftmq.chaos.checks.messages import acknowledged_and_lost, phantoms
from raftmq.chaos.checks.order import OrderPerQueue
from raftmq.chaos.checks.suite import check_all
from raftmq.chaos.checks.verdict import EXAMPLES_MAX, Checker, Verdict, merge
from raftmq.chaos.history.assembly import Assembler
from raftmq.chaos.history.events import HistoryError
from tests.chaos.builder import HistoryBuilder, clean
from tests.chaos.checks.judging import (
    BROKER_MADE,
    BY_RETRY,
    CONSUMED_ORDER,
    KEY_ORDER,
    LESS,
    LOST,
    PHANTOMS,
    POSITIONS,
    QUEUE_ORDER,
    REDELIVERED,
    SENT_ONCE,
    TWICE_ACKED,
    UNKNOWN_DELIVERED,
    check,
    failed,
    suite_of,
)


def undrained(plant: HistoryBuilder) -> HistoryBuilder:
    plant.records = [r for r in plant.records if r.get("f") != "drain"]
    return plant


def test_clean_message_history_passes_every_check() -> None:
    results = suite_of(clean().records).results()
    assert {result.verdict for result in results} == {Verdict.PASS}
    assert {result.count for result in results} == {0}
    assert merge(results) is Verdict.PASS
    assert results == check_all(clean().build())


def test_empty_history_is_undecided() -> None:
    suite = suite_of(HistoryBuilder().records)
    assert suite.verdict() is Verdict.UNKNOWN
    assert check(HistoryBuilder(), LOST).verdict is Verdict.UNKNOWN


def lost_below_a_later_offset(plant: HistoryBuilder) -> None:
    undrained(plant)
    plant.sent("e", 0, 2)
    plant.sent("f", 0, 3)
    plant.consumed(0, (3, "f"))
    plant.wait(6)
    plant.sent("g", 1, 2)
    plant.consumed(1, (2, "g"))


def lost_at_the_end_of_a_drained_queue(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2)
    plant.drained()


def lost_in_one_group_consumed_at_the_same_place_of_another(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 7, broker="broker-a")
    plant.sent("f", 0, 7, broker="broker-b")
    plant.consumed(0, (7, "f"), broker="broker-b")
    plant.drained()


def never_sent(plant: HistoryBuilder) -> None:
    plant.consumed(0, (2, "ghost"))


def failed_for_certain_yet_there(plant: HistoryBuilder) -> None:
    plant.ended("e", "fail")
    plant.consumed(0, (2, "e"))


def failed_for_certain_after_it_was_consumed(plant: HistoryBuilder) -> None:
    op = plant.invoke("e")
    plant.consumed(0, (2, "e"))
    plant.add("fail", "send", "producer-0", op, error="", attempts=1)


def sent_to_another_topic(plant: HistoryBuilder) -> None:
    op = plant.add(
        "invoke", "send", "p", id="e", topic="Other", key="", order="", seq=0, crc=1
    )  # fmt: skip
    plant.add("unknown", "send", "p", op, error="", attempts=1)
    plant.consumed(0, (2, "e"))


def two_messages_at_one_offset(plant: HistoryBuilder) -> None:
    op = plant.invoke("e")
    plant.sent("f", 0, 2)
    plant.ok(op, 0, 2)
    plant.consumed(0, (2, "f"))
    plant.consumed(0, (3, "e"))  # it lies elsewhere


def acknowledged_where_another_one_was_consumed(plant: HistoryBuilder) -> None:
    plant.ended("u", "unknown")
    plant.consumed(0, (2, "u"))
    plant.sent("e", 0, 2, attempts=2)
    plant.consumed(0, (3, "e"))


def another_message_than_was_acknowledged(plant: HistoryBuilder) -> None:
    plant.ended("u", "unknown")
    plant.sent("e", 0, 2)
    plant.consumed(0, (2, "u"))
    plant.consumed(0, (2, "e"))


def stored_elsewhere_than_acknowledged(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2, attempts=2)
    plant.consumed(0, (3, "e"))


def stored_twice_for_one_attempt(plant: HistoryBuilder) -> None:
    plant.consumed(1, (2, "a"))


def stored_once_more_than_an_unknown_one_was_tried(plant: HistoryBuilder) -> None:
    plant.ended("u", "unknown", attempts=2)
    plant.consumed(0, (2, "u"), (3, "u"), (4, "u"))


def offsets_fell(plant: HistoryBuilder) -> None:
    """The broker forgot the end of its log and gave its offsets out again."""
    plant.sent("e", 2, 10)
    plant.sent("f", 2, 4)
    plant.consumed(2, (4, "f"), (10, "e"))


def offset_of_an_acknowledged_one_given_to_one_without_a_slave(plant: HistoryBuilder) -> None:
    """Both nodes lost the end of their logs, and the consumers had it already."""
    plant.sent("e", 0, 2)
    plant.consumed(0, (2, "e"))
    plant.sent("f", 0, 2, status="SLAVE_NOT_AVAILABLE")


def unknown_one_stored_below_what_was_there(plant: HistoryBuilder) -> None:
    plant.sent("e", 2, 5)
    plant.ended("u", "unknown")
    plant.consumed(2, (4, "u"), (5, "e"))


def unknown_one_was_consumed_before_its_end(plant: HistoryBuilder) -> None:
    plant.sent("e", 2, 5)
    op = plant.invoke("u")
    plant.consumed(2, (4, "u"), (5, "e"))
    plant.add("unknown", "send", "producer-0", op, error="broken", attempts=1)


def idempotent_one_of_unknown_outcome_lies_twice(plant: HistoryBuilder) -> None:
    op = plant.invoke("u", once=True)
    plant.add("unknown", "send", "producer-0", op, error="broken", attempts=4)
    plant.consumed(0, (2, "u"), (3, "u"))


def idempotent_one_was_stored_by_each_attempt(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 3, attempts=2, once=True)
    plant.consumed(0, (2, "e"), (3, "e"))


def later_message_stored_before(plant: HistoryBuilder) -> None:
    plant.sent("x", 1, 2)
    first = plant.invoke("e", order="k2", seq=0)
    second = plant.invoke("f", order="k2", seq=1)
    plant.records[-1]["t_ns"] += 2_000_000  # after e's answer, so only the positions are wrong
    plant.ok(first, 2, 9)
    plant.ok(second, 2, 5)
    plant.records[-2]["t_ns"] = plant.records[-3]["t_ns"] - 1
    plant.consumed(1, (2, "x"))
    plant.consumed(2, (5, "f"), (9, "e"))


def key_changed_its_queue(plant: HistoryBuilder) -> None:
    plant.sent("e", 1, 2, order="k", seq=2)
    plant.consumed(1, (2, "e"))


def key_changed_its_broker(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2, order="k", seq=2, broker="broker-b")
    plant.consumed(0, (2, "e"), broker="broker-b")


def workload_sent_two_of_a_key_at_once(plant: HistoryBuilder) -> None:
    first = plant.invoke("e", order="k", seq=2)
    second = plant.invoke("f", order="k", seq=3)
    plant.ok(first, 0, 2)
    plant.ok(second, 0, 3)
    plant.consumed(0, (2, "e"), (3, "f"))


def consumed_out_of_order(plant: HistoryBuilder) -> None:
    plant.sent("e", 0, 2, order="k", seq=2)
    plant.sent("f", 0, 3, order="k", seq=3)
    plant.consumed(0, (3, "f"), (2, "e"), orderly=True)


def consumed_out_of_order_before_it_was_acknowledged(plant: HistoryBuilder) -> None:
    op = plant.invoke("e", order="o", seq=0)
    plant.sent("f", 2, 3, order="o", seq=1)
    plant.consumed(2, (3, "f"), (2, "e"), orderly=True)
    plant.ok(op, 2, 2)


PLANTED = [
    (lost_below_a_later_offset, {LOST}, "e at T-0@2"),
    (lost_at_the_end_of_a_drained_queue, {LOST}, "e at T-0@2"),
    (lost_in_one_group_consumed_at_the_same_place_of_another, {LOST}, "e at broker-a:T-0@7"),
    (never_sent, {PHANTOMS}, "ghost at T-0@2"),
    (failed_for_certain_yet_there, {PHANTOMS}, "failed for certain"),
    (failed_for_certain_after_it_was_consumed, {PHANTOMS}, "failed for certain"),
    (sent_to_another_topic, {PHANTOMS}, "sent to Other"),
    (two_messages_at_one_offset, {TWICE_ACKED, POSITIONS}, "T-0@2 was given to f and to e"),
    (acknowledged_where_another_one_was_consumed, {POSITIONS}, "T-0@2 holds both u and e"),
    (another_message_than_was_acknowledged, {POSITIONS}, "T-0@2 holds both e and u"),
    (stored_elsewhere_than_acknowledged, {POSITIONS}, "acknowledged at T-0@2 but lies at T-0@3"),
    (stored_twice_for_one_attempt, {BROKER_MADE}, "a stored at T-0@0, T-1@2"),
    (stored_once_more_than_an_unknown_one_was_tried, {BROKER_MADE}, "after 2 attempt(s)"),
    (offsets_fell, {QUEUE_ORDER}, "f at T-2@4, sent after 10 was acknowledged"),
    (
        offset_of_an_acknowledged_one_given_to_one_without_a_slave,
        {QUEUE_ORDER},
        "f at T-0@2, sent after 2",
    ),
    (unknown_one_stored_below_what_was_there, {QUEUE_ORDER}, "u at T-2@4, sent after 5"),
    (unknown_one_was_consumed_before_its_end, {QUEUE_ORDER}, "u at T-2@4, sent after 5"),
    (idempotent_one_of_unknown_outcome_lies_twice, {SENT_ONCE}, "lies at T-0@2, T-0@3"),
    (idempotent_one_was_stored_by_each_attempt, {SENT_ONCE}, "e was sent idempotently and lies"),
    (later_message_stored_before, {KEY_ORDER, QUEUE_ORDER}, "0 lies at T-2@9, 1 at T-2@5"),
    (key_changed_its_queue, {KEY_ORDER}, "T-1@2"),
    (key_changed_its_broker, {KEY_ORDER}, "broker-b:T-0@2"),
    (workload_sent_two_of_a_key_at_once, {KEY_ORDER}, "the workload itself"),
    (consumed_out_of_order, {CONSUMED_ORDER}, "T k: 2 was delivered after 3"),
    (
        consumed_out_of_order_before_it_was_acknowledged,
        {CONSUMED_ORDER, KEY_ORDER},
        "T o: 0 was delivered after 1",
    ),
]


@pytest.mark.parametrize(
    ("plant", "names", "words"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)
def test_message_checks_find_each_planted_fault(
    plant: Callable[[HistoryBuilder], None], names: set[str], words: str
) -> None:
    builder = clean()
    plant(builder)
    assert failed(builder) == names
    examples = [text for name in names for text in check(builder, name).examples]
    assert any(words in text for text in examples), examples
    assert merge(check_all(builder.build())) is Verdict.FAIL


def test_effects_of_retries_and_unknown_sends_are_counted_not_failed() -> None:
    allowed = clean()
    allowed.sent("e", 0, 3, order="k", seq=2, attempts=2)  # its first attempt lies at 2
    allowed.ended("u", "unknown", attempts=2)
    allowed.ended("v", "unknown")
    allowed.invoke("open")
    allowed.consumed(0, (2, "e"), (3, "e"), (4, "u"), (5, "u"), (6, "open"))
    allowed.consumed(0, (2, "e"), process="consumer-1")
    allowed.drained()
    assert suite_of(allowed.records).verdict() is Verdict.PASS
    assert check(allowed, BY_RETRY).count == 2
    assert check(allowed, UNKNOWN_DELIVERED).count == 2
    assert check(allowed, REDELIVERED).count == 1


def test_unknown_send_stays_concurrent_with_later_sends() -> None:
    builder = clean()
    op = builder.invoke("late", order="k", seq=2)
    builder.add("unknown", "send", "producer-0", op, error="", attempts=1)
    builder.sent("e", 0, 2, order="k", seq=3)
    builder.consumed(0, (2, "e"), (3, "late"), orderly=True)
    assert failed(builder) == set()
    assert check(builder, CONSUMED_ORDER).verdict is Verdict.PASS


def test_last_messages_are_not_judged_without_a_drain() -> None:
    builder = undrained(clean())
    builder.drained(complete=False)
    builder.sent("e", 0, 2)
    result = check(builder, LOST)
    assert (result.verdict, result.count) == (Verdict.UNKNOWN, 1)


def test_message_in_a_consumers_buffer_is_not_lost() -> None:
    builder = undrained(clean())
    builder.sent("e", 0, 2)
    builder.sent("f", 0, 3)
    builder.consumed(0, (3, "f"))
    builder.wait(4.9)
    builder.sent("g", 0, 4)
    builder.consumed(0, (4, "g"))
    assert check(builder, LOST).verdict is Verdict.UNKNOWN
    assert check(builder, LOST, settle_ns=1_000_000_000).verdict is Verdict.FAIL
    builder.consumed(0, (2, "e"))  # at last
    assert check(builder, LOST, settle_ns=0).verdict is Verdict.PASS


def test_drain_judges_only_messages_acknowledged_before_it() -> None:
    builder = clean()
    builder.sent("e", 0, 2)
    assert check(builder, LOST).verdict is Verdict.UNKNOWN


def test_lost_messages_are_listed_completely() -> None:
    builder = clean()
    for number in range(EXAMPLES_MAX + 5):
        builder.sent(f"lost-{number}", 0, 2 + number, broker="broker-a")
    builder.drained()
    result = check(builder, LOST)
    assert (result.count, len(result.examples), len(result.lost)) == (15, EXAMPLES_MAX, 15)
    last = suite_of(builder.records).lost()[-1]
    assert (last.id, last.key, last.position) == ("lost-14", "lost-14", ("broker-a", "T", 0, 16))
    assert last.drained
    sent = next(r for r in builder.records if r.get("id") == last.id)
    assert last.op == sent["op"]
    assert last.acked_ns == next(
        r["t_ns"] for r in builder.records if r.get("op") == last.op and r["type"] == "ok"
    )


def test_loss_of_messages_stored_with_a_warning_status_is_permitted() -> None:
    builder = clean()
    for number, status in enumerate(
        ("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
    ):
        builder.sent(f"w{number}", 0, 2 + number, order="k", seq=2 + number, status=status)
    builder.consumed(0, (2, "w0"))
    builder.sent("x", 0, 3)  # where w1 was
    builder.consumed(0, (3, "x"))
    builder.drained()
    assert failed(builder) == set()
    result = check(builder, LESS)
    assert (result.count, result.verdict) == (3, Verdict.PASS)
    assert "2 of them lost" in result.detail


def test_consumed_positions_without_ids_are_matched_to_sends() -> None:
    builder = clean()
    op = builder.invoke("f")
    builder.sent("e", 0, 2)
    builder.add("ok", "consume", "c", topic="T", queue=0, offsets=[2, 3])
    builder.ok(op, 0, 3)
    builder.drained()
    assert failed(builder) == set()
    assert check(builder, LOST).verdict is Verdict.PASS


def test_copy_found_later_changes_the_order() -> None:
    """The first attempt is stored before an earlier message of its key, which its consumption
    shows."""
    builder = clean()
    builder.sent("e", 0, 5, order="k", seq=2)
    builder.sent("f", 0, 6, order="k", seq=3, attempts=2)
    assert failed(builder) == set()
    builder.consumed(0, (4, "f"), (5, "e"), (6, "f"))
    assert failed(builder) == {KEY_ORDER}


def test_examples_are_limited_and_the_count_is_not() -> None:
    plant = clean()
    for number in range(EXAMPLES_MAX + 5):
        plant.consumed(0, (10 + number, f"ghost-{number}"))
    result = check(plant, PHANTOMS)
    assert result.count == EXAMPLES_MAX + 5
    assert len(result.examples) == EXAMPLES_MAX


def test_history_with_an_id_sent_twice_is_rejected() -> None:
    plant = clean()
    plant.sent("a", 0, 2)
    with pytest.raises(HistoryError, match="two sends have the id a"):
        suite_of(plant.records)


@pytest.mark.parametrize(
    "alone",
    [
        Checker("lost", Ledger(), acknowledged_and_lost),
        Checker("phantoms", Ledger(), phantoms),
        Checker("order per queue", OrderPerQueue(Ledger()), OrderPerQueue.result),
    ],
    ids=lambda checker: checker.name,
)
def test_message_checker_works_alone(alone: Checker[Any]) -> None:
    assembler, handlers = Assembler(), alone.book.handlers()
    for record in clean().records:
        if (event := assembler.take(record)) and event[0] in handlers:
            handlers[event[0]](event[1])
    assert alone.result().verdict is Verdict.PASS
    assert alone.applies


def test_offset_counts_of_dense_and_sparse_offsets() -> None:
    counts = OffsetCounts()
    far = 2 * DENSE_GAP_MAX
    for offset in (0, 5_000, far):
        assert [counts.add(offset), counts.add(offset)] == [0, 1]
        assert offset in counts and offset + 1 not in counts
    assert len(counts._dense) < 20_000
    for offset in (0, far):
        for _ in range(TIMES_MAX + 5):
            counts.add(offset)
        assert counts.add(offset) == TIMES_MAX
    counts.add(DENSE_GAP_MAX)  # the far offset is near now
    assert (counts.add(far), counts.add(far - 1), counts.distinct) == (TIMES_MAX, 0, 5)


def test_retried_idempotent_send_must_be_stored_once() -> None:
    plant = clean()
    plant.sent("e", 0, 2, attempts=3, once=True)
    plant.sent("f", 0, 3, attempts=2)
    plant.consumed(0, (2, "e"), (3, "f"), (4, "f"))
    plant.drained()
    assert failed(plant) == set()
    assert check(plant, BY_RETRY).count == 1
    assert check(plant, SENT_ONCE).detail == "1 idempotent sends, 1 of them sent several times"
    plant.consumed(0, (5, "e"))
    assert failed(plant) == {SENT_ONCE}
    assert check(plant, BY_RETRY).count == 1
