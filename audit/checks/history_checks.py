"""Judges a history by mqchaos' checkers, with stored records as additional deliveries.

Queries compare plain sends and consumed messages with the stores (audit.checks.checks). All
remaining events are judged by chaos.checks, by the rules of docs/history.md. A record in a topic of
deferred messages counts as a delivery, because a consumer would receive it. So a message that is
stored twice, early or without a commit is detected even if no consumer of the run received it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from raftmq.chaos.checks import delayed, retries, transactions
from raftmq.chaos.checks.suite import Suite
from raftmq.chaos.checks.verdict import Check as ChaosCheck
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.assembly import Assembler
from raftmq.chaos.history.deferred_events import UNDECIDED, Delivery, Post, Stored
from raftmq.chaos.history.events import HistoryError, Kind, Outcome

from ..engine import columns as F
from ..read.system_topics import SCHEDULE_TOPIC, TIMED_TOPICS
from ..read.tables import Tables
from ..report.report import CheckResult, Offender

JUDGED_BY_QUERIES = re.compile(rb'"f":\s*"(send|consume)"')
DEFERRED = {Kind.POSTED, Kind.GIVEN_BACK, Kind.DELIVERED, Kind.SCANNED, Kind.WORKED}
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# Checks for missing messages, which prove nothing once retention has removed the log's start.
LOSSES = {
    "committed but lost",
    "half messages at the end",
    "delayed and lost",
    "given back and lost",
    "popped and lost",
}
AT_ANY_TIME_NS = 1 << 62  # the harness's clock does not show when a record was stored
REMOVED = " (retention has removed messages: not decided)"


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record of an id that the history may have. Consumers can receive it if `visible`."""

    id: str
    topic: str
    queue: int
    offset: int
    position: int
    store_ms: int
    times: int
    visible: bool
    born_ms: int = 0


class HistoryJudge:
    """Takes the lines of a history, then the records of `group` (None if there is only one group).

    `log_is_complete` is True if the log still starts at offset 0. Memory is needed for the books of
    mqchaos, and an entry per deferred message.
    """

    def __init__(self, group: str | None, *, log_is_complete: bool) -> None:
        self._kinds: set[Kind] = set()
        self._group = group
        self._log_is_complete = log_is_complete
        self._assembler = Assembler()
        self._suite = Suite()
        self._violations: list[Offender] = []  # violations of the history's format
        self._posts: dict[str, Post] = {}
        self._works: dict[str, str] = {}  # topic → workload that sends to it
        self._brokers: set[str] = set()  # the brokers that delivered messages
        self._missing: set[str] = set()  # acknowledged posts without a record or delivery yet
        self._phantoms: dict[str, Offender] = {}
        self._levels: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._decided: set[str] = set()  # transactions with a commit or rollback
        self.clocks_moved = False

    @property
    def has_deferred(self) -> bool:
        return bool(self._kinds & DEFERRED)

    @property
    def has_orderly_work(self) -> bool:
        return Kind.WORKED in self._kinds

    @property
    def topics(self) -> frozenset[str]:
        """The topics in which deferred messages are stored for consumers."""
        return frozenset(self._works)

    def feed(self, line: bytes) -> None:
        """Take a line. Lines that are no JSON object are ignored here; the audit counts them."""
        if JUDGED_BY_QUERIES.search(line):
            return
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if not isinstance(record, dict):
            return
        try:
            event = self._assembler.take(record)
            if event is not None:
                self._suite.take(*event)
                self._record(*event)
        except (HistoryError, KeyError) as error:
            self._violations.append({"op": record.get("op"), "what": str(error)})

    def _record(self, kind: Kind, event: Any) -> None:
        self._kinds.add(kind)
        if kind is Kind.POSTED:
            self._posts[event.id] = event
            self._works[event.topic] = event.work
            if event.outcome is Outcome.OK:
                self._missing.add(event.id)
        elif kind is Kind.DELIVERED:
            self._brokers.add(event.broker)
            self._missing.discard(event.id)
            if event.work == retries.WORK:
                for prefix in (retries.RETRY_PREFIX, retries.DLQ_PREFIX):
                    self._works[f"{prefix}{event.group}"] = event.work
        elif kind is Kind.WORKED:
            self._brokers.add(event.broker)
        elif kind is Kind.DECIDED and event.decision != UNDECIDED:
            self._decided.add(event.id)
        elif kind is Kind.FAULT:
            self.clocks_moved = self.clocks_moved or event.kind.startswith("clock")

    @property
    def broker(self) -> str | None:
        """The history's name of the audited group; None if it may be any of several."""
        if self._group is not None:
            return "" if self._brokers == {""} else self._group
        return min(self._brokers, default="") if len(self._brokers) < 2 else None

    def stored(self, record: Record) -> None:
        """Take a record of the log, in the log's order."""
        broker, post, work = self.broker, self._posts.get(record.id), self._works.get(record.topic)
        if broker is None:
            return
        self._missing.discard(record.id)
        if post is not None and post.topic == record.topic:
            work = post.work  # workloads may share a topic
        if work is not None and record.visible:
            if post is None or post.outcome is Outcome.FAIL:
                offender = {"id": record.id, "topic": record.topic, "position": record.position}
                self._phantoms.setdefault(record.id, offender)
            self._suite.take(
                Kind.DELIVERED,
                Delivery(
                    t_ns=AT_ANY_TIME_NS,
                    process="the audit",
                    work=work,
                    group="",
                    topic=record.topic,
                    broker=broker,
                    queue=record.queue,
                    offset=record.offset,
                    id=record.id,
                    store_ms=record.store_ms,
                    times=record.times,
                    accepted=False,
                ),
            )
        elif post is not None:
            self._waiting(record, post, broker)

    def _waiting(self, record: Record, post: Post, broker: str) -> None:
        held = Stored(
            *(AT_ANY_TIME_NS, post.work, record.id, broker),
            *(record.queue, record.offset, record.store_ms, record.born_ms),
        )
        if post.work == delayed.WORK and record.topic in TIMED_TOPICS:
            self._suite.take(Kind.STORED, held)
        elif post.work == transactions.WORK and record.topic == GIVEN_UP_TOPIC:
            if record.id not in self._decided:
                self._suite.take(Kind.STORED, held)
        elif post.work == retries.WORK and record.topic == SCHEDULE_TOPIC and record.times:
            self._levels[record.id].append((record.times, record.position, record.queue + 1))

    def results(self) -> tuple[list[CheckResult], list[str]]:
        """Return the results of all checks with events in the history, and the undecided checks'
        reasons."""
        results, undecided = [], []
        for checker in self._suite.checkers:
            if checker.essential or not checker.applies:
                continue
            check = checker.result()
            if check.verdict is Verdict.UNKNOWN:
                undecided.append(f"{check.name}: {check.detail}")
            results.append(self._result(check))
        if self._violations:
            title = "events of the history that violate its format"
            results.append(CheckResult.of_faults("history_events", title, self._violations))
        if self._posts:
            results += self._of_stores()
        if self.broker is None and self._posts:
            undecided.append("stored deferred messages: name the broker group (--group)")
        return results, undecided

    def _result(self, check: ChaosCheck) -> CheckResult:
        removed = check.name in LOSSES and not self._log_is_complete
        passed = check.verdict is Verdict.PASS and not check.count
        return CheckResult(
            check.name.replace(" ", "_"),
            check.name + (REMOVED if removed else ""),
            not removed and (passed or check.verdict is Verdict.FAIL),
            check.count,
            tuple({"what": example} for example in check.examples),
        )

    def _of_stores(self) -> Iterator[CheckResult]:
        missing = (
            self._missing if self._log_is_complete and self._brokers <= {"", self.broker} else set()
        )
        lost = [
            {"id": name, "work": self._posts[name].work, "topic": self._posts[name].topic}
            for name in sorted(missing)
        ]
        title = "deferred messages that were acknowledged, and are stored nowhere"
        yield CheckResult.of_faults("post_missing", title, lost)
        title = "stored for consumers, but never sent, or failed for certain"
        yield CheckResult.of_faults("post_phantom", title, [*self._phantoms.values()])
        if self._levels:
            title = "given back again, and made to wait for less than the time before"
            yield CheckResult.of_faults("retry_sooner", title, [*self._sooner()])

    def _sooner(self) -> Iterator[Offender]:
        for name, levels in sorted(self._levels.items()):
            ordered = sorted(levels)
            for (_, _, before), (times, position, level) in itertools.pairwise(ordered):
                if level < before:
                    levels_of = {"level_before": before, "level": level}
                    yield {"id": name, "times": times, "position": position} | levels_of


def judged_history(tables: Tables, path: str) -> HistoryJudge:
    """Judge the history at `path`, and the group's records of its deferred messages."""
    judge = HistoryJudge(tables.group, log_is_complete=tables.limits.start == 0)
    with Path(path).open("rb") as lines:
        for line in lines:
            judge.feed(line)
    if judge.topics:
        topic = F.col("topic")
        rows = (
            tables.log.where(~topic.isin(*tables.topics) | topic.isin(*judge.topics))
            .where(F.col("id_text").isNotNull())
            .select(
                "id_text", "topic", "queue_id", "queue_offset", "position", "store_timestamp",
                "reconsume_times", "visible", "born_timestamp",
            )
            .orderBy("position")
        )  # fmt: skip
        for row in rows.rows():
            judge.stored(Record(*row.values()))
    return judge
