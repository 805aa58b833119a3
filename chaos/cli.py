"""The command line of `mqchaos`: run faults, judge histories, draw pages, compare engines.

The commands are in chaos.commands, imported when one of them runs, so that `--help` and the shell's
completion start quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from raftmq import __version__
from raftmq.ops.interpreter import version_option

from .cluster.clusterfile import COMPOSE, PROCESSES
from .cluster.topology import MODES, REPLICAS_MAX
from .run.engines import ENGINES
from .workloads.load import DESCRIPTIONS, LOG, MINUTES_MIN, WINDOW_MAX


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@version_option("mqchaos", __version__)
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
    _work().list_scenarios()


def load_options(command: Callable[..., None]) -> Callable[..., None]:
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
            type=click.Choice(list(DESCRIPTIONS)),
            help="What clients do; may be repeated (default: the scenario's, usually log).",
        ),
        click.option(
            "--rate",
            type=click.FloatRange(0),
            help="Sends a second of the workload `log`, open loop; 0: as fast as can be (default: "
            f"{LOG.rate_per_s:g}, or the scenario's share of it).",
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
@click.option(
    "--watch",
    is_flag=True,
    help="Also judge the acknowledgements by `mqaudit watch`, which is killed now and then.",
)
@load_options
def run(**given: Any) -> None:
    """Run SCENARIO (see: list), or faults written as KIND:WHOM, and judge it.

    Several faults separated by spaces are inflicted in turn, those joined by + together.
    Exit status: 0 all promises kept, 1 one was broken, 2 it could not be run, 3 not decided, 4 the
    experiment did not take place.
    """
    _work().run(**given)


@main.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    default="report.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write; verdict.json goes beside it.",
)
def report(**given: Any) -> None:
    """Judge a HISTORY written before and draw its page. Exit status as for run."""
    _work().report(**given)


@main.command("watch")
@click.argument("path", type=click.Path(path_type=Path))
def watch_run(**given: Any) -> None:
    """Show a run that goes on, live: PATH is its directory or its history.

    Ends with the run's verdict. Exit status as for run.
    """
    _work().watch_run(**given)


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
def compare(**given: Any) -> None:
    """Put engines under the same load and faults: one table, one page.

    Exit status: 0 if every run could be judged, whatever it lost; 2 if one could not be run; 4 if
    one did not take place.
    """
    _work().compare(**given)


def _work() -> Any:
    from . import commands as work

    return work


if __name__ == "__main__":
    main()
