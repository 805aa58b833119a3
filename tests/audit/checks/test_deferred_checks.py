"""Messages that come later, and orderly work, through Spark: what the chaos checkers find in a
history the audit finds in it, too; and what only the stores can tell is found in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from raftmq.audit.api import AuditReport, run_audit
from tests.audit.stores import History, Log, Message, queue_units, write_store
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks import test_delayed, test_locks, test_retries, test_transactions
from tests.chaos.checks.judging import failed

pytestmark = pytest.mark.timeout(900)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"

# By workload: check of a history → the audit's, of histories and stores.
SAME = {
    "transactions": {
        test_transactions.LOST: {"transaction_lost"},
        test_transactions.UNCOMMITTED: {"transaction_uncommitted", "post_phantom"},
        test_transactions.COPIES: {"transaction_copies"},
        test_transactions.HALVES: {"transaction_halves"},
    },
    "delayed": {
        test_delayed.LOST: {"delayed_lost"},
        test_delayed.EARLY: {"delayed_early"},
        test_delayed.COPIES: {"delayed_copies", "post_phantom"},
    },
    "retries": {
        test_retries.LOST: {"retry_lost", "retry_not_again"},
        test_retries.TURN: {"retry_out_of_turn", "post_phantom"},
        test_retries.COPIES: {"retry_copies", "retry_first_copies"},
    },
    "locks": {
        test_locks.TOGETHER: {"work_overlaps"},
        test_locks.SKIPPED: {"work_skipped"},
    },
}


# ---- the same histories ---------------------------------------------------------------------


@dataclass
class Planted:
    """A history of the chaos checkers' own tests. `number` keeps its names apart from others'."""

    number: int
    work: str
    name: str
    plant: HistoryBuilder

    def records(self) -> Iterator[dict[str, Any]]:
        for record in self.plant.records[1:]:
            if record["f"] in ("send", "consume"):
                continue
            mine = {
                key: self.apart(record[key]) for key in ("id", "topic", "group") if record.get(key)
            }
            yield record | mine | {"op": record["op"] + 1_000 * self.number}

    def apart(self, text: str) -> str:
        return f"{text}~{self.number}"

    def messages(self) -> Iterator[Message]:
        """Return the messages that were delivered, as they are stored."""
        seen = set()
        for record in self.records():
            if record["f"] == "deliver":
                place = (record["topic"], record["queue"], record["offset"])
                if place not in seen:
                    seen.add(place)
                    topic, queue, offset = place
                    more = {"store_ms": record["store_ms"], "times": record["times"]}
                    yield Message(
                        record["id"], b"x", topic, queue, queue_offset=offset, indexed=False, **more
                    )


def marked(module: ModuleType, function: str) -> list[Any]:
    (mark,) = getattr(module, function).pytestmark
    return list(mark.args[1])


def allowed_in(module: ModuleType, function: str) -> HistoryBuilder:
    """The history that this test holds to be without fault."""
    found: list[HistoryBuilder] = []

    def seen(plant: HistoryBuilder) -> set[str]:
        found.append(plant)
        return set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "failed", seen)
        getattr(module, function)()
    return found[0]


def all_planted() -> list[Planted]:
    found: list[tuple[str, str, HistoryBuilder]] = []
    for work, module in (
        ("transactions", test_transactions),
        ("delayed", test_delayed),
        ("retries", test_retries),
    ):
        found.append((work, "clean", module.end(module.clean())))
        found.append((work, "allowed", allowed_in(module, "test_what_may_be_is_no_fault")))
        for damage, _ in marked(module, "test_damage_is_found"):
            plant = module.clean()
            damage(plant)
            found.append((work, damage.__name__, module.end(plant)))
    for left_open, words in marked(
        test_transactions, "test_what_is_left_open_is_what_was_left_open"
    ):
        end = test_transactions.end
        found.append(("transactions", words, end(test_transactions.clean(), *left_open)))
    found.append(("locks", "clean", test_locks.handed_over()))
    found.append(("locks", "apart", allowed_in(test_locks, "test_queues_and_groups_are_apart")))
    for damage, _ in marked(test_locks, "test_damage_is_found"):
        plant = test_locks.handed_over()
        damage(plant)
        found.append(("locks", damage.__name__, plant))
    return [Planted(number, *more) for number, more in enumerate(found)]


PLANTED = all_planted()


@pytest.fixture(scope="module")
def same(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """All of them as one history, and one store that has what they saw."""
    root = tmp_path_factory.mktemp("same")
    history, log = History(), Log(framed=False, segment_size_bytes=1 << 20)
    log.frame(0, [message for planted in PLANTED for message in planted.messages()])
    for planted in PLANTED:
        history.events += planted.records()
    store = write_store(root / "n0" / "store", log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raftmq.audit.run.OFFENDERS_MAX", 10_000)
        return run_audit(
            spark, {"n0": store}, history.write(root / "history.jsonl"), "none", mode="classic"
        )


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p.work}: {p.name}")
def test_both_find_the_same(same: AuditReport, planted: Planted) -> None:
    found = {
        ours
        for ours, names in SAME[planted.work].items()
        for name in names
        for row in same.check(name).offenders
        if (row["topic"] if planted.work == "locks" else row["id"]).endswith(f"~{planted.number}")
    }
    assert found == failed(planted.plant)


# ---- what the stores tell -------------------------------------------------------------------


@dataclass
class Stored:
    """A run of all workloads as it may be, and what is in the store after it."""

    history: History = field(default_factory=History)
    messages: list[Message] = field(default_factory=list)
    stop: bool = False

    def event(self, kind: str, function: str, op: int | None = None, /, **fields: Any) -> int:
        fields = {"p": "x"} | fields
        number = self.history.event(kind, function, op, **fields)
        self.history.events[-1]["t_ns"] = 10**9 * len(self.history.events)
        return number

    def post(self, work: str, name: str, outcome: str = "ok", **more: Any) -> None:
        fields = {"work": work, "id": name, "topic": work.title(), "delay_ms": 0} | more
        op = self.event("invoke", "post", **fields)
        if outcome:
            self.event(outcome, "post", op, **fields, attempts=1)

    def deliver(self, work: str, name: str, offset: int, **more: Any) -> None:
        fields = {"work": work, "id": name, "topic": work.title(), "group": "G", "queue": 0}
        fields |= {"offset": offset, "store_ms": 0, "times": 0, "accepted": True, "broker": "b"}
        self.event("ok", "deliver", **fields | more)

    def decide(self, name: str, decision: str) -> None:
        op = self.event("invoke", "decide", id=name, decision=decision)
        self.event("ok", "decide", op, id=name, decision=decision)

    def back(self, name: str, times: int, dead: bool = False, tries: int = 1) -> None:
        fields = {"work": "retries", "id": name, "times": times, "seen": times, "dead": dead}
        op = self.event("invoke", "give_back", **fields)
        self.event("ok", "give_back", op, **fields, tries=tries)

    def work(self, first: int, last: int, topic: str = "Orders") -> None:
        place = {"group": "G", "topic": topic, "broker": "b", "queue": 0}
        began_ns = 10**9 * len(self.history.events)
        self.event("ok", "work", **place, began_ns=began_ns, first=first, last=last, done=True)

    def send(self, name: str, attempts: int, **more: Any) -> None:
        fields = {"id": name, "topic": "Once", "key": "", "order": "", "seq": 0} | more
        op = self.event("invoke", "send", **fields)
        found = [m for m in self.messages if m.topic == "Once"]
        self.event("ok", "send", op, queue=0, offset=len(found), attempts=attempts)

    def store(self, name: str, topic: str, store_ms: int = 10_000, **more: Any) -> None:
        self.messages.append(Message(name, b"x", topic, store_ms=store_ms, **more))

    def waits(self, name: str, store_ms: int, level: int, ms: int, times: int = 0) -> None:
        due_ms = store_ms + ms
        self.store(name, SCHEDULE, store_ms, queue=level - 1, times=times, due_ms=due_ms)

    def scan(self, *open_halves: str) -> None:
        for name in open_halves:
            self.event("ok", "stored", work="transactions", id=name, store_ms=1)
        self.event("ok", "scan", work="transactions", records=len(open_halves))

    def drain(self) -> None:
        for topic in ("Transactions", "Delayed", "Retries"):
            self.event("ok", "drain", topic=topic, group="G", complete=True)

    def audit(self, spark: SparkSession, root: Path) -> AuditReport:
        log = Log(framed=False, segment_size_bytes=1 << 20)
        log.frame(0, self.messages)
        store = write_store(root / "n0" / "store", log, units=queue_units(log))
        history = self.history.write(root / "history.jsonl")
        return run_audit(spark, {"n0": store}, history, "Once", mode="classic")


def half(stored: Stored, name: str) -> None:
    stored.post("transactions", name)
    stored.store(name, "RMQ_SYS_TRANS_HALF_TOPIC", sys_flag=4)


def as_it_may_be() -> Stored:
    stored = Stored()
    for name in ("committed", "rolled back", "open", "given up"):
        half(stored, name)
    stored.decide("committed", "commit")
    stored.store("committed", "Transactions", sys_flag=8)  # nobody got it yet
    stored.decide("rolled back", "rollback")
    stored.store("given up", "TRANS_CHECK_MAX_TIME_TOPIC")
    stored.post("delayed", "late", delay_ms=1_000, deliver_ms=7)  # a field of later versions
    stored.waits("late", 10_000, 1, 1_000)
    stored.store("late", "Delayed", 11_400)
    stored.post("delayed", "timed", delay_ms=50_000)
    stored.store("timed", "rmq_sys_wheel_timer", 10_000)
    stored.store("timed", "Delayed", 60_000)
    stored.post("retries", "once")
    stored.store("once", "Retries")
    stored.deliver("retries", "once", 0, accepted=False)
    stored.back("once", 0)
    stored.waits("once", 20_000, 3, 10_000, times=1)
    stored.store("once", "%RETRY%G", 30_000, times=1)
    stored.deliver("retries", "once", 0, topic="%RETRY%G", times=1, accepted=False)
    stored.back("once", 1)
    stored.waits("once", 40_000, 4, 30_000, times=2)
    stored.store("once", "%RETRY%G", 70_005, times=2)
    stored.deliver("retries", "once", 1, topic="%RETRY%G", times=2, accepted=False)
    stored.back("once", 2, dead=True)
    stored.store("once", "%DLQ%G", 80_000, times=2)
    stored.post("retries", "asked twice")
    stored.store("asked twice", "Retries")
    stored.deliver("retries", "asked twice", 1, accepted=False)
    stored.back("asked twice", 0, tries=2)  # the first answer did not arrive
    for asked_ms in (20_000, 21_000):
        stored.waits("asked twice", asked_ms, 3, 10_000, times=1)
    for came_ms, offset in ((30_000, 2), (31_000, 3)):
        stored.store("asked twice", "%RETRY%G", came_ms, times=1)
        stored.deliver("retries", "asked twice", offset, topic="%RETRY%G", times=1)
    for number in range(4):
        stored.store(f"o{number}", "Orders")
    stored.work(0, 1)
    stored.work(2, 3)
    stored.send("asked again", 3, once=True)
    stored.store("asked again", "Once")
    stored.send("retried", 2)
    stored.store("retried", "Once")
    stored.store("retried", "Once")
    return stored


def end(stored: Stored) -> Stored:
    stored.scan("open")
    stored.drain()
    return stored


def wrong(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def names(report: AuditReport, check: str, key: str = "id") -> list[Any]:
    return [row[key] for row in report.check(check).offenders]


@pytest.fixture(scope="module")
def clean(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    return end(as_it_may_be()).audit(spark, tmp_path_factory.mktemp("clean"))


def test_a_run_as_it_may_be_passes(clean: AuditReport) -> None:
    assert wrong(clean) == set()
    ran = {check.name for check in clean.checks}
    assert ran >= {name for checks in SAME.values() for names in checks.values() for name in names}
    assert names(clean, "duplicate_retry", "id_text") == ["retried"]


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """Deliveries saw nothing of this."""
    stored = as_it_may_be()
    half(stored, "commit gone")
    stored.decide("commit gone", "commit")
    half(stored, "resurrected")
    stored.decide("resurrected", "rollback")
    stored.store("resurrected", "Transactions", sys_flag=8)
    half(stored, "doubled")
    stored.decide("doubled", "commit")
    stored.store("doubled", "Transactions", sys_flag=8)
    stored.store("doubled", "Transactions", sys_flag=8)
    half(stored, "forgotten")
    stored.store("made up", "Delayed")
    stored.post("delayed", "never stored", delay_ms=1_000)
    stored.post("delayed", "stuck", delay_ms=1_000)
    stored.waits("stuck", 10_000, 1, 1_000)
    stored.post("delayed", "early", delay_ms=1_000)
    stored.waits("early", 10_000, 1, 1_000)
    stored.store("early", "Delayed", 10_950)
    stored.post("retries", "hasty")
    stored.store("hasty", "Retries")
    stored.deliver("retries", "hasty", 1, accepted=False)
    stored.back("hasty", 0)
    stored.waits("hasty", 20_000, 4, 30_000, times=1)
    stored.store("hasty", "%RETRY%G", 45_000, times=1)  # early
    stored.back("hasty", 1)
    stored.waits("hasty", 60_000, 3, 10_000, times=2)  # sooner
    stored.store("hasty", "%RETRY%G", 70_000, times=2)
    stored.store("hasty", "%RETRY%G", 70_000, times=2)  # twice
    stored.store("hasty", "%RETRY%G", 70_000, times=7)  # nobody gave it back so often
    stored.back("hasty", 2)  # not there again
    stored.work(4, 5)
    stored.send("stored again", 3, once=True)
    stored.store("stored again", "Once")
    stored.store("stored again", "Once")
    return end(stored).audit(spark, tmp_path_factory.mktemp("damaged"))


NAMED_BY_STORE = [
    ("transaction_lost", ["commit gone"]),
    ("transaction_uncommitted", ["resurrected"]),
    ("transaction_copies", ["doubled"]),
    ("transaction_halves", ["forgotten"]),
    ("post_phantom", ["made up"]),
    ("post_missing", ["never stored"]),
    ("delayed_lost", ["never stored", "stuck"]),
    ("delayed_early", ["early"]),
    ("retry_lost", ["hasty"]),
    ("retry_early", ["hasty"]),
    ("retry_sooner", ["hasty"]),
    ("retry_copies", ["hasty"]),
    ("retry_out_of_turn", ["hasty"]),
    ("retry_not_again", ["hasty"]),
]


@pytest.mark.parametrize(("check", "found"), NAMED_BY_STORE)
def test_what_only_the_store_tells_is_named(
    damaged: AuditReport, check: str, found: list[str]
) -> None:
    assert names(damaged, check) == found


def test_work_on_nothing_and_what_was_stored_again_are_named(damaged: AuditReport) -> None:
    assert names(damaged, "work_not_stored", "first") == [4]
    assert names(damaged, "duplicate_broker", "id_text") == ["stored again"]


def test_nothing_else_is_found(damaged: AuditReport) -> None:
    named = {name for name, _ in NAMED_BY_STORE}
    # Transactions that nobody has sent have no half message, either.
    assert wrong(damaged) == named | {"work_not_stored", "duplicate_broker", "committed_unprepared"}
