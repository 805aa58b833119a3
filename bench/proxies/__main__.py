"""`python -m bench.proxies`: sends through our gRPC proxy beside sends through Apache's.

RocketMQ 5's own client sends through one `mqproxy` and through more of them to our Raft group of
three, through Apache's proxy to the same group, and through Apache's proxy to Apache's three
brokers over DLedger. So the third says which part of the difference is the proxy's. Each round
measures every way, in the other order than the round before; the loads of the first rounds are
preceded by a warm-up of each way, for Java compiles what is hot. Medians of the rounds are shown,
and shares of the same round.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.group import cpu_us
from bench.peers.system import Failed, Missing
from bench.proxies.clients import Client, java_client, python_client
from bench.proxies.report import HEAD, Figures, as_json, figures_of, lines, verdicts
from bench.proxies.ways import APACHE, APACHE_AT_OURS, Way, all_ways, our_way
from bench.rounds import markdown
from raftmq.chaos.cluster.topology import PROXIES_MAX

MANY = 16  # sends in flight


@dataclass(frozen=True, slots=True)
class Load:
    """A line of the table."""

    name: str
    client: Callable[[Path, Sequence[str]], AbstractAsyncContextManager[Client]]
    in_flight: int


PYTHON = (
    Load("1", python_client, 1),
    Load(f"{MANY}", python_client, MANY),
)
JAVA = (Load(f"Java, {MANY}", java_client, MANY),)


async def measure(
    counts: Sequence[int],
    loads: Sequence[Load],
    rounds: int,
    seconds: float,
    warm_up_s: float,
    tell: Callable[[str], None],
) -> dict[str, dict[str, list[Figures]]]:
    """Return every round's figures by load and way. Raises Missing or Failed."""
    directory = Path(tempfile.mkdtemp(prefix="bench-proxies-"))
    try:
        tell("brokers and proxies start")
        async with all_ways(directory, counts) as ways, AsyncExitStack() as stack:
            clients: dict[tuple[str, object], Client] = {}
            for way in ways:
                for kind in dict.fromkeys(load.client for load in loads):
                    home = directory / f"client{len(clients)}"
                    client = await stack.enter_async_context(kind(home, way.addresses))
                    tell(f"warm-up: {way.name}")
                    await client(MANY, warm_up_s)
                    clients[way.name, kind] = client
            found = {load.name: {way.name: list[Figures]() for way in ways} for load in loads}
            for number in range(rounds):
                for load in loads:
                    for way in ways if number % 2 == 0 else reversed(ways):
                        tell(f"round {number + 1} of {rounds}, {load.name} in flight: {way.name}")
                        client = clients[way.name, load.client]
                        figures = await _one(way, client, load.in_flight, seconds)
                        found[load.name][way.name].append(figures)
            return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _one(way: Way, client: Client, in_flight: int, seconds: float) -> Figures:
    before = [sum(map(cpu_us, pids)) for pids in (way.proxies, way.brokers)]
    timed = await client(in_flight, seconds)
    after = [sum(map(cpu_us, pids)) for pids in (way.proxies, way.brokers)]
    if not timed.result.messages:
        raise Failed(f"{way.name}: no send was acknowledged, {timed.result.refused} failed")
    proxies_us, brokers_us = (b - a for a, b in zip(before, after, strict=True))
    return figures_of(timed, proxies_us, brokers_us)


def parsed_counts(words: str) -> list[int]:
    """Return the numbers of proxies to measure, ascending. Raises BadParameter."""
    try:
        counts = sorted({int(word) for word in words.split(",")})
    except ValueError:
        raise click.BadParameter("numbers, separated by commas") from None
    if counts[0] < 1 or counts[-1] > PROXIES_MAX:
        raise click.BadParameter(f"between 1 and {PROXIES_MAX}")
    return counts


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--rounds", default=5, type=click.IntRange(1, 100))
@click.option("--seconds", default=4.0, type=click.FloatRange(0.5, 600), help="Of each load.")
@click.option("--warm-up", default=15.0, type=click.FloatRange(0.5, 600), help="Seconds, each way.")
@click.option("--proxies", default="1,2", help="Numbers of mqproxy, separated by commas.")
@click.option("--java", is_flag=True, help="Send by Java's client, too.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Every figure.")
@click.option("--table", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def main(
    rounds: int,
    seconds: float,
    warm_up: float,
    proxies: str,
    java: bool,
    json_path: Path | None,
    as_markdown: bool,
) -> None:
    """Measure sends through mqproxy beside Apache's proxy: medians of ROUNDS, in turns."""
    counts = parsed_counts(proxies)
    about = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; {rounds} rounds of {seconds:g} s in turns"
    )
    loads = (*PYTHON, *JAVA) if java else PYTHON
    try:
        found = uvloop.run(
            measure(
                *(counts, loads, rounds, seconds, warm_up),
                lambda text: click.echo(text, err=True),
            )
        )
    except (Missing, Failed) as error:
        raise click.ClickException(str(error)) from error
    click.echo(about)
    table = lines(found, APACHE)
    if as_markdown:
        click.echo(markdown(HEAD, table))
    else:
        shown = Table(*HEAD)
        for number, line in enumerate(table):
            last = line[0] not in [later[0] for later in table[number + 1 :]]
            shown.add_row(*line, end_section=last)
        Console().print(shown)
    said = verdicts(found, APACHE, APACHE_AT_OURS, {our_way(count): count for count in counts})
    for sentence in said:
        click.echo(sentence)
    if json_path is not None:
        kept = {"about": about, "verdicts": said, "loads": as_json(found)}
        json_path.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
