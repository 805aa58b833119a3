"""Judging of hand-made histories by a suite, or by a check's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftmq.chaos.checks.suite import Suite
from raftmq.chaos.checks.verdict import Check, Verdict
from tests.chaos.builder import HistoryBuilder

LOST = "acknowledged but lost"
PHANTOMS = "phantoms"
TWICE_ACKED = "two messages acknowledged at one position"
POSITIONS = "queue positions"
BROKER_MADE = "duplicates made by brokers"
SENT_ONCE = "idempotent sends stored again"
BY_RETRY = "duplicates by client retry"
UNKNOWN_DELIVERED = "unknown but delivered"
LESS = "stored with less than promised"
REDELIVERED = "redeliveries"
QUEUE_ORDER = "order per queue"
KEY_ORDER = "order per key"
CONSUMED_ORDER = "order as consumed"
OFFSETS = "linearizable consumer offsets"
OFFSETS_BACK = "consumer offsets going back"
METADATA = "linearizable metadata"
LOCKS = "linearizable queue locks"
LEADERS = "two leaders in one term"
REPLICAS = "replicas differ"
LOGS = "failures in server logs"


def suite_of(records: Iterable[dict[str, Any]], **options: Any) -> Suite:
    suite = Suite(**options)
    for record in records:
        suite.feed(record)
    return suite


def check(plant: HistoryBuilder, name: str, **options: Any) -> Check:
    """The check of that name; a history that has nothing for it fails the test."""
    by_name = {check.name: check for check in suite_of(plant.records, **options).results()}
    assert name in by_name, f"{name} is not among {list(by_name)}"
    return by_name[name]


def failed(plant: HistoryBuilder, **options: Any) -> set[str]:
    """Names of the checks that found something wrong."""
    results = suite_of(plant.records, **options).results()
    return {check.name for check in results if check.verdict is Verdict.FAIL}
