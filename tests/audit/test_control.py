"""A plain loop over the formats names the same planted damage as the audit."""

import shutil
from pathlib import Path

import pytest

from tests.audit.control import judged
from tests.audit.planted import HISTORY_KINDS, STORE_KINDS, Hit, Kind, group_at
from tests.audit.run import NAMES, Run
from tests.audit.test_planted import DAMAGED, possible

KINDS = (*STORE_KINDS, *HISTORY_KINDS)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return group_at(tmp_path_factory.mktemp("group"))


def missed(sound: Run, root: Path, kind: Kind, damaged: int) -> str:
    """Return what the control finds instead of the check that has to name the damage; "" if it
    finds that."""
    shutil.copytree(sound.root, root)
    stores = {name: root / name / "store" for name in NAMES}
    hit = Hit(sound, [stores[name] for name in DAMAGED[damaged]], root / "history.jsonl")
    kind.plant(hit)
    found = judged(stores, hit.history)
    shutil.rmtree(root)
    check, place = kind.check_on(damaged), kind.directory(sound)
    rows = found.get(check, [])
    named = bool(rows) if check == "replicas" else any(place in row for row in rows)
    return "" if named else f"{kind.name} on {damaged}, {check} {place!r}: {found}"


def test_control_finds_nothing_in_an_undamaged_run(sound: Run) -> None:
    assert judged({n: Path(at) for n, at in sound.stores.items()}, sound.history_path) == {}


def test_control_names_every_kind_of_damage(sound: Run, tmp_path: Path) -> None:
    """On one, two or all replicas by turns."""
    cases = ((kind, turn % 3 + 1) for turn, kind in enumerate(KINDS))
    problems = [missed(sound, tmp_path / "copy", *case) for case in cases if possible(case)]
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.long
def test_control_names_every_kind_of_damage_for_any_number(sound: Run, tmp_path: Path) -> None:
    cases = ((kind, damaged) for kind in KINDS for damaged in (1, 2, 3))
    problems = [missed(sound, tmp_path / "copy", *case) for case in cases if possible(case)]
    assert not any(problems), "\n".join(filter(None, problems))
