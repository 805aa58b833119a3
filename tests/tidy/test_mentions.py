"""Names of files that are not there are found, wherever they stand."""

from pathlib import Path

from tests.tidy.mentions import missing

TEXT = '''
"""Like here.py, store/there.py and sub/here.py; unlike gone.py."""

def f():
    """Of store/gone.py."""
    return "never.py"  # as ./lost.py does; see there.py
'''


def test_mentioned_file_is_resolved_from_root_or_beside(tmp_path: Path) -> None:
    for name in ("store/there.py", "ops/here.py", "ops/sub/here.py", "tests/ops/test_a.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    gone = ["./lost.py", "gone.py", "store/gone.py", "there.py"]
    for name in ("ops/a.py", "tests/ops/test_a.py"):
        (tmp_path / name).write_text(TEXT)
        assert missing(tmp_path / name, tmp_path) == gone, name
    (tmp_path / "store/a.py").write_text(TEXT)
    assert missing(tmp_path / "store/a.py", tmp_path) == [
        "./lost.py", "gone.py", "here.py", "store/gone.py", "sub/here.py"
    ]  # fmt: skip
