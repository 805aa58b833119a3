"""The main demo, `python -m demo.flights` (make demo).

It sends a year of departures, in order per aircraft, to three replicas, kills the leader twice with
-9, and reads with two consumers. Spark then compares the replicas' stores with the clients' results
and computes the delays of every carrier and month, which must equal the data set's. Exit status is
0 if all checks hold, 1 if not, 2 if the demo could not run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click
import uvloop
from rich.console import Console

from demo.board import Board
from demo.delays import delays_in_topic, differences
from demo.flights_data import ROW_COUNT, DataMissing, Flight, data_file, delays_of, read_flights
from demo.load import TOPIC, LoadConfig, LoadResult, run_load
from demo.verdict import Evidence, all_hold, lines_of, table_of, write_verdict
from raftmq.audit.api import run_audit, session
from raftmq.audit.find_java import JavaNotFound
from raftmq.audit.read.history import HistoryUnfit
from raftmq.audit.read.store_files import StoreError
from raftmq.chaos.checks.suite import check_all
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.commands import operating_text
from raftmq.chaos.history.files import read_history
from raftmq.chaos.report.recovery import recoveries
from raftmq.chaos.workloads.load import WINDOW_MAX

EXIT_WRONG = 1
EXIT_UNUSABLE = 2
MARKER = ".flights-demo"  # only directories with this file are ever removed


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--dir",
    "directory",
    default="data/demo",
    type=click.Path(file_okay=False, path_type=Path),
    help="Work directory: stores, logs, history. Removed at the start.",
)
@click.option(
    "--report",
    "report_directory",
    default="report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where index.html and verdict.json go.",
)
@click.option("--limit", type=click.IntRange(30, ROW_COUNT), help="Send only so many departures.")
@click.option(
    "--window",
    default=256,
    type=click.IntRange(1, WINDOW_MAX),
    help="Most sends in flight; of one aircraft there is never more than one.",
)
@click.option("--rate", type=click.FloatRange(1), help="Sends a second; else as fast as can be.")
@click.option("--keep", is_flag=True, help="Keep the work directory of the run before, renamed.")
def main(
    directory: Path,
    report_directory: Path,
    limit: int | None,
    window: int,
    rate: float | None,
    keep: bool,
) -> None:
    """Send a year of departures through two leader kills and prove that nothing was lost."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    console = Console()
    board = Board(console)
    command = shlex.join(["python", "-m", "demo.flights", *sys.argv[1:]])
    try:
        data = data_file()
        make_room(directory, keep)
        config = LoadConfig(directory, limit or ROW_COUNT, window, rate, command)
        ok = run(config, data, report_directory, board)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None
    except (DataMissing, JavaNotFound, StoreError, HistoryUnfit, RoomTaken) as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except Exception as error:
        text = operating_text(error)
        if text is None:
            raise
        click.echo(f"demo: {text}", err=True)
        sys.exit(EXIT_UNUSABLE)
    sys.exit(0 if ok else EXIT_WRONG)


def run(config: LoadConfig, data: Path, report_directory: Path, board: Board) -> bool:
    """Run the whole demo; return whether everything holds."""
    start_s = time.monotonic()
    flights = itertools.islice(read_flights(data), config.total)
    load = uvloop.run(_interruptible_load(config, flights, board))
    loaded_s = time.monotonic()
    evidence = judge(config, data, load, board, loaded_s - start_s)
    lines = lines_of(evidence)
    write_verdict(evidence, lines, report_directory)
    board.console.print(table_of(lines))
    ok = all_hold(lines)
    text = "[bold green]everything holds[/]" if ok else "[bold red]something is WRONG[/]"
    took_s = time.monotonic() - start_s
    page = report_directory / "index.html"
    board.console.print(f"{text} ({took_s:.0f} s); page: {page}", highlight=False)
    return ok


def judge(
    config: LoadConfig, data: Path, load: LoadResult, board: Board, load_s: float
) -> Evidence:
    """Audit the stores, check the history, and compute delays, in a single Spark session."""
    spark_start_s = time.monotonic()
    first_store = next(iter(load.stores.values()))
    with session() as spark:
        board.say("Spark is up")
        with board.during("Spark audits three stores against the history"):
            report = run_audit(load.stores, config.history, TOPIC, spark=spark)
        with board.during("Spark computes delays by carrier and month from the topic"):
            result = delays_in_topic(spark, first_store, TOPIC)
    spark_s = time.monotonic() - spark_start_s
    expected = delays_of(itertools.islice(read_flights(data), config.total))
    with board.during("checking the history"):
        history = read_history(config.history)
        checks = check_all(history)
    return Evidence(
        load,
        history,
        checks,
        recoveries(history),
        report,
        expected,
        differences(expected, result),
        {"cluster and load": load_s, "Spark": spark_s},
    )


class RoomTaken(Exception):
    """The work directory has foreign content and is not changed."""


def make_room(directory: Path, keep: bool) -> None:
    """Create an empty work directory, and stop an earlier demo's cluster there. Raises RoomTaken
    for a directory that no demo created."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise RoomTaken(f"{directory} is not empty and not a demo's; name another with --dir")
        if (directory / "cluster" / "cluster.json").exists():
            asyncio.run(_stop_earlier(directory / "cluster"))
        if keep:
            directory.rename(_free_name(directory))
        else:
            shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()


async def _stop_earlier(directory: Path) -> None:
    cluster = Cluster(directory)
    try:
        await cluster.down()
    finally:
        await cluster.close()


def _free_name(directory: Path) -> Path:
    return next(
        name
        for name in (directory.with_name(f"{directory.name}.{n}") for n in itertools.count(1))
        if not name.exists()
    )


async def _interruptible_load(
    config: LoadConfig, flights: Iterable[Flight], board: Board
) -> LoadResult:
    """Handle SIGTERM like Ctrl-C, by cancelling the load and stopping its cluster."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_load(config, flights, board)


if __name__ == "__main__":
    main()
