"""`make bench`: the throughput of a Raft group of three processes on this machine.

Sends with 1 and with 256 in flight and in batches of 100, 128 B and 1 KiB, ASYNC_FLUSH and
SYNC_FLUSH, by the thin load generator (`wire`) and by our Producer (`client`); consumption by
our PushConsumer; and the floor: the same load generator against a server that does nothing.
Every figure of one run was measured on the same machine within minutes, so the ratios hold.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench import checkout
from bench.group import floor_server
from bench.wire import LoadResult, run_load
from raftmq.client import ConsumeFrom, ConsumerConfig, Message, Producer, PullConfig, PushConsumer

HERE = Path(__file__).resolve().parent
TOPIC = "Bench"
QUEUES = 4
CONSUME_TIMEOUT_S = 120


def mqcluster(*arguments: str) -> str:
    return checkout.mqcluster(HERE.parent, *arguments)


def processes(directory: str) -> list[dict[str, Any]]:
    found = json.loads(mqcluster("status", "--dir", directory, "--json"))["nodes"]
    assert isinstance(found, list)
    return found


async def by_producer(namesrv: str, body: bytes, count: int, in_flight: int) -> LoadResult:
    """Keep `in_flight` sends of our Producer outstanding until `count` are acknowledged."""
    latencies: array[int] = array("q")
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    state = {"sent": 0, "answered": 0, "refused": 0}

    async with Producer("bench", namesrv) as producer:
        await producer.send(Message(TOPIC, body))  # the route is known from here on

        def send_one() -> None:
            state["sent"] += 1
            started = time.perf_counter_ns()

            def answered(result: object, error: BaseException | None) -> None:
                latencies.append(time.perf_counter_ns() - started)
                state["answered"] += 1
                state["refused"] += error is not None
                if state["sent"] < count:
                    send_one()
                elif state["answered"] == count and not done.done():
                    done.set_result(None)

            producer.send_nowait(Message(TOPIC, body), answered)

        begun = time.perf_counter()
        for _ in range(min(in_flight, count)):
            send_one()
        await done
        seconds = time.perf_counter() - begun
    if state["refused"]:
        raise click.ClickException(f"{state['refused']} sends failed")
    return LoadResult(count, seconds, latencies, 0)


async def consume(namesrv: str, expected: int) -> float:
    """Return the messages a second that one PushConsumer takes from the topic's beginning."""
    seen = 0
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    first = 0.0

    def listener(messages: list[Any]) -> None:
        nonlocal seen, first
        if not seen:
            first = time.perf_counter()
        seen += len(messages)
        if seen >= expected and not done.done():
            done.set_result(seen / (time.perf_counter() - first))

    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, pull=PullConfig(consume_batch_size=32)
    )
    consumer = PushConsumer(f"bench-{time.time_ns()}", namesrv, listener, config=config)
    consumer.subscribe(TOPIC)
    async with consumer:
        return await asyncio.wait_for(done, CONSUME_TIMEOUT_S)


class Bench:
    """Collects rows; prints them as it goes."""

    def __init__(self, scale: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self._scale = scale

    def count(self, full: int) -> int:
        return max(100, int(full * self._scale))

    def add(self, system: str, client: str, what: str, result: LoadResult) -> None:
        row = {
            "system": system,
            "client": client,
            "what": what,
            "messages": result.messages,
            "rate": round(result.rate),
            "p50_ms": round(result.percentile_ms(0.5), 3),
            "p99_ms": round(result.percentile_ms(0.99), 3),
        }
        self.rows.append(row)
        print(
            f"{system:12} {client:7} {what:22} {row['rate']:>8,}/s"
            f"  p50 {row['p50_ms']:.3f} ms  p99 {row['p99_ms']:.3f} ms",
            flush=True,
        )

    async def sends(self, system: str, address: str, namesrv: str | None) -> None:
        small, large = b"x" * 128, b"x" * 1024
        one, many = self.count(10_000), self.count(200_000)

        async def wire(what: str, body: bytes, count: int, window: int, batch: int = 0) -> None:
            result = await run_load(
                *(address, TOPIC),
                queues=QUEUES,
                body=body,
                count=count,
                in_flight=window,
                batch=batch,
            )
            self.add(system, "wire", what, result)

        await wire("warm-up", small, self.count(20_000), 256)
        self.rows.pop()
        await wire("1 in flight, 128 B", small, one, 1)
        await wire("256 in flight, 128 B", small, many, 256)
        await wire("256 in flight, 1 KiB", large, self.count(100_000), 256)
        if system == "floor":
            return
        await wire("batches of 100, 128 B", small, self.count(5_000), 4, 100)
        await wire("batches of 100, 1 KiB", large, self.count(1_000), 4, 100)
        assert namesrv is not None
        result = await by_producer(namesrv, small, one, 1)
        self.add(system, "client", "1 in flight, 128 B", result)
        result = await by_producer(namesrv, small, many, 256)
        self.add(system, "client", "256 in flight, 128 B", result)

    async def cluster(self, flush: str) -> None:
        directory = tempfile.mkdtemp(prefix="bench-")
        try:
            settings = ("--set", f"flushDiskType={flush}", "--set", "defaultTopicQueueNums=4")
            mqcluster("up", "--dir", directory, *settings)
            found = processes(directory)
            (namesrv,) = [p["address"] for p in found if p["kind"] == "namesrv"]
            (leader,) = [p["address"] for p in found if p["role"] == "leader"]
            await self.sends(flush, leader, namesrv)
            if flush == "ASYNC_FLUSH":
                rate = await consume(namesrv, self.count(400_000))
                row = {"system": flush, "client": "client", "what": "consume", "rate": round(rate)}
                self.rows.append(row)
                print(f"{flush:12} client  {'consume':22} {round(rate):>8,}/s", flush=True)
        finally:
            mqcluster("down", "--dir", directory)
            shutil.rmtree(directory, ignore_errors=True)

    async def floor(self) -> None:
        async with floor_server() as address:
            await self.sends("floor", address, None)

    def ratios(self) -> Table:
        """Return each cluster figure over the floor's of the same shape and generator."""
        table = Table("flush", "what", "a second", "of the floor")
        floor = {r["what"]: r["rate"] for r in self.rows if r["system"] == "floor"}
        for row in self.rows:
            if row["system"] != "floor" and row["client"] == "wire" and row["what"] in floor:
                share = row["rate"] / floor[row["what"]]
                table.add_row(row["system"], row["what"], f"{row['rate']:,}", f"{share:.0%}")
        return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scale", default=1.0, show_default=True, help="Fewer or more messages.")
@click.option("--flush", type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH", "both"]), default="both")
@click.option("--json", "json_path", type=click.Path(), help="Write all rows to this file.")
def main(scale: float, flush: str, json_path: str | None) -> None:
    """Measure a three-replica Raft group on this machine."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; interpreter built "
        f"{'with' if optimized else 'WITHOUT'} --enable-optimizations (worth about a fifth)"
    )
    bench = Bench(scale)

    async def run() -> None:
        await bench.floor()
        for kind in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            if flush in (kind, "both"):
                await bench.cluster(kind)

    uvloop.run(run())
    Console().print(bench.ratios())
    if json_path:
        Path(json_path).write_bytes(orjson.dumps(bench.rows, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
