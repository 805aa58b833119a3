"""docs/modules.md is as the modules are."""

import re
from pathlib import Path

import pytest

from tools import module_page


def test_module_page_equals_the_generated_one() -> None:
    if module_page.PAGE.read_text() != module_page.page():
        pytest.fail("docs/modules.md is out of date; run: .venv/bin/python -m tools.module_page")


@pytest.mark.parametrize(
    "text, summary",
    [
        ('"""A log of v1.2. It has no limit."""', "A log of v1.2."),
        ('"""A line\nand its end. More."""', "A line and its end."),
        ('"""No full stop\n\nA paragraph."""', "No full stop"),
        ("import os", ""),
    ],
)
def test_module_summary_is_the_first_sentence(tmp_path: Path, text: str, summary: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert module_page.summary_of(tmp_path / "a.py") == summary


def test_module_page_has_sections_for_sub_packages(tmp_path: Path) -> None:
    for name in ("store/__init__.py", "store/disk.py", "store/index/files.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""Subject | of {path.name}."""')
    (tmp_path / "raftmq").mkdir()
    (tmp_path / "raftmq" / "store").symlink_to("../store")
    page = module_page.page(tmp_path)
    assert "## store\n\nSubject | of __init__.py.\n" in page
    assert "| `disk.py` | Subject \\| of disk.py. |" in page
    assert "### store/index\n\n| module | subject |" in page


def test_files_that_contributing_names_exist() -> None:
    text = (module_page.ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:[a-z]\w*/)+[\w.]*)`", text)) - {"tests/ROOM/test_MODULE.py"}
    gone = sorted(name for name in named if not (module_page.ROOT / name).exists())
    assert not gone, f"CONTRIBUTING.md names files that moved: {', '.join(gone)}"
