"""The disk of the store's tests. What they leave open on it is closed after each of them.

Many of them drop a log or a store as a killed process does. Such a process loses its open files
with that; here they would stay open, and select(), which other tests use, serves no descriptor
above 1023.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.store.disk import OsDisk, OsFile


@pytest.fixture(autouse=True)
def _files_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files: list[OsFile] = []
    open_file = OsDisk.open

    def noted(disk: OsDisk, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        files.append(open_file(disk, path, allocate_bytes=allocate_bytes))
        return files[-1]

    monkeypatch.setattr(OsDisk, "open", noted)
    yield
    for file in files:
        file.close()


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(str(tmp_path))
