"""Deferred messages and orderly work, through Spark: what only the stores tell is found in them.
And what mqchaos' checkers find in a history the audit finds, from deliveries or from records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.checks.history_checks import HistoryJudge, Record
from tests.audit.stores import BORN_MS, History, Log, Message, queue_units, write_store
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks import test_delayed, test_locks, test_retries, test_transactions
from tests.chaos.checks.judging import failed

pytestmark = pytest.mark.timeout(900)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
OF_STORES = {"post_missing", "post_phantom", "retry_sooner"}
OF_TIMES = {"times_fall"}  # these stores are written by subject, not in order of time

# ---- the histories of the checkers' own tests ------------------------------------------------


def planted_faults(module: ModuleType) -> list[Any]:
    """Return the parameters of a module's test of each planted fault."""
    (test,) = (
        value for name, value in vars(module).items() if name.endswith("_finds_each_planted_fault")
    )
    (mark,) = test.pytestmark
    return list(mark.args[1])


def planted() -> list[Any]:
    result: list[Any] = []
    for module in (test_transactions, test_delayed, test_retries):
        result.append(pytest.param(module.end(module.clean()), id=f"{module.__name__}: clean"))
        for damage, _ in planted_faults(module):
            plant = module.clean()
            damage(plant)
            result.append(pytest.param(module.end(plant), id=damage.__name__))
    result.append(pytest.param(test_locks.handed_over(), id="locks: clean"))
    for damage, _ in planted_faults(test_locks):
        plant = test_locks.handed_over()
        damage(plant)
        result.append(pytest.param(plant, id=damage.__name__))
    return result


@pytest.mark.parametrize("plant", planted())
def test_stored_records_count_as_their_deliveries(plant: HistoryBuilder) -> None:
    judge = HistoryJudge(None, log_is_complete=True)
    records: dict[tuple[str, int, int], Record] = {}
    for event in plant.records:
        judge.feed(json.dumps(event).encode())
        if event.get("f") == "deliver":
            position = (event["topic"], event["queue"], event["offset"])
            of_store = (len(records), event["store_ms"], event["times"], True)
            records.setdefault(position, Record(event["id"], *position, *of_store))
    for record in records.values():
        judge.stored(record)
    results, _ = judge.results()
    result = {check.title for check in results if not check.ok and check.name not in OF_STORES}
    assert result == failed(plant)


def test_malformed_history_events_are_named() -> None:
    judge = HistoryJudge(None, log_is_complete=True)
    for line in (
        {"type": "meta", "version": 1},
        {"type": "ok", "f": "meta_write", "op": 3, "t_ns": 1, "p": "p"},
        {"type": "ok", "f": "surprise", "op": 4, "t_ns": 2, "p": "p"},
    ):
        judge.feed(json.dumps(line).encode())
    judge.feed(b"{torn")
    (result,), _ = judge.results()
    assert (result.name, [row["op"] for row in result.offenders]) == ("history_events", [3, 4])


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
        position = {"group": "G", "topic": topic, "broker": "b", "queue": 0}
        began_ns = 10**9 * len(self.history.events)
        self.event("ok", "work", **position, began_ns=began_ns, first=first, last=last, done=True)

    def send(self, name: str, attempts: int, **more: Any) -> None:
        fields = {"id": name, "topic": "Once", "key": "", "order": "", "seq": 0} | more
        op = self.event("invoke", "send", **fields)
        result = [m for m in self.messages if m.topic == "Once"]
        self.event("ok", "send", op, queue=0, offset=len(result), attempts=attempts)

    def store(self, name: str, topic: str, store_ms: int = 10_000, **more: Any) -> None:
        self.messages.append(Message(name, b"x", topic, store_ms=store_ms, **more))

    def waits(self, name: str, store_ms: int, level: int, ms: int, times: int = 0) -> None:
        due_ms = store_ms + ms
        self.store(name, SCHEDULE, store_ms, queue=level - 1, times=times, due_ms=due_ms)

    def moves(self, name: str, came_ms: int) -> None:
        """Send a timer message, which takes a second; another group moves it here 2 s later."""
        self.post("delayed", name, delay_ms=5_000)
        self.store(name, "rmq_sys_wheel_timer", BORN_MS + 3_000)
        self.store(name, "Delayed", BORN_MS + came_ms)

    def scan(self, *open_halves: str) -> None:
        for name in open_halves:
            position = {"broker": "b", "queue": 0, "offset": 0}
            self.event("ok", "stored", work="transactions", id=name, store_ms=1, **position)
        self.event("ok", "scan", work="transactions", records=len(open_halves))

    def drain(self) -> None:
        for topic in ("Transactions", "Delayed", "Retries"):
            self.event("ok", "drain", topic=topic, group="G", complete=True)

    def audit(self, root: Path) -> AuditReport:
        log = Log(framed=False, segment_size_bytes=1 << 20)
        log.frame(0, self.messages)
        store = write_store(root / "n0" / "store", log, units=queue_units(log))
        history = self.history.write(root / "history.jsonl")
        return run_audit({"n0": store}, history, "Once", mode="classic")


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
    stored.moves("moved", 5_001)
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
    return {check.name for check in report.checks if not check.ok} - OF_TIMES


def names(report: AuditReport, check: str, key: str = "id") -> list[Any]:
    return [row[key] for row in report.check(check).offenders]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    return end(as_it_may_be()).audit(tmp_path_factory.mktemp("clean"))


def test_permitted_deferred_run_passes(clean: AuditReport) -> None:
    assert wrong(clean) == set()
    assert {check.name for check in clean.checks} >= {name for name, _ in NAMED_BY_STORE}
    assert names(clean, "duplicate_retry", "id_text") == ["retried"]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
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
    stored.post("delayed", "early", delay_ms=5_000)
    stored.waits("early", 10_000, 2, 5_000)
    stored.store("early", "Delayed", 12_000)
    stored.moves("moved early", 4_900)
    stored.post("retries", "hasty")
    stored.store("hasty", "Retries")
    stored.deliver("retries", "hasty", 2, accepted=False)
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
    return end(stored).audit(tmp_path_factory.mktemp("damaged"))


NAMED_BY_STORE = [
    ("committed_but_lost", ["commit gone"]),
    ("delivered_without_a_commit", ["resurrected"]),
    ("transactions_stored_more_than_once", ["doubled"]),
    ("half_messages_at_the_end", ["forgotten"]),
    ("post_phantom", ["made up"]),
    ("post_missing", ["never stored"]),
    ("delayed_and_lost", ["never stored", "stuck"]),
    ("delayed_but_early", ["early", "moved early"]),
    ("delayed_and_stored_more_than_once", ["made up"]),
    ("given_back_and_lost", ["hasty: neither", "hasty: given back at time 2"]),
    ("retries_stored_more_than_once", ["hasty time 2"]),
    ("retries_out_of_turn", ["hasty at b:%RETRY%G-0@7: time 7"]),
    ("retry_sooner", ["hasty"]),
    ("due_early", ["early", "hasty"]),
]


@pytest.mark.parametrize(("check", "found"), NAMED_BY_STORE)
def test_deferred_fault_visible_only_in_stores_is_named(
    damaged: AuditReport, check: str, found: list[str]
) -> None:
    offenders = damaged.check(check).offenders
    named = [str(row.get("id") or row.get("id_text") or row["what"]) for row in offenders]
    assert len(named) == len(found), named
    assert all(name.startswith(start) for name, start in zip(named, found, strict=True)), named


def test_work_on_missing_records_and_repeated_storage_are_named(damaged: AuditReport) -> None:
    assert names(damaged, "work_not_stored", "first") == [4]
    assert names(damaged, "duplicate_broker", "id_text") == ["stored again"]


def test_deferred_faults_cause_no_further_findings(damaged: AuditReport) -> None:
    named = {name for name, _ in NAMED_BY_STORE}
    # Transactions that nobody has sent have no half message, either.
    assert wrong(damaged) == named | {"work_not_stored", "duplicate_broker", "committed_unprepared"}
