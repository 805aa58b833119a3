"""Checks the files beside a store's log and queues (IndexFiles, config/, raft/)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..read.tables import Tables
from ..report.report import CheckResult
from .coverage import unread_files
from .frames import GroupFrames
from .indexes import index_check
from .raft_files import LogFacts, raft_files_check
from .table_replay import replay

OFFSETS = "consumerOffset.json"


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Results for the files beside the log, and the `gaps` in what could be checked.
    `configurations` of the log by index, and the `tables` replayed from it, are None if unknown.
    Without tables, `offsets` has the committed offsets in the stores' files."""

    results: list[CheckResult]
    gaps: list[str]
    configurations: Mapping[int, bytes] | None = None
    tables: Mapping[str, Any] | None = None
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def delivered(self) -> dict[int, int]:
        """By delay level, the offset before which all messages have been delivered, if known."""
        offsets = (self.tables or {}).get("delayOffset.json", {}).get("offsetTable", {})
        return {int(level): int(offset) for level, offset in offsets.items()}

    @property
    def committed(self) -> Mapping[str, Mapping[str, int]]:
        """By topic@group, the committed offset of each queue, from the log, else from files."""
        if self.tables is None:
            return self.offsets
        table: Mapping[str, Mapping[str, int]] = self.tables.get(OFFSETS, {}).get("offsetTable", {})
        return table


def check_store_files(tables: Tables, held: GroupFrames | None) -> StoreFiles:
    """Check the files beside the log of every store. `held` is given in Raft mode."""
    files = _store_files(tables, held)
    unread = unread_files(tables.stores)
    if unread:
        files.gaps.append(f"files: {', '.join(unread)}")
    return files


def _store_files(tables: Tables, held: GroupFrames | None) -> StoreFiles:
    if held is None:
        indexes, gaps = index_check(tables)
        gaps.append("config/: only in Raft mode is what it has in the log")
        return StoreFiles([indexes], gaps, offsets=_offsets(tables, gaps))
    configurations = held.configurations()
    replayed = replay(tables, held)
    offsets = _offsets(tables, replayed.gaps) if replayed.tables is None else {}
    if not tables.subject.queues:
        gap = "IndexFiles, raft/, and units of no message: of running replicas they are not read"
        gaps = [gap, *replayed.gaps]
        return StoreFiles([replayed.check], gaps, configurations, replayed.tables, offsets)
    indexes, gaps = index_check(tables)
    facts = LogFacts(held.terms, configurations, held.first, replayed.group_id)
    raft_files, judged = raft_files_check(tables.stores, facts)
    gaps += replayed.gaps
    if not judged:
        gaps.append("raft/: no store has files of our engine there")
    results = [indexes, replayed.check, raft_files]
    return StoreFiles(results, gaps, configurations, replayed.tables, offsets)


def _offsets(tables: Tables, gaps: list[str]) -> dict[str, dict[str, int]]:
    """Return the highest offset that any store's file has of each queue, and note damaged files in
    `gaps`. Raises OSError."""
    highest: dict[str, dict[str, int]] = {}
    for name, store in tables.stores.items():
        content = store.content(f"config/{OFFSETS}")
        if content is None:
            continue
        try:
            table = orjson.loads(content)["offsetTable"]
            for key, offsets in table.items():
                of_queues = highest.setdefault(key, {})
                for queue, offset in offsets.items():
                    of_queues[str(int(queue))] = max(of_queues.get(queue, 0), int(offset))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            gaps.append(f"committed offsets of {name}: {OFFSETS} cannot be read: {error}")
    return highest
