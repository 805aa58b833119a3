"""`make bench-peers`, our broker and other systems in turns; prints a table, a page and figures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.peers.apache import APACHE
from bench.peers.jetstream import JETSTREAM
from bench.peers.ours import OURS, Floor
from bench.peers.rabbitmq import RabbitMq
from bench.peers.report import HEAD, lines, markdown, reasons, write_page
from bench.peers.rounds import as_json, measure
from bench.peers.system import MANY, ROWS, System

SYSTEMS: tuple[System, ...] = (Floor(), *OURS, *APACHE, *JETSTREAM, RabbitMq())
ROUNDS_MAX = 100


def chosen(text: str, names: Sequence[str]) -> list[str]:
    """Return the names with one of these words. Raises BadParameter for a word without a name."""
    desired = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in desired:
        if not any(word in name.lower() for name in names):
            raise click.BadParameter(f"{word!r} is in none of: {'; '.join(names)}")
    return [n for n in names if not desired or any(word in n.lower() for word in desired)]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--rounds", default=3, type=click.IntRange(1, ROUNDS_MAX))
@click.option("--scale", default=1.0, type=click.FloatRange(0.001, 100), help="More messages.")
@click.option("--only", default="", help="Words of names, separated by commas.")
@click.option("--rows", default="", help="Words of rows; the capacity is measured in any case.")
@click.option(
    "--capacity",
    type=click.FloatRange(100),
    help="Messages a second, of which paced rows have their share; each system's own by default.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Every figure.")
@click.option("--page", type=click.Path(path_type=Path), help="An HTML page with charts.")
@click.option("--table", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def main(
    rounds: int,
    scale: float,
    only: str,
    rows: str,
    capacity: float | None,
    json_path: Path | None,
    page: Path | None,
    as_markdown: bool,
) -> None:
    """Measure our broker and other systems in turns, on this machine; medians of ROUNDS."""
    about = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; {rounds} rounds in turns, scale {scale:g}"
    )
    names = chosen(only, [system.name for system in SYSTEMS])
    systems = [system for system in SYSTEMS if system.name in names]
    desired = {MANY, *chosen(rows, ROWS)}

    def tell(text: str) -> None:
        click.echo(text, err=True)

    result = uvloop.run(measure(systems, rounds, scale, tell, desired, capacity))
    click.echo(about)
    if as_markdown:
        click.echo(markdown(result))
    else:
        table = Table(*HEAD)
        for line in lines(result):
            table.add_row(*line)
        Console().print(table)
        for reason in reasons(result):
            click.echo(reason)
    if json_path is not None:
        kept = {"about": about, "systems": as_json(result)}
        json_path.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2))
    if page is not None:
        write_page(page, result, about)


if __name__ == "__main__":
    main()
