"""docs/start.md walked from its first command to its last, and what that looked like.

    python -m tests.docs.tour REPOSITORY > /tmp/page && mv /tmp/page docs/first-ten-minutes.md

clones REPOSITORY and types what the page says into the clone, in order. A test walks the same way
on ports of its own, and holds the commands on both pages equal.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tests.docs.pages import ROOT, blocks, command_lines

START = ROOT / "docs" / "start.md"
MADE = ROOT / "docs" / "first-ten-minutes.md"
ENDLESS = "python docs/examples/consume.py"  # until Ctrl-C
WAIT_S = 600.0  # a bound against hanging, not an expectation
SHOWN_LINES_MAX = 12  # of what a command prints
SHOWN_COLUMNS_MAX = 110
HEAD = """\
# The first ten minutes

What happened when the commands of [Start](start.md) were typed into a fresh clone, one after the
other, on {day}: {cores} cores, {load}, Python {python}. Seconds are by the wall clock.
This page is written by `python -m tests.docs.tour REPOSITORY`; a test walks the same way.
"""

BY_HAND = "## What was in the way"  # from here on the page is written by hand, and kept


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


def main(repository: str) -> None:
    load = os.getloadavg()[0]
    busy = "otherwise idle" if load < 1 else f"busy with other work (load {load:.0f})"
    python = sys.version.split()[0]
    print(HEAD.format(day=date.today(), cores=os.cpu_count(), python=python, load=busy))
    heading, total = "", 0.0
    with tempfile.TemporaryDirectory() as work:
        directory, environment = Path(work), dict(os.environ)
        for step in steps():
            if step.heading != heading:
                heading = step.heading
                print(f"## {heading}\n")
            done = type_in(step.command.replace("REPOSITORY", repository), directory, environment)
            if step.command.startswith("cd "):
                directory /= step.command.split()[1]
            if "activate" in step.command:
                environment["PATH"] = f"{directory}/.venv/bin:{environment['PATH']}"
            total += done.seconds
            print(entry(step.command, done, work), flush=True)
            if done.status != 0:
                sys.exit(f"{step.command}: exit status {done.status}")
    print(f"In all: {total:.0f} seconds of waiting, and your reading.\n")
    kept = MADE.read_text()
    print(kept[kept.index(BY_HAND) :], end="")


def entry(command: str, done: Done, work: str) -> str:
    """The command, what it printed, shortened, and its time."""
    lines = [line.rstrip() for line in done.output.replace(work, "…").splitlines() if line.strip()]
    if len(lines) > SHOWN_LINES_MAX:
        half = SHOWN_LINES_MAX // 2
        lines = [*lines[:half], "…", *lines[-half:]]
    shown = [x if len(x) <= SHOWN_COLUMNS_MAX else f"{x[: SHOWN_COLUMNS_MAX - 1]}…" for x in lines]
    printed = "\n".join(re.sub(r"^\$", " $", line) for line in shown)
    text = (
        f"```console\n$ {command}\n{printed}\n```" if printed else f"```console\n$ {command}\n```"
    )
    return f"{text}\n{done.seconds:.1f} s\n"


if __name__ == "__main__":
    main(sys.argv[1])
