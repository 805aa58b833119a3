"""A container's entrypoint makes secrets that are missing, and names in a line what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "deploy" / "entrypoint.py"
MADE = {"tokens.json", "cluster.token", "metrics.token", "peer.secret", "registration.key"}
WRONG = 2  # as of a wrong configuration


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAFTMQ_SECRETS": str(directory)}
    text = [sys.executable, str(ENTRYPOINT), *command]
    return subprocess.run(text, env=environment, capture_output=True, text=True)


def test_entrypoint_makes_secrets_once_and_runs_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert before.keys() == MADE
    assert run(tmp_path, "true").returncode == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    tokens = {one["role"]: one["token"] for one in json.loads(before["tokens.json"])["tokens"]}
    assert before["cluster.token"] == tokens["admin"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"tokens": 5}',
        '{"tokens": ["admin"]}',
        '{"tokens": [{"role": "admin"}]}',
        '{"tokens": [{"role": "admin", "token": 5}]}',
        '{"tokens": [{"role": "viewer", "token": "0123456789abcdef"}]}',
    ],
)
def test_entrypoint_names_malformed_tokens(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens.json").write_text(text)
    done = run(tmp_path, "echo", "ran")
    assert (done.returncode, done.stdout) == (WRONG, "")
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "tokens.json") in line


def test_entrypoint_names_a_missing_directory(tmp_path: Path) -> None:
    done = run(tmp_path / "none", "true")
    assert done.returncode == WRONG
    (line,) = done.stderr.splitlines()
    assert "RAFTMQ_SECRETS" in line and str(tmp_path / "none") in line


@pytest.mark.parametrize("command", [(), ("no-such-command",)])
def test_entrypoint_names_an_unknown_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run(tmp_path, *command)
    assert done.returncode == WRONG
    (line,) = done.stderr.splitlines()
    assert " ".join(command) in line
