"""Prints an audit's report as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftmq.ops.console import QuietConsole

from .report import AuditReport

OFFENDERS_SHOWN = 5


@contextmanager
def progress_shown() -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal's stderr. Yield the function to call with the next."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("")
        yield lambda what: shown.update(task, description=what)


def print_report(report: AuditReport) -> None:
    """Print the verdict as tables of stores, figures, checks, and offenders of failed checks.
    Raises OSError, except for a closed pipe."""
    console = QuietConsole()
    if report.stores:
        console.print(_store_table(report))
    console.print(_check_table(report))
    for check in report.checks:
        if check.ok:
            continue
        title = f"[bold red]{check.verdict}: {check.title}[/] ({check.count:,})"
        console.print(title, highlight=False)
        for offender in check.offenders[:OFFENDERS_SHOWN]:
            line = "  ".join(f"{key}={value}" for key, value in offender.items())
            console.print("  ", line, markup=False, soft_wrap=True)
        if check.count > OFFENDERS_SHOWN:
            console.print(f"   … {check.count - OFFENDERS_SHOWN:,} more", highlight=False)
    for gap in report.not_judged:
        console.print(f"[yellow]not judged:[/] {gap}", highlight=False, soft_wrap=True)
    verdict = "[bold green]nothing is wrong[/]"
    if not report.ok:
        verdict = f"[bold red]something is wrong: {', '.join(sorted(report.verdicts))}[/]"
    how = f"engine {report.engine}, {report.seconds:.1f} s"
    console.print(f"{_subject(report)}: {verdict} ({how})", highlight=False)


def _subject(report: AuditReport) -> str:
    topic = f"topic {report.topic}" if report.topic else "all topics"
    return f"{report.group}, {topic}" if report.group else topic


def _store_table(report: AuditReport) -> Table:
    title = f"stores ({', '.join(filter(None, (report.mode, report.group)))})"
    table = Table(title=title, title_justify="left")
    table.add_column("store")
    for name in ("records", "frames", "start", "commit", "agreed", "data end"):
        table.add_column(name, justify="right")
    for store in report.stores:
        numbers = (store.records, store.frames, store.start, store.commit, store.agreed)
        table.add_row(store.store, *[f"{n:,}" for n in (*numbers, store.data_end)])
    return table


def _check_table(report: AuditReport) -> Table:
    table = Table(title=_subject(report), title_justify="left")
    table.add_column("")
    table.add_column("count", justify="right")
    table.add_column("verdict")
    for name, count in report.figures.items():
        table.add_row(name.replace("_", " "), f"{count:,}", "")
    table.add_section()
    for check in report.checks:
        if check.fault:
            verdict = "[green]ok[/]" if check.ok else "[bold red]WRONG[/]"
        else:
            verdict = "allowed"
        table.add_row(check.title, f"{check.count:,}", verdict)
    return table
