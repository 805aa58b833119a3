"""The result of an audit as plain data, and as JSON.

A check with `fault` set makes the verdict false if its count is above 0. Other checks count events
that at-least-once delivery allows, such as retries stored twice and redeliveries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import orjson


class Verdict(StrEnum):
    """The meaning of a check's offenders for whoever is paged."""

    NONE = ""
    LOST = "lost"  # the group does not have, or show, what it promised to clients
    DAMAGED = "damaged"  # replicas or files beside the log, and the group has everything
    DOWN = "down"  # a broker did not answer
    BEHIND = "behind"  # a replica has yet to fetch what the group has


# Checks of single replicas, and of files that are made from the log.
DAMAGES = frozenset(
    {
        "absent_stores",
        "damage",
        "earlier",
        "frame_agreement",
        "frame_records",
        "frame_sequence",
        "index",
        "multi_queue",
        "not_indexed",
        "queue_index",
        "raft_files",
        "replicas",
        "segments",
        "tables",
    }
)
OTHERS = {"brokers_down": Verdict.DOWN, "behind": Verdict.BEHIND}
OFFENDERS_MAX = 20  # rows per check; the count is always complete

Offender = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check with `count` offenders, of which `offenders` has the first OFFENDERS_MAX."""

    name: str
    title: str
    fault: bool
    count: int
    offenders: tuple[Offender, ...] = ()
    verdict: Verdict = Verdict.NONE

    def __post_init__(self) -> None:
        if self.verdict is Verdict.NONE:
            object.__setattr__(self, "verdict", _verdict_of(self.name))

    @classmethod
    def of_faults(cls, name: str, title: str, offenders: Sequence[Offender]) -> CheckResult:
        return cls(name, title, True, len(offenders), first_of_each_store(offenders))

    @property
    def ok(self) -> bool:
        return self.count == 0 or not self.fault


def _verdict_of(check: str) -> Verdict:
    return OTHERS.get(check, Verdict.DAMAGED if check in DAMAGES else Verdict.LOST)


def first_of_each_store(
    offenders: Sequence[Offender], count_max: int = OFFENDERS_MAX
) -> tuple[Offender, ...]:
    """Return the first `count_max` in their order, with an equal share for each store."""
    met: Counter[Any] = Counter()
    ranked = []
    for rank, offender in enumerate(offenders):
        store = offender.get("store")
        ranked.append((met[store], rank))
        met[store] += 1
    chosen = sorted(rank for _, rank in sorted(ranked)[:count_max])
    return tuple(offenders[rank] for rank in chosen)


@dataclass(frozen=True, slots=True)
class Faults:
    """The first OFFENDERS_MAX offenders of each store by position, and the number of all, so that
    tasks can merge those that they find."""

    first: tuple[Offender, ...] = ()
    count: int = 0

    def merge(self, other: Faults) -> Faults:
        first: list[Offender] = []
        kept: Counter[str] = Counter()
        for offender in sorted((*self.first, *other.first), key=_position):
            kept[offender["store"]] += 1
            first += [offender] if kept[offender["store"]] <= OFFENDERS_MAX else []
        return Faults(tuple(first), self.count + other.count)

    def result(self, name: str, title: str) -> CheckResult:
        offenders = first_of_each_store(sorted(self.first, key=_position))
        return CheckResult(name, title, True, self.count, offenders)


def _position(offender: Offender) -> tuple[str, int]:
    return offender["store"], offender.get("position", -1)


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A store's log positions (audit.read.committed_range) and content."""

    store: str
    start: int
    data_end: int
    commit: int
    agreed: int
    records: int
    frames: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The verdict and its evidence. `figures` counts messages of `topic`, or of all topics if it is
    empty. `voters_source` is where the voters were read."""

    topic: str
    stores: tuple[StoreReport, ...]
    figures: Mapping[str, int]
    checks: tuple[CheckResult, ...]
    seconds: float
    mode: str = "raft"
    group: str = ""  # the audited broker group, or "" if it is the only one
    engine: str = ""  # "local" or "spark"
    voters: tuple[str, ...] = ()
    voters_source: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds per phase
    not_judged: tuple[str, ...] = ()  # gaps of the audit, with reasons
    # The group's messages by store time: start (ms), count, log position of the first.
    timeline: tuple[tuple[int, int, int], ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def verdicts(self) -> frozenset[Verdict]:
        """The kinds of its faults; empty if nothing is wrong."""
        return frozenset(check.verdict for check in self.checks if not check.ok)

    @property
    def agreed_end(self) -> int:
        """The log position up to which enough stores agree, the end of the audited log."""
        return max(store.agreed for store in self.stores)

    @property
    def fullest_store(self) -> str:
        """The name of a store that reaches `agreed_end`, to read the topic from."""
        return max(self.stores, key=lambda store: store.agreed).store

    def check(self, name: str) -> CheckResult:
        """Return the check of that name. Raises KeyError if it was not run."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def count(self, name: str) -> int:
        return self.check(name).count

    def to_json(self) -> bytes:
        """Return the report as a JSON object, with `ok` beside the fields."""
        content = {"ok": self.ok, **asdict(self)}
        return orjson.dumps(content, option=orjson.OPT_INDENT_2)
