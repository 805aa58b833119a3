"""mqchaos: torment a cluster, judge what its clients saw, draw it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.checks.suite import check_all
from chaos.checks.verdict import Check, Verdict, merge
from chaos.cluster.cli import parse_settings
from chaos.cluster.clusterfile import ClusterError
from chaos.history.events import HistoryError
from chaos.history.files import read_history
from chaos.report.page import write_report
from chaos.report.recovery import Recovery, recoveries, spread
from chaos.run.runner import SCENARIOS, RunConfig, RunResult, run_scenario
from chaos.workloads.log import WINDOW_MAX
from client import ClientError

EXIT_WRONG = 1
EXIT_UNUSABLE = 2
EXIT_UNDECIDED = 3
EXIT_OF = {Verdict.PASS: 0, Verdict.FAIL: EXIT_WRONG, Verdict.UNKNOWN: EXIT_UNDECIDED}
MARKS = {
    Verdict.PASS: "[green]pass[/]",
    Verdict.FAIL: "[bold red]FAIL[/]",
    Verdict.UNKNOWN: "[yellow]unknown[/]",
}
DEFAULT_SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    # Apache's default of 32 messages an answer makes consumers wait for round trips under load.
    "maxTransferCountOnMessageInMemory": "512",
    "maxTransferBytesOnMessageInMemory": str(1024 * 1024),
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Break a cluster on purpose, under load, and say whether it kept its promises.

    \b
      mqchaos list
      mqchaos run failover --dir /tmp/run --kills 30 --minutes 3
      mqchaos report /tmp/run/history.jsonl -o page.html
    """


@main.command("list")
def list_scenarios() -> None:
    """Name the scenarios that can be run."""
    for scenario in SCENARIOS.values():
        click.echo(f"{scenario.name:12}{scenario.description}")


@main.command()
@click.argument("scenario", type=click.Choice(list(SCENARIOS)))
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where history, verdict, page and the cluster's data go. Must hold no history yet.",
)
@click.option("--seed", default=1, help="The same seed gives the same schedule and messages.")
@click.option("--kills", default=5, type=click.IntRange(0), help="How many times to kill.")
@click.option("--minutes", default=1.0, type=click.FloatRange(0.01), help="How long to load.")
@click.option(
    "--rate",
    default=4000.0,
    type=click.FloatRange(0),
    help="Sends a second; 0: as fast as can be.",
)
@click.option(
    "--window",
    default=256,
    type=click.IntRange(1, WINDOW_MAX),
    help="Most sends in flight per producer.",
)
@click.option("--producers", default=2, type=click.IntRange(1, 64))
@click.option("--consumers", default=2, type=click.IntRange(1, 64))
@click.option("--keys", default=1000, type=click.IntRange(1), help="Order keys per producer.")
@click.option("--body", default=128, type=click.IntRange(0, 4000), help="Bytes per message.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker.conf key for the cluster that is started.",
)
@click.option(
    "--cluster",
    "existing",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Torment this running cluster (of mqcluster) instead of a new one.",
)
def run(
    scenario: str,
    directory: Path,
    seed: int,
    kills: int,
    minutes: float,
    rate: float,
    window: int,
    producers: int,
    consumers: int,
    keys: int,
    body: int,
    settings: tuple[str, ...],
    existing: Path | None,
) -> None:
    """Run SCENARIO and judge it.

    Exit status: 0 all promises kept, 1 one was broken, 2 it could not be run, 3 not decided.
    """
    config = RunConfig(
        scenario,
        directory,
        seed,
        kills,
        minutes,
        producers,
        consumers,
        rate,
        window,
        keys,
        body,
        settings=DEFAULT_SETTINGS | parse_settings(settings),
        existing=existing,
    )
    if (directory / "history.jsonl").exists():
        raise click.UsageError(f"{directory} holds a history already; name another directory")
    console = Console()
    try:
        result = uvloop.run(_interruptible(config, repeat_command(), console))
    except Exception as error:
        words = operating_words(error)
        if words is None:
            raise
        click.echo(f"mqchaos: {words}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None
    print_result(result, console)
    sys.exit(EXIT_OF[result.verdict])


@main.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    default="report.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write.",
)
def report(history: Path, output: Path) -> None:
    """Judge a HISTORY written before and draw its page. Exit status as for run."""
    try:
        found = read_history(history)
    except HistoryError as error:
        click.echo(f"mqchaos: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    checks = check_all(found)
    write_report(found, checks, output)
    console = Console()
    console.print(check_table(checks))
    print_recovery(recoveries(found), console)
    console.print(f"page: {output}", highlight=False)
    sys.exit(EXIT_OF[merge(checks)])


def print_result(result: RunResult, console: Console) -> None:
    """The verdict as a person reads it."""
    tally = result.tally
    console.print(check_table(result.checks))
    console.print(
        f"sent {tally.invoked:,}: {tally.ok:,} acknowledged, {tally.unknown:,} unknown, "
        f"{tally.fail:,} failed",
        highlight=False,
    )
    print_recovery(result.recoveries, console)
    console.print(f"history {result.history}, page {result.page}", highlight=False)
    console.print(f"verdict: {MARKS[result.verdict]}")


def print_recovery(found: Sequence[Recovery], console: Console) -> None:
    """Time from each kill to the next acknowledged send, over all clients and for the slowest."""
    if not found:
        return
    for name, values in (
        ("any client", [r.everybody_ms for r in found]),
        ("slowest client", [r.worst_client_ms for r in found]),
    ):
        times = spread(value for value in values if value is not None)
        words = "none recovered"
        if times is not None:
            words = f"p50 {times.p50:.0f} ms, p99 {times.p99:.0f} ms, max {times.max:.0f} ms"
            words += f" over {times.count} of {len(found)} kills"
        console.print(f"kill to next acknowledged send, {name}: {words}", highlight=False)


def check_table(checks: Sequence[Check]) -> Table:
    """All checks, with examples of what is wrong."""
    table = Table()
    table.add_column("check")
    table.add_column("count", justify="right")
    table.add_column("verdict")
    table.add_column("detail", overflow="fold")
    for check in checks:
        detail = escape("\n".join((check.detail, *check.examples)))
        table.add_row(check.name, f"{check.count:,}", MARKS[check.verdict], detail)
    return table


def repeat_command() -> str:
    """The command line that was typed."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def operating_words(error: BaseException) -> str | None:
    """What to tell the user if this is an operating error, in groups too; None: it is a bug."""
    if isinstance(error, BaseExceptionGroup):
        words = [operating_words(inner) for inner in error.exceptions]
        known = [text for text in words if text is not None]
        return "; ".join(known) if len(known) == len(words) else None
    return str(error) if isinstance(error, ClusterError | ClientError | OSError) else None


async def _interruptible(config: RunConfig, command: str, console: Console) -> RunResult:
    """SIGTERM is taken like Ctrl-C: the run is cancelled and stops its cluster."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    def say(text: str) -> None:
        console.print(text, highlight=False)

    return await run_scenario(config, command, say)


if __name__ == "__main__":
    main()
