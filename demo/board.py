"""The demo's progress, as bars on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

PLAIN_EVERY = 0.1  # a plain line per tenth of the work


class Board:
    """Lines and counted work. `with board:` shows the bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._start_s = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._work: dict[str, _Work] = {}

    def __enter__(self) -> Board:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        elapsed_s = time.monotonic() - self._start_s
        self.console.print(f"[dim]{elapsed_s:6.1f} s[/]  {text}", highlight=False)

    def count(self, name: str, total: int) -> None:
        """Start counted work."""
        task = self._progress.add_task(name, total=total, rate="")
        self._work[name] = _Work(task, total)

    def advance(self, name: str, done: int) -> None:
        """Set the progress of the work `name` to `done`."""
        work = self._work[name]
        elapsed_s = max(1e-9, time.monotonic() - work.start_s)
        rate = f"{done / elapsed_s:,.0f}/s"
        self._progress.update(work.task, completed=done, rate=rate)
        if not self.console.is_terminal and done >= work.next_line:
            work.next_line = (int(done / work.step) + 1) * work.step
            self.say(f"{name}: {done:,} of {work.total:,}, {rate}")

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Print the start of a phase and, at its end, its duration."""
        start_s = time.monotonic()
        with self.console.status(text):
            yield
        self.say(f"{text}: {time.monotonic() - start_s:.1f} s")


class _Work:
    __slots__ = ("next_line", "start_s", "step", "task", "total")

    def __init__(self, task: TaskID, total: int) -> None:
        self.task = task
        self.total = total
        self.step = max(1.0, total * PLAIN_EVERY)
        self.next_line = self.step
        self.start_s = time.monotonic()
