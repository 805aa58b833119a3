"""mqaudit, the command that audits running brokers or stopped stores.

Exit status 0 means that nothing is wrong, 1 that messages are lost or promises broken, 3 that
replicas are damaged, 4 that brokers are down. 2 means that the audit could not run (usage, no Java,
unusable stores or history), or that a report could not be written. A closed standard output does
not change it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq import __version__
from raftmq.ops.interpreter import version_option

from .command_line import (
    EXIT_UNUSABLE,
    connection_options,
    connection_to,
    environment_of,
    give_up,
    not_installed,
    print_error,
)
from .topic_commands import profile, spark_options, table
from .watch.command import watch

if TYPE_CHECKING:
    from .report.report import AuditReport

EXITS = {"lost": 1, "damaged": 3, "down": 4}  # by verdict, the gravest first


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("mqaudit", __version__)
@click.option(
    "--run",
    "run_directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a run (`mqchaos run --dir DIR`), with its history and stores.",
)
@click.option(
    "--history",
    type=click.Path(exists=True, dir_okay=False),
    help="History of the run (JSON Lines), as mqchaos writes it.",
)
@click.option(
    "--acknowledged",
    metavar="FILE",
    type=click.Path(exists=True),
    help="Acknowledged messages of producers, as Parquet or JSON lines, instead of a history.",
)
@click.option("--topic", default="", help="Judge only the history's sends to this topic.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="NAME=DIR",
    help="A replica's store directory (with commitlog/, consumequeue/, checkpoint), or its URI "
    "(s3://…, hdfs://…), of which ranges are read. Give every replica of the group. A --master's "
    "executors reach them and --staging at these URIs or paths.",
)
@click.option(
    "--mode",
    type=click.Choice(["raft", "classic"]),
    help="Raft: a majority must hold a message. Classic: a master or one of its slaves. "
    "By default, cluster.json or the logs decide.",
)
@click.option(
    "--group",
    metavar="BROKERNAME",
    help="The broker group of these stores, if the history covers several. "
    "By default, cluster.json names it.",
)
@connection_options
@click.option(
    "--retention",
    "retention_hours",
    metavar="HOURS",
    type=click.IntRange(0),
    help="How long brokers keep messages (fileReservedTime). Younger messages that are gone are "
    "lost. By default, running brokers answer it, and 72 is assumed of stores.",
)
@click.option(
    "--scratch",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with room for decoded data.",
)
@click.option(
    "--staging",
    metavar="PLACE",
    help="Directory or URI for decoded data, instead of --scratch, that all of Spark's executors "
    "reach.",
)
@click.option(
    "--mib-per-s",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    help="Read and digest at most this much per second of each running replica, over all tasks.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), help="Write the report to this file."
)
@click.option(
    "--results",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the reports to this directory as Parquet tables, and mqaudit.prom for Prometheus.",
)
@click.option(
    "--incremental",
    is_flag=True,
    help="Read only the log since the audit before in --results, if that found nothing wrong; "
    "else all of it.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    help="Evaluate the checks in this process, or on Spark, which needs Java 17. By default, "
    "Spark if the logs have more than 8 GiB, or with --master, --conf or a URI for --staging.",
)
@spark_options
@click.pass_context
def main(
    click_context: click.Context,
    /,
    run_directory: Path | None,
    stores: tuple[str, ...],
    mode: str | None,
    group: str | None,
    namesrv: str | None,
    context: str | None,
    mib_per_s: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """Read a group's stores and compare them with the history of a run, if there is one.

    \b
      mqaudit --namesrv 127.0.0.1:9876
      mqaudit --run /tmp/run
      mqaudit --history h.jsonl --store n0=d0/store --store n1=d1/store …

    Finds messages acknowledged and lost, never sent, altered, stored twice or out of order, holes
    in queue offsets, damaged bytes, replicas that differ, ConsumeQueues that point wrong, and all
    that the checkers of mqchaos find in a history. --namesrv names running brokers, of all groups
    or only of --group, --store the stores of stopped brokers. Checks that need a history are
    skipped without one, and listed as not judged.

    Exit status: 0 nothing wrong, 1 messages lost or promises broken, 2 it could not be audited, 3
    replicas damaged, 4 brokers down.
    """
    if click_context.invoked_subcommand is not None:
        return
    directories = _parse_stores(stores)
    environment = environment_of(context)
    results = options["results"]
    if context is not None:
        namesrv = namesrv or environment.get("NAMESRV_ADDR")
    if run_directory is not None:
        options["history"] = options["history"] or str(run_directory / "history.jsonl")
        directories = directories or _stores_of(run_directory, group)
    if bool(namesrv) == bool(directories):
        raise click.UsageError(
            "Name running brokers (--namesrv, --context), or stores (--store, --run)."
        )
    if options["topic"] and not options["history"]:
        raise click.UsageError("--topic names a topic of a --history.")
    if options["history"] and options["acknowledged"]:
        raise click.UsageError("Give --history or --acknowledged.")
    if options["incremental"] and (options["history"] or results is None):
        raise click.UsageError("--incremental goes with --results, and without a history.")
    _check_writable(json_path, results)
    engine_options = {name: options.pop(name) for name in ("engine", "cores", "master")}
    engine_options["engine"] = engine_options["engine"] or ""
    engine_options["settings"] = _parse_settings(options.pop("settings"))
    engine_options["scratch"] = options["scratch"]
    request = AuditRequest(
        *(namesrv, environment, directories, mode, group, options, mib_per_s << 20)
    )
    audited_at_ms = time.time_ns() // 1_000_000
    reports, unaudited = _audited(request, engine_options)
    if not reports:
        give_up(unaudited)
    if unaudited:
        gap = f"other broker groups: {unaudited}"
        reports = [replace(each, not_judged=(*each.not_judged, gap)) for each in reports]
    from .report.results import write_results
    from .report.text_report import print_report

    complaints = [unaudited] if unaudited else []
    if json_path is not None:
        parts = [report.to_json() for report in reports]
        content = parts[0] if not namesrv else b"[" + b",".join(parts) + b"]"
        with _kept_going(json_path, complaints):
            Path(json_path).write_bytes(content)
    if results is not None:
        with _kept_going(results, complaints):
            write_results(results, reports, audited_at_ms)
    with _kept_going("standard output", complaints):
        for report in reports:
            print_report(report)
    for message in complaints:
        print_error(message)
    verdicts = frozenset[str]().union(*(report.verdicts for report in reports))
    statuses = [status for verdict, status in EXITS.items() if verdict in verdicts]
    statuses += [EXIT_UNUSABLE] if complaints else [0]
    sys.exit(statuses[0])


for command in (watch, table, profile):
    main.add_command(command)


@contextmanager
def _kept_going(target: object, complaints: list[str]) -> Iterator[None]:
    """Collect write errors of `directory`, so that the report is still written elsewhere."""
    try:
        yield
    except OSError as error:
        complaints.append(f"{error.filename or target}: {error.strerror or error}")


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The subject of an audit, either running brokers (`namesrv`, with connection settings in
    `environment`), or stores. `options` are those of audit.run.AuditOptions."""

    namesrv: str | None
    environment: Mapping[str, str]
    stores: Mapping[str, str]
    mode: str | None
    group: str | None
    options: Mapping[str, Any]
    bytes_per_s: int


def _audited(
    request: AuditRequest, engine_options: Mapping[str, Any]
) -> tuple[list[AuditReport], str]:
    """Return the reports, and the reason why other groups could not be audited ("" if all were)."""
    # Imported here so that --help and usage errors do not wait for Spark.
    try:
        from raftmq.client.errors import ClientError
        from raftmq.remoting.errors import RemotingError

        from .api import audit_stores
        from .engine.choice import EngineOptions, Engines
        from .engine.frames import EngineFailed
        from .find_java import JavaNotFound
        from .live import audit_cluster
        from .read.history import HistoryUnfit
        from .read.live_stores import NotAudited
        from .read.store_files import StoreError, refuse_running
        from .report.text_report import progress_shown
        from .run import AuditOptions
    except ImportError as missing:
        not_installed(missing)
    unfit = (
        *(NotAudited, ClientError, JavaNotFound, StoreError, HistoryUnfit),
        *(RemotingError, OSError, ValueError),
    )
    reports: list[AuditReport] = []
    try:
        with progress_shown() as progress:
            refuse_running(request.stores)
            progress("starting")
            options = AuditOptions(**request.options, progress=progress)
            of_engine = EngineOptions(**engine_options)
            of_engine.check(options.acknowledged, options.staging)
            with Engines(of_engine) as engines:
                if request.namesrv is None:
                    stores, mode = request.stores, request.mode
                    return [audit_stores(engines, stores, options, mode, request.group)], ""
                audit_cluster(
                    *(connection_to(request.namesrv, request.environment), options),
                    engines=engines,
                    group=request.group,
                    bytes_per_s=request.bytes_per_s,
                    on_report=reports.append,
                )
                return reports, ""
    except unfit as error:
        return reports, str(error)
    except EngineFailed as error:
        return reports, f"a query failed: {error}"


def _check_writable(json_path: str | None, results: Path | None) -> None:
    """Refuse unwritable report paths before the audit."""
    try:
        if json_path is not None:
            Path(json_path).open("ab").close()
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}")


def _stores_of(run_directory: Path, group: str | None) -> dict[str, str]:
    try:
        from .read.cluster_info import stores_of_run
        from .read.store_files import StoreError
    except ImportError as missing:
        not_installed(missing)
    try:
        return stores_of_run(run_directory, group)
    except StoreError as error:
        give_up(str(error))


def _parse_settings(given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{text!r} is not spark.KEY=VALUE", param_hint="--conf")
        settings[key] = value
    return settings


def _parse_stores(stores: tuple[str, ...]) -> dict[str, str]:
    directories: dict[str, str] = {}
    for text in stores:
        name, equals, directory = text.partition("=")
        if not equals or not name or not directory:
            raise click.BadParameter(f"{text!r} is not NAME=DIR", param_hint="--store")
        if name in directories:
            raise click.BadParameter(f"{name} is given twice", param_hint="--store")
        directories[name] = directory
    return directories


if __name__ == "__main__":
    main()
