"""mqaudit: check the stores of a broker group against what its clients were told.

Exit status 0: nothing wrong. 1: something is. 2: it could not be audited (usage, no Java, files
that are no store or no history).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from raftmq import __version__

if TYPE_CHECKING:
    from raftmq.audit.report import AuditReport

EXIT_WRONG = 1
EXIT_UNUSABLE = 2
CHAOS_TOPIC = "Chaos"  # where mqchaos' workload `log` sends


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mqaudit")
@click.option(
    "--run",
    "run_directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="What `mqchaos run --dir DIR` left: its history and its stores, instead of naming them, "
    f"and its topic {CHAOS_TOPIC}.",
)
@click.option(
    "--history",
    type=click.Path(exists=True, dir_okay=False),
    help="History of the run (JSON Lines), as mqchaos writes it.",
)
@click.option("--topic", help="The topic whose messages are audited.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="NAME=DIR",
    help="A replica's store directory (with commitlog/, consumequeue/, checkpoint). "
    "Give every replica of the group.",
)
@click.option(
    "--mode",
    type=click.Choice(["raft", "classic"]),
    help="Raft: a majority must hold a message. Classic: a master or one of its slaves. "
    "Without it cluster.json says it, or the logs themselves.",
)
@click.option(
    "--group",
    metavar="BROKERNAME",
    help="The broker group of these stores, where the history is of several. "
    "Without it cluster.json says it.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the report here.")
@click.option(
    "--cores", default=2, show_default=True, type=click.IntRange(1, 64), help="Cores for Spark."
)
def main(
    run_directory: Path | None,
    history: str | None,
    topic: str | None,
    stores: tuple[str, ...],
    mode: str | None,
    group: str | None,
    json_path: str | None,
    cores: int,
) -> None:
    """Read a group's stores with Spark and compare them with the history of a run.

    \b
      mqaudit --run /tmp/run
      mqaudit --history h.jsonl --topic T --store n0=d0/store --store n1=d1/store …

    Finds messages acknowledged and lost, never sent, altered, stored twice or out of order, holes
    in queue offsets, damaged bytes, replicas that differ, ConsumeQueues that point wrong, consumer
    offsets and metadata that went back, two leaders in one term. Audit stopped brokers.

    Exit status: 0 nothing wrong, 1 something is, 2 it could not be audited.
    """
    directories = _parse_stores(stores)
    if run_directory is not None:
        history = history or str(run_directory / "history.jsonl")
        topic = topic or CHAOS_TOPIC
        directories = directories or _stores_of(run_directory, group)
    for name, value in (("--history", history), ("--topic", topic), ("--store", directories)):
        if not value:
            raise click.UsageError(f"Missing option '{name}', or '--run' instead of all three.")
    assert history is not None
    assert topic is not None
    from raftmq.audit.printed import print_report

    report = _audit(directories, history, topic, cores, mode, group)
    print_report(report)
    if json_path is not None:
        Path(json_path).write_bytes(report.to_json())
    sys.exit(0 if report.ok else EXIT_WRONG)


def _audit(
    stores: dict[str, str],
    history: str,
    topic: str,
    cores: int,
    mode: str | None,
    group: str | None,
) -> AuditReport:
    # Imported here, not above, so that --help and usage errors do not wait for Spark.
    try:
        from raftmq.audit.api import run_audit
        from raftmq.audit.files import StoreError
        from raftmq.audit.history import HistoryUnfit
        from raftmq.audit.java import JavaNotFound
        from raftmq.audit.session import session
    except ImportError as missing:
        _not_installed(missing)
    try:
        with session(cores) as spark:
            return run_audit(spark, stores, history, topic, mode=mode, group=group)
    except (JavaNotFound, StoreError, HistoryUnfit, OSError) as error:
        _give_up(str(error))


def _stores_of(run_directory: Path, group: str | None) -> dict[str, str]:
    try:
        from raftmq.audit.files import StoreError
        from raftmq.audit.subject import stores_of_run
    except ImportError as missing:
        _not_installed(missing)
    try:
        return stores_of_run(run_directory, group)
    except StoreError as error:
        _give_up(str(error))


def _not_installed(missing: ImportError) -> NoReturn:
    _give_up(f"{missing.name} is not installed: pip install 'raftmq[audit]'")


def _give_up(reason: str) -> NoReturn:
    click.echo(f"mqaudit: {reason}", err=True)
    sys.exit(EXIT_UNUSABLE)


def _parse_stores(stores: tuple[str, ...]) -> dict[str, str]:
    directories: dict[str, str] = {}
    for text in stores:
        name, equals, directory = text.partition("=")
        if not equals or not name or not directory:
            raise click.BadParameter(f"{text!r} is not NAME=DIR", param_hint="--store")
        if name in directories:
            raise click.BadParameter(f"{name} is given twice", param_hint="--store")
        if not (Path(directory) / "commitlog").is_dir():
            raise click.BadParameter(f"{directory} has no commitlog/", param_hint="--store")
        directories[name] = directory
    return directories


if __name__ == "__main__":
    main()
