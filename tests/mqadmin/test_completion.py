"""Completion: the scripts of all commands, and what installing them writes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftmq.commands import COMMANDS
from raftmq.mqadmin.cli import main
from raftmq.mqadmin.completion import SHELLS, install_for, scripts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_covers_every_command(shell: str) -> None:
    assert set(scripts(shell)) == set(COMMANDS)
    printed = CliRunner().invoke(main, ["completion", shell]).stdout
    for name in COMMANDS:
        assert f"_{name.upper()}_COMPLETE={shell}_complete" in printed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_install_adds_its_line_once(home: dict[str, str], shell: str) -> None:
    start = Path(home["HOME"]) / f".{shell}rc"
    start.write_text("alias ll='ls -l'")  # without an end
    install_for(shell, home)
    once = start.read_text()
    assert once.splitlines()[0] == "alias ll='ls -l'" and len(once.splitlines()) == 2
    assert f"completion.{shell}" in once
    install_for(shell, home)
    assert start.read_text() == once
    assert (Path(home["HOME"]) / ".local/share/raftmq" / f"completion.{shell}").exists()


def test_completion_install_for_fish_writes_its_own_directory(
    home: dict[str, str], tmp_path: Path
) -> None:
    install_for("fish", {**home, "XDG_CONFIG_HOME": str(tmp_path / "conf")})
    result = {path.stem for path in (tmp_path / "conf/fish/completions").iterdir()}
    assert result == set(COMMANDS)


def test_completion_install_reports_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {"XDG_DATA_HOME": str(tmp_path / "file")}
    said = CliRunner().invoke(main, ["completion", "bash", "--install"], env=env)
    assert said.exit_code == 1
    assert said.stderr.startswith("mqadmin: ") and len(said.stderr.splitlines()) == 1


ASK_BASH = r"""
set -e
source ~/.bashrc
COMP_WORDS=(mqadmin consum); COMP_CWORD=1; COMPREPLY=()
_mqadmin_completion mqadmin
printf '%s\n' "${COMPREPLY[@]}"
"""
ASK_ZSH = r"""
source ~/.zshrc
print ${_comps[mqadmin]}
"""


@pytest.mark.parametrize(
    ("shell", "asks", "answers"),
    [
        ("bash", ASK_BASH, {"consumerProgress", "consume", "consumeMessage"}),
        ("zsh", ASK_ZSH, {"_mqadmin_completion"}),
    ],
)
def test_shell_completes_commands_and_flags(
    home: dict[str, str], tmp_path: Path, shell: str, asks: str, answers: set[str]
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    install_for(shell, home)
    command = tmp_path / "bin" / "mqadmin"
    command.parent.mkdir()
    root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    command.write_text(f"#!/bin/sh\ncd {root} && exec {python} -m raftmq.mqadmin\n")
    command.chmod(0o755)
    environment = {**os.environ, **home, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    said = subprocess.run(
        [program, "-c", asks], env=environment, capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert answers <= set(said.stdout.split())
