"""The man pages say what the commands say, and man shows them without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from raftmq.commands import COMMANDS
from tools.manpages import PAGES, escaped

ROOT = Path(__file__).parent.parent
MADE = """
import sys, orjson
from tools.manpages import pages
sys.stdout.buffer.write(orjson.dumps(pages()))
"""


def test_man_pages_are_up_to_date() -> None:
    """Made in a process of its own: a command that a test has run by itself keeps the help option
    that it had there."""
    there = {path.name: path.read_text() for path in PAGES.iterdir()}
    made = subprocess.run([sys.executable, "-c", MADE], cwd=ROOT, check=True, capture_output=True)
    assert there == orjson.loads(made.stdout), "make man"


@pytest.mark.parametrize("command", COMMANDS)
def test_man_shows_a_page(command: str) -> None:
    mandoc = shutil.which("mandoc")
    if mandoc is None:
        pytest.skip("there is no mandoc here")
    path = PAGES / f"{command}.1"
    lint = subprocess.run([mandoc, "-T", "lint", "-W", "error", path], capture_output=True)
    assert lint.returncode == 0, lint.stdout
    shown = subprocess.run([mandoc, "-T", "utf8", path], capture_output=True, check=True)
    text = re.sub(r".\x08", "", shown.stdout.decode())  # bold is overprinted
    assert f"{command.upper()}(1)" in text and "--version" in text and "SYNOPSIS" in text


def test_man_markup_characters_are_escaped() -> None:
    assert escaped(r".a -b \n") == r"\&.a \-b \en"
