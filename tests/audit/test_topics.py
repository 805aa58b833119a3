"""All topics of a history are judged in one audit, each by what is known of it."""

from pathlib import Path

import pytest

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.read.history import HistoryUnfit
from tests.audit.run import TOPIC, Run, message_id
from tests.audit.stores import Message

SECOND = "Trains"


def wrong(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def two_topics(root: Path) -> Run:
    """The messages of TOPIC and as many of SECOND, of the same queues and order keys."""
    run = Run.plan(root, count=24)
    for i, first in enumerate([*run.messages]):
        message = Message(
            message_id(100 + i), first.body, SECOND, queue=first.queue, order=first.order
        )
        run.messages.append(message)
        run.sent.append(message)
        run.seqs[message.id] = run.seqs[first.id]
    return run


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    run = two_topics(tmp_path_factory.mktemp("topics"))
    by_id = {message.id: message for message in run.messages}
    run.messages.remove(by_id[message_id(5)])
    run.messages.remove(by_id[message_id(105)])
    run.messages.insert(30, Message("F" * 32, b"never sent", SECOND, queue=1))
    run.bodies_sent[message_id(107)] = b"another body"
    run.store()
    for topic, done in ((TOPIC, False), (SECOND, True)):
        stored = [p for p in run.log.placed if p.message.topic == topic]
        first = [p for p in stored if p.message.queue == 0]
        offsets, ids = [p.queue_offset for p in first], [p.message.id for p in first]
        run.history.consume(0, offsets, ids, topic)
        run.history.drain(done, topic)
    return run_audit(run.write().stores, run.history_path)


def test_faults_of_every_topic_are_found(damaged: AuditReport) -> None:
    assert wrong(damaged) == {"missing", "phantom", "altered", "not_consumed"}
    for check, result in (
        ("missing", {(TOPIC, message_id(5)), (SECOND, message_id(105))}),
        ("phantom", {(SECOND, "F" * 32)}),
        ("altered", {(SECOND, message_id(107))}),
    ):
        offenders = damaged.check(check).offenders
        assert {(row["topic"], row["id_text"]) for row in offenders} == result
    assert damaged.figures["sent"] == 48
    assert damaged.figures["acknowledged"] == 48


def test_only_topics_with_finished_consumers_must_be_consumed(damaged: AuditReport) -> None:
    topics = {row["topic"] for row in damaged.check("not_consumed").offenders}
    assert topics == {SECOND}
    assert {row["topic"] for row in damaged.check("not_consumed_yet").offenders} == {TOPIC}
    assert damaged.check("not_consumed_yet").ok


def test_single_topic_can_be_audited(tmp_path: Path) -> None:
    run = two_topics(tmp_path)
    run.messages = [m for m in run.messages if m.id != message_id(105)]
    run.store().write()
    report = run_audit(run.stores, run.history_path, TOPIC)
    assert wrong(report) == set()
    assert f"sends to other topics than {TOPIC}" in " ".join(report.not_judged)


def test_history_without_sends_is_judged_by_its_other_events(tmp_path: Path) -> None:
    run = Run.plan(tmp_path, count=6)
    run.store()
    run.sent = []
    for node in ("n0", "n1"):
        run.history.event("ok", "leader", node=node, group="g", term=7)
    report = run_audit(run.write().stores, run.history_path)
    assert wrong(report) == {"two_leaders_in_one_term"}
    assert any("the history has no sends" in gap for gap in report.not_judged)


def test_history_without_events_is_rejected(tmp_path: Path) -> None:
    run = Run.plan(tmp_path, count=6)
    run.store()
    run.sent = []
    with pytest.raises(HistoryUnfit, match="nothing that can be judged"):
        run_audit(run.write().stores, run.history_path)
