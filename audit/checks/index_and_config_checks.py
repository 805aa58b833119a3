"""Checks the files beside a store's log and queues (IndexFiles, config/, raft/)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..read.tables import Tables
from ..report.report import CheckResult
from .frames import GroupFrames, configurations_of
from .indexes import index_check
from .raft_files import LogFacts, raft_files_check
from .table_replay import replay


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Results for the files beside the log, and the `gaps` in what could be checked.
    `configurations` of the log by index, and the `tables` replayed from it, are None if unknown."""

    results: list[CheckResult]
    gaps: list[str]
    configurations: Mapping[int, bytes] | None = None
    tables: Mapping[str, Any] | None = None

    @property
    def delivered(self) -> dict[int, int]:
        """By delay level, the offset before which all messages have been delivered, if known."""
        offsets = (self.tables or {}).get("delayOffset.json", {}).get("offsetTable", {})
        return {int(level): int(offset) for level, offset in offsets.items()}


def check_store_files(tables: Tables, held: GroupFrames | None) -> StoreFiles:
    """Check the files beside the log of every store. `held` is given in Raft mode."""
    if held is None:
        indexes, gaps = index_check(tables)
        gaps.append("config/: only in Raft mode is what it has in the log")
        return StoreFiles([indexes], gaps)
    configurations = configurations_of(tables.stores, held)
    replayed = replay(tables, held)
    if not tables.subject.queues:
        gap = "ConsumeQueues, IndexFiles, raft/: of a running replica log and tables are read"
        gaps = [gap, *replayed.gaps]
        return StoreFiles([replayed.check], gaps, configurations, replayed.tables)
    indexes, gaps = index_check(tables)
    facts = LogFacts(held.terms, configurations, held.first, replayed.group_id)
    raft_files, judged = raft_files_check(tables.stores, facts)
    gaps += replayed.gaps
    if not judged:
        gaps.append("raft/: no store has files of our engine there")
    results = [indexes, replayed.check, raft_files]
    return StoreFiles(results, gaps, configurations, replayed.tables)
