"""`python -m tests.fuzz`: attack every port of real processes; CONTRIBUTING.md, Tests.

Without --minutes one seed, with them as many as there is time for. A finding prints the command
that does the same again, and with --bisect the smallest part of it that still shows the fault.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from tests.fuzz import findings
from tests.fuzz.plan import PORTS
from tests.fuzz.run import Scope, bisected, command_of, run
from tests.fuzz.world import ROOT


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="The first, or the only one.")
@click.option("--port", "ports", multiple=True, type=click.Choice([*PORTS, "all"]), default=["all"])
@click.option("--kept", is_flag=True, help="What stands in findings.jsonl, and nothing else.")
@click.option("--minutes", type=float, help="Go on with the seeds that follow.")
@click.option("--steps", help="FROM:TO, only these of each port.")
@click.option("--frames", help="FROM:TO, only these of each step.")
@click.option("--weight", type=int, default=1, help="So many times the frames of each seed.")
@click.option("--bisect", is_flag=True, help="Of a finding, look for the part that is its cause.")
@click.option("--keep", metavar="WORDS", help="Keep what --bisect arrives at in findings.jsonl.")
@click.option("--go-on", is_flag=True, help="A finding ends nothing; all are told at the end.")
@click.option(
    "--product", type=click.Path(path_type=Path), default=ROOT, help="Other servers' code."
)
@click.option("--planted", default="", help="A fault of tests.fuzz.planted, put into the servers.")
def main(
    seed: int,
    ports: tuple[str, ...],
    kept: bool,
    minutes: float | None,
    steps: str | None,
    frames: str | None,
    weight: int,
    bisect: bool,
    keep: str | None,
    go_on: bool,
    product: Path,
    planted: str,
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and the world ends with it
    expected = PORTS if "all" in ports else ports
    scope = Scope(seed, tuple(expected), _pair(steps), _pair(frames), weight=weight)
    if kept:
        given = findings.load()
        scope = Scope(0, tuple(given), given=given)
    outcome = run(
        scope, minutes=minutes, product=product, planted=planted, go_on=go_on, told=click.echo
    )
    for finding in outcome.noted.values():
        click.echo(f"NOTED {finding}")
    click.echo(outcome.summary())
    if outcome.finding is None:
        sys.exit(1 if outcome.noted else 0)
    click.echo(f"FOUND {outcome.finding}\nagain: {command_of(outcome.scope)}")
    if bisect:
        least = bisected(outcome, product=product, planted=planted, told=click.echo)
        click.echo(f"least: {command_of(least)}")
        if keep and len(least.ports) == 1:
            findings.keep(least.ports[0], least.plan(least.ports[0]), keep)
    sys.exit(1)


def _pair(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    return int(start), int(end)


if __name__ == "__main__":
    main()
