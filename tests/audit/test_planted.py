"""Every kind of planted damage is named by its check, with the stores that have it and the place.

Here, kinds that can be planted together are, on one, two or all replicas by turns. `make test-long`
plants each alone on one, on two and on all, and prints the table.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.checks import coverage
from tests.audit.planted import (
    HISTORY_KINDS,
    INDEX_KINDS,
    INDEX_NAME,
    SLOTS,
    STORE_KINDS,
    Hit,
    Kind,
    group_at,
)
from tests.audit.run import NAMES, Run

pytestmark = pytest.mark.timeout(900)
PARTS = 4  # of the table, each in some minutes
DAMAGED = {1: ("n1",), 2: ("n0", "n1"), 3: NAMES}
IN_ORDER = sorted((*STORE_KINDS, *HISTORY_KINDS), key=lambda kind: kind.together)
TOGETHER = [
    (name, tuple(kinds), turn % 3 + 1)
    for turn, (name, kinds) in enumerate(
        itertools.groupby(IN_ORDER, key=lambda kind: kind.together)
    )
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return group_at(tmp_path_factory.mktemp("group"))


def audited(sound: Run, root: Path, kinds: Iterable[Kind], damaged: int) -> AuditReport:
    """Plant kinds in a copy of the group, on so many of its stores, and audit that."""
    stores, history = planted(sound, root, kinds, damaged)
    return run_audit(stores, history)


def planted(
    sound: Run, root: Path, kinds: Iterable[Kind], damaged: int
) -> tuple[dict[str, Path], Path]:
    """Plant kinds in a copy of the group; return its stores and its history."""
    shutil.copytree(sound.root, root, dirs_exist_ok=True)
    stores = {name: root / name / "store" for name in NAMES}
    hit = Hit(sound, [stores[name] for name in DAMAGED[damaged]], root / "history.jsonl")
    for kind in kinds:
        kind.plant(hit)
    return {name: store for name, store in stores.items() if store.is_dir()}, hit.history


def possible(case: tuple[Kind, int]) -> bool:
    """Return whether a store is left to audit."""
    kind, damaged = case
    return damaged < 3 or kind.check != "absent_stores"


def unnamed(report: AuditReport, run: Run, kind: Kind, damaged: int) -> str:
    """Say what is not as it has to be; empty if the damage is named."""
    name = kind.check_on(damaged)
    rows = [row for row in report.check(name).offenders if kind.directory(run) in str(row)]
    if name == "replicas":  # it tells of blocks
        rows = [*report.check(name).offenders]
    if report.check(name).ok or not rows:
        return f"{name} says nothing of {kind.directory(run)!r}: {report.check(name).offenders}"
    held_by = {copy.split("/")[0] for row in rows for copy in row.get("held_by", ())}
    if held_by & {*DAMAGED[damaged]}:
        return f"{name} takes the copies of {sorted(held_by)} for right"
    stores = {row["store"] for row in rows if "store" in row}
    if kind.names and name != "replicas" and stores and stores != {*DAMAGED[damaged]}:
        return f"{name} names {sorted(stores)}"
    return ""


def test_audit_finds_nothing_in_an_undamaged_run(sound: Run) -> None:
    report = run_audit(sound.stores, sound.history_path)
    assert {check.name for check in report.checks if not check.ok} == set()
    assert report.not_judged == tuple(coverage.unjudged(raft=True, sends=True))
    kinds = (coverage.STORE_FILES, coverage.FRAMES, coverage.COMMANDS, coverage.PROPERTIES)
    judging = {check for checks in kinds for check in checks.values() if check}
    assert judging <= {check.name for check in report.checks}


@pytest.mark.parametrize(
    ("kinds", "damaged"), [each[1:] for each in TOGETHER], ids=[each[0] for each in TOGETHER]
)
def test_planted_damage_is_named(
    sound: Run, tmp_path: Path, kinds: tuple[Kind, ...], damaged: int
) -> None:
    if not all(possible((kind, damaged)) for kind in kinds):
        damaged = 2
    report = audited(sound, tmp_path, kinds, damaged)
    problems = {kind.name: unnamed(report, sound, kind, damaged) for kind in kinds}
    assert not {name: problem for name, problem in problems.items() if problem}


@pytest.mark.parametrize("to_a_slot", [1, 3, 7])
def test_index_with_other_numbers_of_entries_is_judged(
    sound: Run, tmp_path: Path, to_a_slot: int
) -> None:
    (kind,) = (each for each in INDEX_KINDS if each.name == "an entry's hash")
    stores, history = planted(sound, tmp_path, [kind], 1)
    for store in stores.values():
        path = store / "index" / INDEX_NAME
        size = 40 + SLOTS * (4 + 20 * to_a_slot)
        path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    report = run_audit(stores, history)
    assert unnamed(report, sound, kind, 1) == ""
    assert not any("IndexFiles" in gap for gap in report.not_judged)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_table_of_planted_damage_is_complete(
    sound: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    """Each kind alone: on one, on two, on all replicas. What the audit says of it is printed."""
    lines, problems = [], []
    for kind in (*STORE_KINDS, *HISTORY_KINDS)[part::PARTS]:
        cells = []
        for damaged in (1, 2, 3) if kind in STORE_KINDS else (3,):
            if not possible((kind, damaged)):
                continue
            root = tmp_path / "copy"
            report = audited(sound, root, [kind], damaged)
            shutil.rmtree(root)
            problem = unnamed(report, sound, kind, damaged)
            if problem:
                problems.append(f"{kind.name} on {damaged}: {problem}")
            others = sorted(check.name for check in report.checks if not check.ok)
            others.remove(kind.check_on(damaged)) if not problem else None
            cells.append(f"**{kind.check_on(damaged)}** {' '.join(others)}")
        lines.append(f"| {kind.name} | {' | '.join(cells)} |")
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert not problems
