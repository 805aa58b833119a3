"""Checkouts of other times, which benchmarks compare with this one."""

from __future__ import annotations

from pathlib import Path


def module_in(root: Path, name: str) -> str:
    """Return the import name that a room's module has there: rooms stood alone before `raftmq`."""
    return f"raftmq.{name}" if (root / "raftmq").is_dir() else name
