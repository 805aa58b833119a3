"""`mqaudit watch`, the command of the continuous audit."""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..command_line import (
    EXIT_UNUSABLE,
    connected,
    connection_options,
    give_up,
    not_installed,
    print_error,
)

if TYPE_CHECKING:
    from .results import Results
    from .watch import Watch

EXIT_LOST, EXIT_LATE = 1, 4  # as mqaudit's


@click.command("watch")
@connection_options
@click.option("--audit-topic", metavar="TOPIC", help="The producers' audit topic.")
@click.option(
    "--list",
    "tables",
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="Acknowledged messages as Parquet: a file, or a directory in which files appear.",
)
@click.option(
    "--consumer-group",
    "consumer_groups",
    metavar="GROUP",
    multiple=True,
    envvar="RAFTMQ_WATCH_GROUPS",
    help="Also find messages that this group has not consumed for --minutes; may be repeated "
    "(or RAFTMQ_WATCH_GROUPS, separated by spaces).",
)
@click.option(
    "--results",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the watch's state, findings.jsonl, watch.html and mqaudit_watch.prom.",
)
@click.option(
    "--minutes",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0),
    help="An acknowledged message that is not found for so long is missing or late.",
)
@click.option(
    "--every",
    "every_s",
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="Pause between two rounds.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve watch.html at / and mqaudit_watch.prom at /metrics there.",
)
@click.option("--once", is_flag=True, help="Judge what is there, and exit.")
@click.option("--cores", default=2, show_default=True, type=click.IntRange(1, 64))
@click.option("--master", default="", metavar="URL", help="A Spark cluster for the tasks.")
def watch(
    namesrv: str | None,
    context: str | None,
    audit_topic: str | None,
    tables: Path | None,
    consumer_groups: tuple[str, ...],
    results: Path,
    minutes: float,
    every_s: float,
    listen: str | None,
    once: bool,
    cores: int,
    master: str,
) -> None:
    """Judge continuously whether acknowledged messages are stored as they were sent.

    \b
      mqaudit watch --namesrv 127.0.0.1:9876 --audit-topic Receipts --results /var/lib/mqwatch

    Producers with an audit topic write their acknowledgements there. Each acknowledged message
    is read at its place. A message that is missing, altered or late is a line of the output and of
    findings.jsonl, and counts in mqaudit_watch.prom. So does a queue that a consumer group has not
    consumed. A restart continues in --results.

    Exit status, after a signal or with --once: 0 nothing found, 1 messages missing or altered, 2
    it could not run or acknowledgements could not be read, 4 messages late or not consumed.
    """
    if not (audit_topic or tables):
        raise click.UsageError("Give --audit-topic, --list, or both.")
    # Imported here, because a usage error needs none of this.
    try:
        from raftmq.spark.errors import FormatError

        from ..engine.choice import EngineOptions, Engines
        from ..engine.frames import EngineFailed
        from ..find_java import JavaNotFound
        from .results import Results, served
        from .state import State, StateError
        from .watch import Subject, Watch
    except ImportError as missing:
        not_installed(missing)
    try:
        connection = connected(namesrv, context)
        subject = Subject(connection, audit_topic or "", tables, consumer_groups)
        with ExitStack() as stack:
            state = stack.enter_context(State(results, str(subject)))
            engines = stack.enter_context(Engines(EngineOptions(cores=cores, master=master)))
            runner = Watch(subject, engines.of(0), state, minutes * 60)
            if listen:
                stack.enter_context(served(results, listen))
            counts = _run(runner, Results(state), once=once, every_s=every_s)
    except (
        *(StateError, sqlite3.Error, EngineFailed, JavaNotFound, FormatError),
        *(OSError, ValueError),
    ) as error:
        give_up(str(error))
    statuses = {
        EXIT_LOST: counts["missing"] + counts["altered"],
        EXIT_UNUSABLE: counts["unread"],
        EXIT_LATE: counts["late"] + counts["unconsumed"],
    }
    sys.exit(next((status for status, count in statuses.items() if count), 0))


def _run(runner: Watch, results: Results, *, once: bool, every_s: float) -> Counter[str]:
    """Judge until a signal, or with `once` all that is there; return the findings by kind."""
    from raftmq.client.errors import ClientError
    from raftmq.remoting.errors import RemotingError

    from .results import text_of

    stopped = threading.Event()
    for number in () if once else (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    counts: Counter[str] = Counter()
    while not stopped.is_set():
        all_read, failure = True, ""
        try:
            all_read = runner.round()
        except (ClientError, RemotingError) as error:
            failure = str(error)
        for row in results.publish(int(time.time() * 1000)):
            counts[row["kind"]] += 1
            click.echo(text_of(row))
        if failure and once:
            raise OSError(failure)
        if failure:
            print_error(f"not all could be judged, and is repeated: {failure}")
        if once and all_read:
            break
        if all_read:
            stopped.wait(every_s)
    return counts
