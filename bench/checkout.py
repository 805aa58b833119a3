"""Checkouts of other times, which benchmarks compare with this one."""

from __future__ import annotations

from pathlib import Path


def module_in(root: Path, name: str) -> str:
    """Return the name of a room's module in that checkout: rooms stood alone before `raftmq`."""
    return f"raftmq.{name}" if (root / "raftmq").is_dir() else name
