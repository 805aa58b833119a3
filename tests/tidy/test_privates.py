"""Uses of the product's private members are found in whatever form they have."""

from pathlib import Path

from tests.tidy.privates import reached

PRODUCT = """
_LIMIT = 1

class Log:
    def __init__(self):
        self._next, self.end = 0, 0

    def _sync(self): ...
"""
TEST = """
from raftmq.store.log import Log, _LIMIT

class Own:
    def __init__(self):
        self._own = self._next_to = 0

def test(log, monkeypatch):
    assert log._next == log.end == Own()._own
    monkeypatch.setattr(log, "_sync", log._sync)
    log._foreign()
"""


def test_private_uses_are_imports_reads_and_patches(tmp_path: Path) -> None:
    for name, text in (("store/log.py", PRODUCT), ("tests/test_log.py", TEST)):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text)
    assert reached(tmp_path) == [
        f"tests/test_log.py:{line} {name}"
        for line, name in ((2, "_LIMIT"), (9, "_next"), (10, "_sync"), (10, "_sync"))
    ]
