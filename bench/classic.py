"""`python -m bench.classic`: the cost of waiting for a slave, SYNC_MASTER against ASYNC_MASTER.

Both are started afresh in turns, several times, because the machine's speed drifts: only ratios of
neighbouring rounds mean something. Both flush asynchronously; they differ in the slave alone.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time

import click
import uvloop
from rich.console import Console
from rich.table import Table

from bench.__main__ import mqcluster, processes
from bench.wire import run_load

TOPIC = "Bench"
QUEUES = 4
BODY = bytes(128)
SLAVE_TIMEOUT_S = 20.0


async def measure(mode: str, in_flight: int, count: int) -> float:
    """Return acknowledged sends a second of a fresh master and slave."""
    directory = tempfile.mkdtemp(prefix="bench-")
    try:
        mqcluster("up", "--dir", directory, "--mode", mode, "--set", "flushDiskType=ASYNC_FLUSH")
        (master,) = [p["address"] for p in processes(directory) if p["role"] == "master"]
        await wait_for_slave(master)
        for sends in (count // 5, count):  # the first to warm up
            result = await run_load(
                master, TOPIC, queues=QUEUES, body=BODY, count=sends, in_flight=in_flight
            )
        return result.rate
    finally:
        mqcluster("down", "--dir", directory)
        shutil.rmtree(directory, ignore_errors=True)


async def wait_for_slave(master: str) -> None:
    """Return once a send is answered SEND_OK: a SYNC_MASTER's first ones may find no slave yet."""
    deadline = time.monotonic() + SLAVE_TIMEOUT_S
    while True:
        try:
            await run_load(master, TOPIC, queues=QUEUES, body=BODY, count=1, in_flight=1)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--rounds", default=4, type=click.IntRange(1, 100))
@click.option("--count", default=60_000, type=click.IntRange(1_000), help="Sends a round.")
def main(rounds: int, count: int) -> None:
    """Measure classic mode with and without waiting for the slave."""
    table = Table("in flight", "ASYNC_MASTER /s", "SYNC_MASTER /s", "SYNC of ASYNC, median")
    for in_flight in (1, 16, 256):
        rates: dict[str, list[float]] = {"async": [], "sync": []}
        some = count if in_flight > 1 else count // 10
        for number in range(rounds):
            order = ("async", "sync") if number % 2 == 0 else ("sync", "async")
            for mode in order:
                rates[mode].append(uvloop.run(measure(mode, in_flight, some)))
        shares = [s / a for s, a in zip(rates["sync"], rates["async"], strict=True)]
        table.add_row(
            str(in_flight),
            " ".join(f"{rate:,.0f}" for rate in rates["async"]),
            " ".join(f"{rate:,.0f}" for rate in rates["sync"]),
            f"{statistics.median(shares):.0%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
