"""A standard output that nobody reads any more, as after `| head -1`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make sys.stdout a pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w", buffering=1) as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        yield
