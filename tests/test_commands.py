"""What a person sees of a command when things go wrong: a line, and no traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq import commands
from raftmq.commands import BROKEN, COMMANDS, INTERRUPTED, SERVERS

ROOT = Path(__file__).parent.parent
REFUSED = [  # before anything is made or started
    ("mqcluster up --dir /proc/x", "/proc/x: No such file"),
    ("mqcluster up --dir {docs}", "nothing is put there"),
    ("mqcluster up --dir {new} --set flushDiskTyp=x", "did you mean flushDiskType?"),
    ("mqchaos run failover --dir /proc/x", "/proc/x: No such file"),
    ("mqchaos run failover --dir {docs}", "is not empty"),
    ("mqchaos run failover --dir {new} --set flushDiskTyp=x", "did you mean flushDiskType?"),
    ("mqchaos run kill:nobody --dir {new}", "no target 'nobody'"),
    ("mqchaos compare --dir {docs}", "is not empty"),
    ("mqaudit --namesrv 127.0.0.1:1 --json /proc/x", "/proc/x: No such file"),
    ("mqaudit --context nowhere", "there is no context 'nowhere'"),
]


@pytest.mark.parametrize(("line", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_commands_reject_bad_arguments_first_with_a_message(
    line: str, says: str, tmp_path: Path
) -> None:
    docs, new = tmp_path / "docs", tmp_path / "new"
    docs.mkdir()
    (docs / "mine.md").write_text("mine")
    name, *arguments = line.format(docs=docs, new=new).split()
    code = f"from raftmq.commands import {name}; {name}()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode in (1, 2), ran
    assert says in ran.stderr and "Traceback" not in ran.stderr
    assert [path.name for path in docs.iterdir()] == ["mine.md"]
    assert not (new / "cluster" / "cluster.json").exists()
    assert not (new / "cluster.json").exists()


class Broken:
    """A command's module, whose `main` raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def main(self, prog_name: str) -> None:
        raise self._error


@pytest.mark.parametrize("command", COMMANDS)
def test_command_with_a_bug_prints_a_line_and_writes_its_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Broken(KeyError("nobody thought of this"))
    monkeypatch.setattr("raftmq.commands.importlib.import_module", lambda name: broken)
    with pytest.raises(KeyError if command in SERVERS else SystemExit) as raised:
        getattr(commands, command)()
    if command in SERVERS:
        return  # its log has it
    assert isinstance(raised.value, SystemExit) and raised.value.code == BROKEN
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{command}: a bug: KeyError: 'nobody thought of this'")
    match = re.search(r"in (/\S+\.traceback)$", line)
    assert match is not None
    path = Path(match[1])
    assert "in main" in path.read_text()
    path.unlink()


def test_command_interrupted_early_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raftmq.commands.importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as raised:
        commands.mqadmin()
    assert raised.value.code == INTERRUPTED
