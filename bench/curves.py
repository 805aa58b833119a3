"""`python -m bench.curves`: where throughput, latency, memory and CPU bend.

One curve for each thing that grows: sends in flight, sizes, connections, topics, … Each point is
measured on a group of its own (bench.points). Compare the points of one run with each other, and a
rate with the floor beside it; absolute figures belong to the machine and the hour. `--json` keeps
all figures (a file that exists is added to), `--page` draws them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench import points
from bench.curvepage import write_page
from bench.group import raise_file_limit
from bench.points import Figures


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: `measure(value, seconds of load)` returns the figures of a point."""

    name: str
    axis: str
    values: tuple[int, ...]
    measure: Callable[[int, float], Awaitable[Figures]]


CURVES = {
    curve.name: curve
    for curve in (
        Curve("window", "sends in flight", (1, 4, 16, 64, 256, 1_024, 4_096), points.window),
        Curve("body", "bytes of a body", (16, 128, 1_024, 8_192, 65_536, 1 << 20), points.body),
        Curve("connections", "connections", (1, 10, 100, 1_000, 5_000), points.connections),
        Curve("topics", "topics", (1, 100, 1_000, 10_000, 100_000), points.topics),
        Curve("log", "MiB of log on one replica", (256, 1_024, 5_120, 20_480), points.log_size),
        Curve("log3", "MiB of log on three", (256, 1_024, 5_120), points.log_of_three),
        Curve("groups", "groups of three", (1, 2, 4, 8), points.groups),
        Curve("queues", "queues of one topic", (1, 4, 16, 64, 256, 1_024), points.queues),
        Curve("consumers", "members of a group", (1, 10, 100, 300, 1_000), points.consumers),
        Curve("replicas", "replicas", (1, 3, 5), points.replicas),
    )
}
Results = dict[str, dict[str, Figures]]  # curve → value, in digits → figures


async def measure(curve: Curve, values: Sequence[int], seconds: float) -> dict[str, Figures]:
    """Measure the points of a curve, one after the other."""
    found = {}
    for value in values:
        begun = time.monotonic()
        print(f"{curve.name} {value:,} …", flush=True)
        found[str(value)] = await curve.measure(value, seconds)
        print(f"{curve.name} {value:,}: {time.monotonic() - begun:.0f} s", flush=True)
    return found


def table(curve: Curve, found: Mapping[str, Figures]) -> Table:
    """Return a curve's figures, a line each."""
    shown = Table(curve.axis, *(f"{int(value):,}" for value in found))
    for name in dict.fromkeys(name for figures in found.values() for name in figures):
        cells = [figures.get(name) for figures in found.values()]
        shown.add_row(name, *("" if cell is None else _digits(cell) for cell in cells))
    return shown


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read `--points`."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter("numbers, separated by commas") from error


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--curve",
    "names",
    multiple=True,
    type=click.Choice(list(CURVES)),
    help="A curve to measure. Repeatable; all if there is none.",
)
@click.option("--points", "values", callback=numbers, help="Other values than the curve's own.")
@click.option("--seconds", default=5.0, type=click.FloatRange(0.1), help="Of each load.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--page", "page_path", type=click.Path(dir_okay=False, path_type=Path))
def main(
    names: tuple[str, ...],
    values: tuple[int, ...] | None,
    seconds: float,
    json_path: Path | None,
    page_path: Path | None,
) -> None:
    """Measure how a Raft group behaves as one thing grows."""
    raise_file_limit()
    results: Results = {}
    if json_path is not None and json_path.exists():
        results = orjson.loads(json_path.read_bytes())
    for name in names or CURVES:
        curve = CURVES[name]
        for value in values or curve.values:
            found = uvloop.run(measure(curve, [value], seconds))
            known = results.get(name, {}) | found
            results[name] = dict(sorted(known.items(), key=lambda item: int(item[0])))
            if json_path is not None:  # after each point: a run takes long
                json_path.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
        Console(width=max(100, 30 + 14 * len(results[name]))).print(table(curve, results[name]))
    if page_path is not None:
        write_page(page_path, {CURVES[name].axis: found for name, found in results.items()})
    sys.exit(0)


if __name__ == "__main__":
    main()
