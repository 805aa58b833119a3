"""mqchaos: torment a cluster, judge what its clients saw, draw it, compare engines."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raftmq import __version__
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cluster.cli import parse_settings
from raftmq.chaos.cluster.clusterfile import COMPOSE, PROCESSES, ClusterError
from raftmq.chaos.cluster.topology import MODES, REPLICAS_MAX, Shape
from raftmq.chaos.faults.catalogue import rows
from raftmq.chaos.history.events import HistoryError
from raftmq.chaos.report.comparison import HEAD, recovery_rows, summary_rows
from raftmq.chaos.report.recovery import Recovery, by_kind, spread
from raftmq.chaos.run.compare import ENGINES, CompareConfig, Comparison, compare_engines
from raftmq.chaos.run.judge import RunResult, judge
from raftmq.chaos.run.runner import RunConfig, run_scenario
from raftmq.chaos.run.scenario import MINUTES_MIN, SCENARIOS
from raftmq.chaos.run.watch import MARKS, check_table, watch
from raftmq.chaos.workloads.catalogue import WORKLOADS, make_workloads, settings_for
from raftmq.chaos.workloads.log import WINDOW_MAX
from raftmq.chaos.workloads.messages import LOG, MessagesConfig
from raftmq.client import ClientError

T = TypeVar("T")

EXIT_WRONG = 1
EXIT_UNUSABLE = 2
EXIT_UNDECIDED = 3
EXIT_OF = {Verdict.PASS: 0, Verdict.FAIL: EXIT_WRONG, Verdict.UNKNOWN: EXIT_UNDECIDED}
LOST_SHOWN_MAX = 20
PIPE_COLUMNS = 160  # a file or pipe has no width of its own
DEFAULT_SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "maxTransferBytesOnMessageInMemory": str(1024 * 1024),
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="mqchaos")
def main() -> None:
    """Break a cluster on purpose, under load, and say whether it kept its promises.

    \b
      mqchaos list
      mqchaos run failover --dir /tmp/run --seed 7 --minutes 3
      mqchaos run "kill:leader delay:follower+pause:leader" --dir /tmp/run2
      mqchaos watch /tmp/run
      mqchaos compare --dir /tmp/compare
      mqchaos report /tmp/run/history.jsonl -o page.html
    """


@main.command("list")
def list_scenarios() -> None:
    """Name the scenarios, the faults they are made of, and the workloads.

    A fault that this machine cannot do is listed with the reason.
    """
    console = make_console()
    table = Table(box=SIMPLE_HEAD, title="scenarios", title_justify="left")
    for heading in ("name", "what it does", "faults"):
        table.add_column(heading, overflow="fold")
    for scenario in SCENARIOS.values():
        table.add_row(scenario.name, scenario.description, " ".join(scenario.wishes))
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
    for name, (description, _) in WORKLOADS.items():
        table.add_row(name, description)
    console.print(table)


def load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that set a run's load."""
    options = (
        click.option("--seed", default=1, help="The same seed gives the same schedule."),
        click.option(
            "--repeats",
            type=click.IntRange(1, 1000),
            help="How often each fault is inflicted (default: as often as the time holds).",
        ),
        click.option(
            "--workload",
            "workloads",
            multiple=True,
            type=click.Choice(list(WORKLOADS)),
            default=("log",),
            help="What clients do; may be repeated.",
        ),
        click.option(
            "--rate",
            default=LOG.rate_per_s,
            type=click.FloatRange(0),
            help="Sends a second of the workload `log`, open loop; 0: as fast as can be.",
        ),
        click.option(
            "--window",
            default=LOG.window,
            type=click.IntRange(1, WINDOW_MAX),
            help="Most sends in flight per producer.",
        ),
        click.option("--producers", default=LOG.producers, type=click.IntRange(1, 64)),
        click.option("--consumers", default=LOG.consumers, type=click.IntRange(1, 64)),
        click.option(
            "--keys", default=LOG.keys, type=click.IntRange(1), help="Order keys per producer."
        ),
        click.option(
            "--body", default=LOG.body_bytes, type=click.IntRange(0, 4000), help="Bytes a message."
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A broker.conf key for the clusters that are started.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def directory_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for the directory of a run's files."""
    return click.option(
        "--dir",
        "directory",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where history, verdict, page and the cluster's data go. Must hold no history yet.",
    )(command)


@main.command()
@click.argument("scenario")
@directory_option
@click.option(
    "--minutes", default=1.0, type=click.FloatRange(MINUTES_MIN), help="How long to load."
)
@click.option("--mode", type=click.Choice(list(MODES)), help="The cluster's (raft).")
@click.option("--groups", type=click.IntRange(1, 16), help="Broker groups.")
@click.option("--replicas", type=click.IntRange(1, REPLICAS_MAX), help="Brokers in each group.")
@click.option(
    "--cluster",
    "existing",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Torment this running cluster (of mqcluster) instead of a new one.",
)
@click.option(
    "--on",
    type=click.Choice([PROCESSES, COMPOSE]),
    default=PROCESSES,
    help="compose: torment the containers that `docker compose up` has brought up.",
)
@click.option("--project", default="", help="Of docker compose, where several are up.")
@load_options
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
    seed: int,
    repeats: int | None,
    workloads: tuple[str, ...],
    settings: tuple[str, ...],
    **log: float,
) -> None:
    """Run SCENARIO (see: list), or faults written as KIND:WHOM, and judge it.

    Several faults separated by spaces are inflicted in turn, those joined by + together.
    Exit status: 0 all promises kept, 1 one was broken, 2 it could not be run, 3 not decided.
    """
    if (directory / "history.jsonl").exists():
        raise click.UsageError(f"{directory} holds a history already; name another directory")
    config = RunConfig(
        scenario,
        directory,
        partial(make_workloads, workloads, log_config(log)),
        seed,
        minutes,
        repeats,
        Shape(mode, groups, replicas),
        DEFAULT_SETTINGS | settings_for(workloads) | parse_settings(settings),
        existing,
        on,
        project,
    )
    log_to(directory)
    console = make_console()
    say = partial(console.print, highlight=False, markup=False)
    result = attempt(lambda: run_scenario(config, repeat_command(), say))
    print_result(result, console)
    sys.exit(EXIT_OF[result.verdict])


@main.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    default="report.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write; verdict.json goes beside it.",
)
def report(history: Path, output: Path) -> None:
    """Judge a HISTORY written before and draw its page. Exit status as for run."""
    console = make_console()
    try:
        result = judge(history, output.absolute().parent, lambda words: None, page=output)
    except (HistoryError, OSError) as error:
        click.echo(f"mqchaos: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    print_result(result, console)
    sys.exit(EXIT_OF[result.verdict])


@main.command("watch")
@click.argument("path", type=click.Path(path_type=Path))
def watch_run(path: Path) -> None:
    """Show a run that goes on, live: PATH is its directory or its history.

    Ends with the run's verdict. Exit status as for run.
    """
    history = path if path.suffix == ".jsonl" else path / "history.jsonl"
    try:
        scene = watch(history, Console())
    except (HistoryError, OSError) as error:
        click.echo(f"mqchaos: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    sys.exit(EXIT_OF[scene.suite.verdict()])


@main.command()
@directory_option
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(list(ENGINES)),
    help="What to compare; may be repeated (default: all).",
)
@click.option(
    "--scenario",
    default="compare",
    help="A scenario or faults; each engine gets those of its plan that it can have.",
)
@click.option(
    "--minutes",
    default=0.0,
    type=click.FloatRange(0),
    help="How long to load each engine (0: eight seconds for each fault).",
)
@click.option(
    "--calm", "calm_s", default=5.0, type=click.FloatRange(0), help="Seconds at full speed first."
)
@load_options
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
    **log: float,
) -> None:
    """Put engines under the same load and faults: one table, one page.

    Exit status: 0 if every run could be judged, whatever it lost; 2 if one could not be run.
    """
    config = CompareConfig(
        directory,
        engines or tuple(ENGINES),
        scenario,
        partial(make_workloads, workloads, log_config(log)),
        seed,
        minutes or None,
        repeats or 1,
        calm_s,
        DEFAULT_SETTINGS | settings_for(workloads) | parse_settings(settings),
    )
    log_to(directory)
    console = make_console()
    say = partial(console.print, highlight=False, markup=False)
    print_comparison(attempt(lambda: compare_engines(config, repeat_command(), say)), console)


def log_config(options: dict[str, float]) -> MessagesConfig:
    """Return the configuration of the workload `log` that the options give."""
    return MessagesConfig(
        LOG.name,
        LOG.topic,
        LOG.group,
        producers=int(options["producers"]),
        consumers=int(options["consumers"]),
        rate_per_s=options["rate"],
        window=int(options["window"]),
        keys=int(options["keys"]),
        body_bytes=int(options["body"]),
    )


def log_to(directory: Path) -> None:
    """Log to a file what the clients of a run say about lost connections and retries."""
    directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=directory / "harness.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def make_console() -> Console:
    """Return standard output; wide enough for the tables if it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)


def attempt(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; turn an operating error into words and exit status 2."""
    try:
        return uvloop.run(_interruptible(work))
    except Exception as error:
        words = operating_words(error)
        if words is None:
            raise
        click.echo(f"mqchaos: {words}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None


def print_result(result: RunResult, console: Console) -> None:
    """Print the verdict for a person."""
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
    for words in result.skipped:
        console.print(f"not done: {words}", highlight=False, markup=False)
    console.print(f"history {result.history}, page {result.page}", highlight=False)
    console.print(f"verdict: {MARKS[result.verdict]}")


def print_recovery(found: Sequence[Recovery], console: Console) -> None:
    """Print the time from each fault to the next acknowledged send, by kind."""
    table = Table(box=SIMPLE_HEAD, title="fault to next acknowledged send", title_justify="left")
    table.add_column("fault")
    for heading in ("times", "any client p50", "p99", "max", "slowest client p50", "p99", "max"):
        table.add_column(heading, justify="right")
    for name, of_kind in by_kind(found).items():
        cells = []
        for values in ([r.everybody_ms for r in of_kind], [r.worst_client_ms for r in of_kind]):
            times = spread(value for value in values if value is not None)
            figures = ("none",) * 3 if times is None else (times.p50, times.p99, times.max)
            cells += [text if isinstance(text, str) else f"{text:,.0f} ms" for text in figures]
        table.add_row(name, str(len(of_kind)), *cells)
    if found:
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
        for words in candidate.verdict["skipped"]:
            console.print(f"{candidate.name}: not done: {words}", highlight=False, markup=False)
    console.print(f"page {comparison.page}", highlight=False)


def repeat_command() -> str:
    """Return the command line that was typed."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def operating_words(error: BaseException) -> str | None:
    """Return words for the user if this is an operating error, in groups too; None: it is a bug."""
    if isinstance(error, BaseExceptionGroup):
        words = [operating_words(inner) for inner in error.exceptions]
        known = [text for text in words if text is not None]
        return "; ".join(known) if len(known) == len(words) else None
    return str(error) if isinstance(error, ClusterError | ClientError | OSError) else None


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T:
    """Treat SIGTERM like Ctrl-C: the run is cancelled and stops its cluster."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work()


if __name__ == "__main__":
    main()
