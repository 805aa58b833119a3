"""`python -m bench` (`make bench`): throughput of a Raft group of three on this machine.

Without `--scenario` it measures sends with 1 and with 256 in flight and in batches of 100, of 128 B
and 1 KiB, with ASYNC_FLUSH and SYNC_FLUSH, by the load generator (`wire`) and by our Producer
(`client`). It also measures consumption by our PushConsumer, and the floor, the same load against a
server that does nothing. `--scenario` measures the curves of bench.scenarios instead. Compare
figures of one run only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.group import floor_server, raft_group, raise_file_limit
from bench.scenarios import BODY, QUEUES, SCENARIOS, TOPIC, Figures, Scenario
from bench.wire import LoadResult, run_load
from raftmq.client import ConsumeFrom, ConsumerConfig, Message, Producer, PullConfig, PushConsumer

CONSUME_TIMEOUT_S = 120


async def produce(namesrv: str, count: int, in_flight: int) -> LoadResult:
    """Keep `in_flight` sends of our Producer outstanding until `count` are acknowledged."""
    latencies: array[int] = array("q")
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent = failed = 0

    async with Producer("bench", namesrv) as producer:
        await producer.send(Message(TOPIC, BODY))  # fetches the route

        def send() -> None:
            nonlocal sent
            sent += 1
            started_ns = time.perf_counter_ns()

            def settled(result: object, error: BaseException | None) -> None:
                nonlocal failed
                latencies.append(time.perf_counter_ns() - started_ns)
                failed += error is not None
                if sent < count:
                    send()
                elif len(latencies) == count and not done.done():
                    done.set_result(None)

            producer.send_nowait(Message(TOPIC, BODY), settled)

        started_s = time.perf_counter()
        for _ in range(min(in_flight, count)):
            send()
        await done
        seconds = time.perf_counter() - started_s
    if failed:
        raise click.ClickException(f"{failed} sends failed")
    return LoadResult(count, seconds, latencies)


async def consume(namesrv: str, expected: int) -> LoadResult:
    """Consume the topic from its first message, measured from the first delivery on."""
    seen, started_s = 0, 0.0
    done: asyncio.Future[LoadResult] = asyncio.get_running_loop().create_future()

    def listener(messages: list[Any]) -> None:
        nonlocal seen, started_s
        started_s = started_s or time.perf_counter()
        seen += len(messages)
        if seen >= expected and not done.done():
            done.set_result(LoadResult(seen, time.perf_counter() - started_s, array("q", [0])))

    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, pull=PullConfig(consume_batch_size=32)
    )
    consumer = PushConsumer(f"bench-{time.time_ns()}", namesrv, listener, config=config)
    consumer.subscribe(TOPIC)
    async with consumer:
        return await asyncio.wait_for(done, CONSUME_TIMEOUT_S)


class Sends:
    """Measures sends and consumption; prints each row when it is known."""

    def __init__(self, scale: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self._scale = scale

    def _count(self, full: int) -> int:
        return max(100, int(full * self._scale))

    def _add(self, system: str, client: str, what: str, result: LoadResult) -> None:
        p50, p99 = (round(result.percentile_ms(share), 3) for share in (0.5, 0.99))
        row = {"system": system, "client": client, "what": what, "rate": round(result.rate)}
        self.rows.append(row | {"messages": result.messages, "p50_ms": p50, "p99_ms": p99})
        times = f"  p50 {p50:.3f} ms  p99 {p99:.3f} ms" if p50 else ""
        print(f"{system:12} {client:7} {what:22} {row['rate']:>8,}/s{times}", flush=True)

    async def _wire(self, system: str, address: str) -> None:
        shapes = [
            ("1 in flight, 128 B", 128, 10_000, 1, 0),
            ("256 in flight, 128 B", 128, 200_000, 256, 0),
            ("256 in flight, 1 KiB", 1024, 100_000, 256, 0),
            ("batches of 100, 128 B", 128, 5_000, 4, 100),
            ("batches of 100, 1 KiB", 1024, 1_000, 4, 100),
        ]
        warm_up = ("", 128, 20_000, 256, 0)
        for what, size, full, in_flight, batch in (
            warm_up,
            *shapes[: 3 if system == "floor" else 5],
        ):
            result = await run_load(
                *(address, TOPIC),
                queues=QUEUES,
                body=b"x" * size,
                count=self._count(full),
                in_flight=in_flight,
                batch=batch,
            )
            if what:
                self._add(system, "wire", what, result)

    async def floor(self) -> None:
        async with floor_server() as address:
            await self._wire("floor", address)

    async def cluster(self, flush: str) -> None:
        settings = {"flushDiskType": flush, "defaultTopicQueueNums": str(QUEUES)}
        async with raft_group(settings) as group:
            await self._wire(flush, group.address)
            for in_flight, full in ((1, 10_000), (256, 200_000)):
                result = await produce(group.namesrv, self._count(full), in_flight)
                self._add(flush, "client", f"{in_flight} in flight, 128 B", result)
            if flush == "ASYNC_FLUSH":
                result = await consume(group.namesrv, self._count(400_000))
                self._add(flush, "client", "consume", result)

    def ratios(self) -> Table:
        """Return each figure of the load generator over the floor's of the same shape."""
        table = Table("flush", "what", "per second", "of the floor")
        floor = {r["what"]: r["rate"] for r in self.rows if r["system"] == "floor"}
        for row in self.rows:
            if row["system"] != "floor" and row["client"] == "wire" and row["what"] in floor:
                share = row["rate"] / floor[row["what"]]
                table.add_row(row["system"], row["what"], f"{row['rate']:,}", f"{share:.0%}")
        return table


def curve_table(scenario: Scenario, points: Mapping[int, Figures]) -> Table:
    """Return a row per figure and a column per point."""
    table = Table(scenario.axis, *(f"{value:,}" for value in points))
    for name in dict.fromkeys(name for figures in points.values() for name in figures):
        cells = (figures.get(name) for figures in points.values())
        table.add_row(name, *("" if cell is None else _digits(cell) for cell in cells))
    return table


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def measure_sends(scale: float, flushes: tuple[str, ...]) -> list[dict[str, Any]]:
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; interpreter built "
        f"{'with' if optimized else 'WITHOUT'} --enable-optimizations (worth about a fifth)"
    )
    sends = Sends(scale)

    async def run() -> None:
        await sends.floor()
        for flush in flushes:
            await sends.cluster(flush)

    uvloop.run(run())
    Console().print(sends.ratios())
    return sends.rows


def measure_curves(
    names: tuple[str, ...], values: tuple[int, ...] | None, seconds: float
) -> dict[str, dict[int, Figures]]:
    raise_file_limit()
    curves: dict[str, dict[int, Figures]] = {}
    for name in names:
        scenario = SCENARIOS[name]
        points = curves[name] = {}
        for value in values or scenario.values:
            print(f"{name} {value:,} …", flush=True)

            async def measure(scenario: Scenario = scenario, value: int = value) -> Figures:
                return await scenario.measure(value, seconds)

            points[value] = uvloop.run(measure())
        Console(width=max(100, 30 + 14 * len(points))).print(curve_table(scenario, points))
    return curves


def numbers(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Parse `--points`."""
    try:
        return None if text is None else tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise click.BadParameter("numbers, separated by commas") from error


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--scale", default=1.0, help="Fewer or more messages.")
@click.option("--flush", type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH", "both"]), default="both")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice(list(SCENARIOS)),
    help="A curve to measure instead of sends. Repeatable.",
)
@click.option("--points", "values", callback=numbers, help="Values other than the scenario's own.")
@click.option("--seconds", default=5.0, type=click.FloatRange(0.1), help="Duration of each load.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Output file."
)
def main(
    scale: float,
    flush: str,
    names: tuple[str, ...],
    values: tuple[int, ...] | None,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Measure a Raft group of three replicas on this machine."""
    flushes = ("ASYNC_FLUSH", "SYNC_FLUSH") if flush == "both" else (flush,)
    result = measure_curves(names, values, seconds) if names else measure_sends(scale, flushes)
    if json_path:
        options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        json_path.write_bytes(orjson.dumps(result, option=options))


if __name__ == "__main__":
    main()
