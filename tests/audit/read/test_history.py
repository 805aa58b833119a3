"""A history that is not whole is refused, and its line is named."""

from pathlib import Path

import pytest

from raftmq.audit.engine.frames import Engine
from raftmq.audit.read.history import HistoryUnfit, read_events, refuse_interrupted, refuse_invalid
from tests.audit.run import Run


def test_history_without_its_end_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    Run.plan(tmp_path, count=3).history.write(path)
    refuse_interrupted(str(path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    told = f"h.jsonl has no event `end` after line {len(lines) - 1}"
    with pytest.raises(HistoryUnfit, match=told):
        refuse_interrupted(str(path))
    path.write_bytes(b"")
    with pytest.raises(HistoryUnfit, match="is empty"):
        refuse_interrupted(str(path))


@pytest.mark.parametrize("line", ['{"type": "ok", "f": "se', '{"type": "ok", "queue": "two"}'])
def test_malformed_history_line_is_named(engine: Engine, tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(f'{{"type": "meta", "version": 1}}\n{line}\n{{"type": "ok", "f": "end"}}\n')
    with pytest.raises(HistoryUnfit, match=r"h.jsonl:2: '{.type.*is no event"):
        refuse_invalid(read_events(engine, str(path)), str(path))
