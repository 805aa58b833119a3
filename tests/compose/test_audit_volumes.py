"""deploy/audit_volumes.py: which groups there are, and when there is nothing to audit."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.compose.stage import ROOT


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = importlib.util.spec_from_file_location("av", ROOT / "deploy" / "audit_volumes.py")
    assert result is not None and result.loader is not None
    module: Any = importlib.util.module_from_spec(result)
    result.loader.exec_module(module)
    module.STORES, module.RUNS = tmp_path / "stores", tmp_path / "runs"
    for node in ("a/n0", "a/n1", "b/n2"):
        (module.STORES / node / "store" / "commitlog").mkdir(parents=True)
    (module.STORES / "pair" / "m0").mkdir(parents=True)
    for run in ("one", "two"):
        (module.RUNS / run).mkdir(parents=True)
        (module.RUNS / run / "history.jsonl").touch()
    return module


def run(script, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["raftmq-audit", *words])
    return script.main()


def test_audited_groups_are_those_with_a_log(script):
    stores = script.stores_of(script.STORES)
    names = {group: [node.name for node in nodes] for group, nodes in stores.items()}
    assert names == {"a": ["n0", "n1"], "b": ["n2"]}


def test_audit_covers_all_or_the_named_groups(script, monkeypatch):
    requested = []

    def audit(*given):
        requested.append(given)
        return 0

    monkeypatch.setattr(script, "audit", audit)
    assert run(script, monkeypatch, "--run", "one", "--topic", "T") == 0
    assert run(script, monkeypatch, "--run", "two", "b") == 0
    assert [(path.parent.name, topic, list(groups)) for path, topic, groups in requested] == [
        ("one", "T", ["a", "b"]),
        ("two", "", ["b"]),
    ]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--run", "three"], "no "),
        (["--run", "one", "c"], "no stores of c; there are: a, b"),
    ],
)
def test_missing_audit_input_exits_with_2(script, monkeypatch, capsys, words, said):
    assert run(script, monkeypatch, *words) == 2
    assert said in capsys.readouterr().err


def test_first_of_several_runs_is_audited(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "audit", lambda *given: 1)
    assert run(script, monkeypatch, "--run", "two") == 1
    assert "there were several runs" in capsys.readouterr().out
    (script.RUNS / "one" / "history.jsonl").unlink()
    assert run(script, monkeypatch, "--run", "two") == 1
    assert capsys.readouterr().out == ""
