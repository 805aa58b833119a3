"""`mqaudit table` and `mqaudit profile`, which ask Spark about topics of running brokers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from .command_line import connected, connection_options, give_up, not_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.spark.options import Connection

EXIT_WRONG = 1  # as mqaudit's
T = TypeVar("T", bound=Callable[..., Any])


def spark_options(command: T) -> T:
    """Give a command --cores, --master and --conf."""
    for option in (
        click.option(
            "--conf",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting for Spark; repeatable.",
        ),
        click.option(
            "--master",
            default="",
            metavar="URL",
            help="A Spark cluster to run on, instead of this machine's cores. Its executors need "
            "raftmq[audit].",
        ),
        click.option(
            "--cores",
            default=2,
            show_default=True,
            type=click.IntRange(1, 64),
            help="Cores to use.",
        ),
    ):
        command = option(command)
    return command


@click.command("table")
@click.argument("location", metavar="PATH")
@connection_options
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    help="Spark's name of the table's format; `table` for a name in its catalog instead of a path,"
    " `iceberg` for one in PyIceberg's, as lake.mq.orders.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="DIR",
    help="The stream's checkpoint. The table must have all messages up to its last micro-batch.",
)
@click.option(
    "--from-start",
    is_flag=True,
    help="The table must have all messages from the first that the topic still has.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the report here.")
@spark_options
def table(
    location: str,
    namesrv: str | None,
    context: str | None,
    table_format: str,
    checkpoint: str,
    from_start: bool,
    json_path: str | None,
    **spark: Any,
) -> None:
    """Compare a table with the topics that a stream has written into it.

    \b
      mqaudit table /data/orders --namesrv 127.0.0.1:9876 --checkpoint /data/orders-checkpoint

    Names messages that the table lacks, has twice or has altered, and rows that no topic has.

    Exit status: 0 they agree, 1 they do not, 2 they could not be compared.
    """
    with _session(namesrv, context, spark) as (session, connection):
        from .report.text_report import print_report
        from .table import TableOptions, audit_table

        options = TableOptions(location, table_format, checkpoint, from_start)
        report = audit_table(session, connection, options)
        if json_path is not None:
            Path(json_path).write_bytes(report.to_json())
        print_report(report)
    sys.exit(0 if report.ok else EXIT_WRONG)


@click.command("profile")
@click.argument("topic")
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each queue.")
@spark_options
def profile(
    topic: str, namesrv: str | None, context: str | None, as_json: bool, **spark: Any
) -> None:
    """Print sizes, keys, tags, skew and gaps in time of a topic's queues.

    \b
      mqaudit profile Orders --namesrv 127.0.0.1:9876
    """
    with _session(namesrv, context, spark) as (session, connection):
        from raftmq.spark import frames
        from raftmq.spark.options import options_of

        read = session.read.format("raftmq").options(**options_of(connection), topic=topic)
        rows = frames.profile(read.load()).orderBy(*frames.QUEUE)
        queues = [row.asDict() for row in rows.collect()]
    for queue in queues:
        click.echo(orjson.dumps(queue) if as_json else text_of(queue))


@contextmanager
def _session(
    namesrv: str | None, context: str | None, spark: dict[str, Any]
) -> Iterator[tuple[SparkSession, Connection]]:
    """Yield a session with the project's formats, and the connection. Ends with status 2 for an
    error."""
    settings = dict(text.partition("=")[::2] for text in spark["settings"])
    try:
        from raftmq.client.errors import ClientError
        from raftmq.remoting.errors import RemotingError
        from raftmq.spark.errors import FormatError
        from raftmq.spark.shipping import register

        from .find_java import JavaNotFound
        from .session import SPARK_ERRORS, cause, session
        from .table import TableUnfit

        try:
            connection = connected(namesrv, context)
            with session(spark["cores"], spark["master"], settings) as started:
                yield register(started), connection
            return
        except SPARK_ERRORS as error:
            reason = cause(error)
        except (
            *(ClientError, RemotingError, FormatError, JavaNotFound, TableUnfit),
            *(OSError, ValueError),
        ) as error:
            reason = str(error)
    except ImportError as missing:
        not_installed(missing)
    give_up(reason)


def text_of(queue: dict[str, Any]) -> str:
    """Return a queue's profile as lines, since a table would be too wide."""
    lines = []
    for name, value in queue.items():
        shown = f"{value:,.3f}" if isinstance(value, float) else f"{value}"
        lines.append(f"{name:15} {'-' if value is None else shown}")
    return "\n".join(lines) + "\n"
