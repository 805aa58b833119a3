"""The commands of docs/start.md, and running them as a terminal would."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT, blocks, command_lines

START = ROOT / "docs" / "start.md"
ENDLESS = "python docs/examples/consume.py"  # until Ctrl-C
WAIT_S = 600.0  # a bound against hanging, not an expectation


@dataclass(frozen=True, slots=True)
class Step:
    """One command line of the page, and the heading that it stands under."""

    heading: str
    command: str


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command: what it printed (both streams), its exit status, its time in
    seconds."""

    output: str
    status: int
    seconds: float


def steps(page: Path = START) -> Iterator[Step]:
    """Every command of the page's console blocks, in order."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        if block.language == "console":
            above = [line for line in lines[: block.line] if line.startswith("#")]
            heading = above[-1].lstrip("# ") if above else ""
            for command in command_lines(block):
                yield Step(heading, command)


def type_in(command: str, directory: Path, environment: Mapping[str, str]) -> Done:
    """Run one line as a terminal would. What runs until Ctrl-C gets it after its first line."""
    began = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}" if command == ENDLESS else command],
        cwd=directory,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline() if command == ENDLESS else ""
            if command == ENDLESS:
                process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    return Done(first + rest, process.returncode, time.monotonic() - began)
