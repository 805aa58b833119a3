"""The commands of `mqchaos`: their work and their output."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import orjson
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raftmq.client import ClientError
from raftmq.ops.console import QuietConsole, complain, print_no_more

from .checks.verdict import Verdict
from .cluster.clusterfile import ClusterError
from .cluster.commands import parse_settings
from .cluster.topology import Shape
from .faults.catalogue import rows
from .history.events import HistoryError
from .report.comparison import HEAD, recovery_rows, summary_rows
from .report.recovery import Recovery, by_kind, ms_text, spread
from .run.compare import CompareConfig, Comparison, compare_engines
from .run.engines import ENGINES
from .run.judge import RunResult, judge
from .run.runner import RunConfig, run_scenario
from .run.scenario import SCENARIOS, Scenario, find_scenario
from .run.watch import MARKS, WAIT_FOR_FILE_S, check_table, watch
from .workloads.base import Workload
from .workloads.catalogue import make_workloads, settings_for
from .workloads.load import DESCRIPTIONS, LOG, MessagesConfig

T = TypeVar("T")

EXIT_WRONG = 1
EXIT_UNUSABLE = 2
EXIT_UNDECIDED = 3
EXIT_INVALID = 4
EXIT_OF = {
    Verdict.PASS: 0,
    Verdict.FAIL: EXIT_WRONG,
    Verdict.UNKNOWN: EXIT_UNDECIDED,
    Verdict.INVALID: EXIT_INVALID,
}
LOST_SHOWN_MAX = 20
HELD_SHOWN_MAX = 5
PIPE_COLUMNS = 160  # a file or pipe has no width of its own
DEFAULT_SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "maxTransferBytesOnMessageInMemory": str(1024 * 1024),
}


def list_scenarios() -> None:
    console = make_console()
    table = Table(box=SIMPLE_HEAD, title="scenarios", title_justify="left")
    for heading in ("name", "what it does", "faults"):
        table.add_column(heading, overflow="fold")
    for scenario in SCENARIOS.values():
        table.add_row(scenario.name, scenario.description, scenario.faults)
    console.print(table)
    table = Table(box=SIMPLE_HEAD, title="faults, as KIND:WHOM", title_justify="left")
    for heading in ("kind", "family", "what it does", "whom", "here"):
        table.add_column(heading, overflow="fold")
    for row in rows():
        kind = row.kind
        here = f"[yellow]no: {escape(row.cannot)}[/]" if row.cannot else "yes"
        table.add_row(kind.name, kind.family, kind.description, ", ".join(kind.whom), here)
    console.print(table)
    table = Table(box=SIMPLE_HEAD, title="workloads", title_justify="left")
    for heading in ("name", "what it does"):
        table.add_column(heading, overflow="fold")
    for name, description in DESCRIPTIONS.items():
        table.add_row(name, description)
    console.print(table)


def run(
    scenario: str,
    directory: Path,
    minutes: float,
    mode: str | None,
    groups: int | None,
    replicas: int | None,
    existing: Path | None,
    on: str,
    project: str,
    watch: bool,
    seed: int,
    repeats: int | None,
    workloads: tuple[str, ...],
    settings: tuple[str, ...],
    rate: float | None,
    **log: float,
) -> None:
    load, desired = prepared(directory, scenario, workloads, rate, settings, log)
    config = RunConfig(
        *(scenario, directory, load, seed, minutes, repeats),
        *(Shape(mode, groups, replicas), desired, existing, on, project),
        watch=watch,
    )
    console = make_console()
    say = partial(console.print, highlight=False, markup=False)
    _end(attempt(lambda: run_scenario(config, repeat_command(), say)), console)


def report(history: Path, output: Path) -> None:
    console = make_console()
    with operating():
        result = judge(history, output.absolute().parent, lambda text: None, page=output)
    _end(result, console)


def _end(result: RunResult, console: Console) -> NoReturn:
    """Print the result and exit with its status, even if it cannot be printed."""
    try:
        print_result(result, console)
    except OSError as error:
        complain(f"mqchaos: the result cannot be printed: {error}")
        print_no_more()
    sys.exit(EXIT_OF[result.verdict])


def watch_run(path: Path) -> None:
    history = path if path.suffix == ".jsonl" else path / "history.jsonl"
    if not history.exists():
        click.echo(f"waiting {WAIT_FOR_FILE_S:g} s for {history} to be begun", err=True)
    with operating():
        scene = watch(history, QuietConsole())
    sys.exit(EXIT_OF[final_verdict(history, scene.suite.verdict())])


def final_verdict(history: Path, so_far: Verdict) -> Verdict:
    """Return the verdict beside a history. It also covers the experiment and the recovery of the
    cluster, which a reader of the history cannot judge."""
    try:
        saved = orjson.loads(history.with_name("verdict.json").read_bytes())
        return Verdict(saved["verdict"])
    except (OSError, ValueError, KeyError, TypeError):
        return so_far


def compare(
    directory: Path,
    engines: tuple[str, ...],
    scenario: str,
    minutes: float,
    calm_s: float,
    seed: int,
    repeats: int | None,
    workloads: tuple[str, ...],
    settings: tuple[str, ...],
    rate: float | None,
    **log: float,
) -> None:
    load, desired = prepared(directory, scenario, workloads, rate, settings, log)
    config = CompareConfig(
        *(directory, engines or tuple(ENGINES), scenario, load, seed),
        *(minutes or None, repeats or 1, calm_s, desired),
    )
    console = make_console()
    say = partial(console.print, highlight=False, markup=False)
    result = attempt(lambda: compare_engines(config, repeat_command(), say))
    print_comparison(result, console)
    verdicts = {candidate.verdict["verdict"] for candidate in result.candidates}
    sys.exit(EXIT_INVALID if Verdict.INVALID.value in verdicts else 0)


def prepared(
    directory: Path,
    scenario: str,
    workloads: tuple[str, ...],
    rate: float | None,
    settings: tuple[str, ...],
    log: Mapping[str, float],
) -> tuple[Callable[[], list[Workload]], dict[str, str]]:
    """Prepare the directory of a run; return the maker of its load, and its clusters' settings."""
    fresh(directory)
    with operating():
        named = find_scenario(scenario)
    load, desired = load_of(named, workloads, rate, log), settings_of(named, workloads, settings)
    log_to(directory)
    return load, desired


def load_of(
    scenario: Scenario, names: Sequence[str], rate: float | None, log: Mapping[str, float]
) -> Callable[[], list[Workload]]:
    """Return a maker of the load; the workload `log` has these options."""
    share = scenario.share
    return partial(
        make_workloads,
        names or scenario.workloads,
        log_config(log, LOG.rate_per_s * share if rate is None else rate),
        share,
    )


def settings_of(scenario: Scenario, names: Sequence[str], given: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of the clusters that are started. Raises ClusterError."""
    of_workloads = settings_for(names or scenario.workloads)
    return {**DEFAULT_SETTINGS, **of_workloads, **scenario.settings, **parse_settings(given)}


def log_config(options: Mapping[str, float], rate_per_s: float) -> MessagesConfig:
    """Return the configuration of the workload `log` that the options give."""
    return MessagesConfig(
        LOG.name,
        LOG.topic,
        LOG.group,
        producers=int(options["producers"]),
        consumers=int(options["consumers"]),
        rate_per_s=rate_per_s,
        window=int(options["window"]),
        keys=int(options["keys"]),
        body_bytes=int(options["body"]),
    )


def fresh(directory: Path) -> None:
    """Reject a directory that is not empty, because files of two runs must not mix."""
    try:
        held = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    except OSError as error:
        give_up(f"{directory}: {error.strerror}")
    if "history.jsonl" in held:
        raise click.UsageError(f"{directory} holds a history already; name another directory")
    if held:
        some = ", ".join(held[:HELD_SHOWN_MAX])
        raise click.UsageError(f"{directory} is not empty ({some}); name another directory")


def give_up(text: str) -> NoReturn:
    """Exit with a message and the status of an impossible run."""
    complain(f"mqchaos: {text}")
    sys.exit(EXIT_UNUSABLE)


def log_to(directory: Path) -> None:
    """Log messages of a run's clients about lost connections and retries to a file."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        give_up(f"{directory}: {error.strerror}")
    # Opened at the first line, so that a rejected run leaves its directory empty.
    handler = logging.FileHandler(directory / "harness.log", delay=True)
    logging.basicConfig(
        handlers=(handler,),
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def make_console() -> Console:
    """Return standard output, wide enough for the tables if it is no terminal. A run continues to
    its verdict when its output is closed."""
    console = QuietConsole()
    return console if console.is_terminal else QuietConsole(width=PIPE_COLUMNS)


def attempt(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; end as `operating` does."""
    with operating():
        return uvloop.run(_interruptible(work))


@contextmanager
def operating() -> Iterator[None]:
    """Turn an operating error, and an interruption, into words and exit status 2."""
    try:
        yield
    except Exception as error:
        text = operating_text(error)
        if text is None:
            raise
        give_up(text)
    except (KeyboardInterrupt, asyncio.CancelledError):
        give_up("interrupted")


def print_result(result: RunResult, console: Console) -> None:
    load = result.load
    console.print(check_table(result.checks))
    console.print(
        f"sent {load.sent:,}: {load.ok:,} acknowledged, {load.unknown:,} unknown, "
        f"{load.fail:,} failed ({load.shed:,} of them never sent: the backlog was full)",
        highlight=False,
    )
    print_recovery(result.recoveries, console)
    for message in result.lost[:LOST_SHOWN_MAX]:
        console.print(
            f"lost: {message.id} acknowledged at {message.broker}:{message.topic}-"
            f"{message.queue}@{message.offset}",
            highlight=False,
            markup=False,
        )
    if len(result.lost) > LOST_SHOWN_MAX:
        console.print(f"lost: {len(result.lost):,} in all, listed in verdict.json")
    for text in result.skipped:
        console.print(f"not done: {text}", highlight=False, markup=False)
    console.print(f"history {result.history}, page {result.page}", highlight=False)
    console.print(f"verdict: {MARKS[result.verdict]}")


def print_recovery(recoveries: Sequence[Recovery], console: Console) -> None:
    """Print the time from each fault to the next acknowledged send, by kind."""
    table = Table(box=SIMPLE_HEAD, title="fault to next acknowledged send", title_justify="left")
    table.add_column("fault")
    for heading in ("times", "any client p50", "p99", "max", "slowest client p50", "p99", "max"):
        table.add_column(heading, justify="right")
    for name, of_kind in by_kind(recoveries).items():
        cells = []
        for values in ([r.everybody_ms for r in of_kind], [r.worst_client_ms for r in of_kind]):
            times = spread(value for value in values if value is not None)
            figures = (None,) * 3 if times is None else (times.p50, times.p99, times.max)
            cells += [ms_text(figure) for figure in figures]
        table.add_row(name, str(len(of_kind)), *cells)
    if recoveries:
        console.print(table)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print both tables, and the faults that were not done."""
    for head, body in (
        (HEAD, summary_rows(comparison.candidates)),
        recovery_rows(comparison.candidates),
    ):
        table = Table(box=SIMPLE_HEAD)
        for heading in head:
            table.add_column(heading, justify="left" if heading == head[0] else "right")
        for row in body:
            table.add_row(*row)
        console.print(table)
    for candidate in comparison.candidates:
        for text in candidate.verdict["skipped"]:
            console.print(f"{candidate.name}: not done: {text}", highlight=False, markup=False)
    console.print(f"page {comparison.page}", highlight=False)


def repeat_command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def operating_text(error: BaseException) -> str | None:
    """Return the message of an operating error, also in groups; None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        messages = [operating_text(inner) for inner in error.exceptions]
        known = [text for text in messages if text is not None]
        return "; ".join(known) if len(known) == len(messages) else None
    return (
        str(error)
        if isinstance(error, ClusterError | ClientError | HistoryError | OSError)
        else None
    )


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T:
    """Handle SIGTERM like Ctrl-C: cancel the run, which stops its cluster."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work()
