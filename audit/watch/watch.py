"""Judges what is new in the audit topic and in a directory of tables, round by round.

A round reads the next messages of the audit topic, new tables, and messages that still wait, and
judges all of them in tasks of the engine. Nothing of that size comes back but what waits. The round
is then stored as a whole (audit.watch.state).

A message that is absent is missing after `wait_s`, because replicas may only follow. While no
broker answers nothing is known of it: it is late after `wait_s`, and judged when they answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from raftmq.spark.options import Connection, options_of, read_options
from raftmq.spark.source import StreamReader

from ..engine.frames import Engine, mapped
from .consumed import Unconsumed, unconsumed_by
from .judge import (
    ABSENT,
    LATE,
    MISSING,
    UNCONSUMED,
    Acknowledged,
    Finding,
    Judge,
    Judgement,
    Part,
)
from .state import ACKNOWLEDGED, REMOVED, UNPLACED, UNREACHABLE, Round, State

GROUP = "mqaudit-watch"  # has the offsets, so that lag and drains include the watch
ROUND_MESSAGES = 1_000  # of the audit topic, with up to a thousand acknowledgements each
PART_MESSAGES = 100
PART_ROWS = 100_000  # messages that wait
TIMEOUT_MS = 10_000  # of a request; then its messages wait for the next round
KEPT_S = 3 * 86_400  # while no broker answers; an audit with --acknowledged judges for longer


@dataclass(frozen=True, slots=True)
class Subject:
    """The acknowledgements of `topic`, of the Parquet files in `tables`, or of both, and the
    progress of consumer groups."""

    connection: Connection
    topic: str
    tables: Path | None
    consumer_groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, filter(None, (self.topic, self.tables))))


class Watch:
    """Judges in rounds."""

    def __init__(self, subject: Subject, engine: Engine, state: State, wait_s: float) -> None:
        self._connection = replace(subject.connection, timeout_ms=TIMEOUT_MS)
        self._tables = subject.tables
        self._consumer_groups = subject.consumer_groups
        self._engine = engine
        self._state = state
        self._wait_ms = int(wait_s * 1000)
        self._groups_checked_ms = 0
        self._reader = None
        if subject.topic:
            self._reader = _topic_reader(self._connection, subject.topic)

    def round(self) -> bool:
        """Judge what is new; return whether that was all. Raises ClientError, RemotingError,
        EngineFailed, OSError, sqlite3.Error."""
        state, now_ms = self._state, _now_ms()
        result, rows = Round(level_ms=now_ms), 0
        parts: list[Part] = []
        if self._reader is not None:
            start = state.offsets or self._reader.initialOffset()
            result.offsets = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            ranges = self._reader.partitions(start, result.offsets)
            rows = sum(each.size for part in ranges for each in part.ranges)
            parts += ranges
        result.files = files = self._new_tables()
        waiting = state.waiting
        parts += files
        parts += [waiting[at : at + PART_ROWS] for at in range(0, len(waiting), PART_ROWS)]
        total = Judgement()
        for judgement in mapped(self._engine, Judge(self._connection), parts):
            total.add(judgement)
        result.counts.update(
            {ACKNOWLEDGED: total.judged, REMOVED: total.removed, UNPLACED: total.unplaced}
        )
        result.findings = total.findings
        result.waiting = list(self._waiting(total, _now_ms(), result.counts))
        failure = self._check_groups(result, now_ms)
        all_read = rows < ROUND_MESSAGES
        if failure is not None or not all_read:
            result.level_ms = None
        state.commit(result, _now_ms())
        if self._reader is not None and result.offsets is not None:
            self._reader.commit(result.offsets)
        if failure is not None:
            raise failure
        return all_read

    def _check_groups(self, result: Round, now_ms: int) -> Exception | None:
        """Add queues that are not consumed, ten times within the wait; return why not."""
        result.unconsumed, failure = self._state.unconsumed, None
        if self._consumer_groups and now_ms >= self._groups_checked_ms + self._wait_ms / 10:
            known = {each.queue for each in result.unconsumed}
            result.unconsumed, failure = unconsumed_by(
                *(self._connection, self._consumer_groups, now_ms - self._wait_ms),
                result.unconsumed,
            )
            result.findings += [
                Finding(UNCONSUMED, f"{_text_of(each)} for {self._wait_ms / 60_000:g} min", each)
                for each in result.unconsumed
                if each.queue not in known
            ]
            self._groups_checked_ms = now_ms if failure is None else 0
        return failure

    def _new_tables(self) -> list[str]:
        if self._tables is None:
            return []
        is_one = self._tables.is_file()
        paths = [self._tables] if is_one else self._tables.glob("*.parquet")
        return sorted({str(path) for path in paths} - self._state.files)

    def _waiting(
        self, total: Judgement, now_ms: int, counts: Counter[str]
    ) -> Iterator[Acknowledged]:
        """Yield the messages that wait on; add the findings of those that have waited enough."""
        for message, reason in total.waiting:
            seen = message._replace(first_seen_ms=message.first_seen_ms or now_ms)
            waited_ms = now_ms - seen.first_seen_ms
            if waited_ms < self._wait_ms:
                yield seen
            elif reason == ABSENT:
                counts[ACKNOWLEDGED] += 1
                total.findings.append(Finding(MISSING, reason, seen))
            elif waited_ms >= KEPT_S * 1000:
                counts[UNREACHABLE] += 1
            else:
                if not seen.late:
                    total.findings.append(Finding(LATE, reason, seen))
                yield seen._replace(late=True)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _text_of(queue: Unconsumed) -> str:
    return f"group {queue.consumer_group} has not consumed {queue.messages:,} messages"


def _topic_reader(connection: Connection, topic: str) -> StreamReader:
    """Return a stream over the audit topic, whose lost messages the tasks report."""
    given = {
        "topic": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROUND_MESSAGES),
        "maxRecordsPerPartition": str(PART_MESSAGES),
        "failOnDataLoss": "false",
        "consumerGroup": GROUP,
        "commitOffsets": "true",
    }
    return StreamReader(read_options(options_of(connection) | given, streaming=True))
