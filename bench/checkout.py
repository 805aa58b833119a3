"""Checkouts of other times, which benchmarks compare with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click


def module_in(root: Path, name: str) -> str:
    """Return the name of a room's module in that checkout: rooms stood alone before `raftmq`."""
    return f"raftmq.{name}" if (root / "raftmq").is_dir() else name


def mqcluster(root: Path, *arguments: str) -> str:
    """Run a checkout's mqcluster; return what it prints. Raises ClickException if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module_in(root, "chaos.cluster.cli"), *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    if done.returncode:
        raise click.ClickException(done.stdout + done.stderr)
    return done.stdout
