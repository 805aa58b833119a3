"""The CPU time of a message, process by process: `python -m bench.cost`.

Rates say little on a machine with other work; the CPU time that leader, followers and clients spend
on a message says more. With several `--root`, each a checkout of this project, the checkouts take
turns, `--rounds` times, and medians are printed, so that a change can be compared with the code
before it. The load generator `bench.wire` is always this checkout's.

Still, a machine under load makes CPU time longer, too (caches, shared cores), and frames smaller.
Compare only what was measured in one run.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.table import Table

from bench.checkout import module_in, mqcluster
from bench.wire import run_load

HERE = Path(__file__).resolve().parent
QUEUES = 4
BODY = b"x" * 128
IN_FLIGHT = 256
# A process that is kept waiting must not lose its leadership for it, which is not measured here.
SETTINGS = {
    "flushDiskType": "ASYNC_FLUSH",
    "defaultTopicQueueNums": str(QUEUES),
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "8000",
}
Figures = dict[str, float]  # by process: CPU microseconds a message; "rate": messages a second


def cpu_us(pid: int) -> float:
    """Return the CPU time that all threads of a process have had, in microseconds."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1000


class Cluster:
    """A Raft group of three from some checkout, in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory = tempfile.mkdtemp(prefix="bench-cost-")
        settings = [part for item in SETTINGS.items() for part in ("--set", "=".join(item))]
        try:
            self._mqcluster("up", *settings, "--timeout", "120")
            nodes = json.loads(self._mqcluster("status", "--json"))["nodes"]
        except BaseException:
            self.down()
            raise
        (self._namesrv,) = [node["address"] for node in nodes if node["kind"] == "namesrv"]
        (leader,) = [node for node in nodes if node["role"] == "leader"]
        self._address = leader["address"]
        self._leader: int = leader["pid"]
        self._followers: list[int] = [node["pid"] for node in nodes if node["role"] == "follower"]

    def _mqcluster(self, command: str, *arguments: str) -> str:
        return mqcluster(self._root, command, "--dir", self._directory, *arguments)

    def down(self) -> None:
        try:
            self._mqcluster("down")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _brokers(self) -> tuple[float, float]:
        return cpu_us(self._leader), statistics.mean(map(cpu_us, self._followers))

    def wire(self, count: int, in_flight: int, batch: int = 0) -> Figures:
        """Send with the thin load generator; in batches of `batch` if that is not 0."""
        before, begun_s = self._brokers(), time.process_time()
        load = run_load(
            *(self._address, "Bench"),
            queues=QUEUES,
            body=BODY,
            count=count,
            in_flight=in_flight,
            batch=batch,
        )
        result = uvloop.run(load)
        client = (time.process_time() - begun_s) * 1e6
        after, messages = self._brokers(), result.messages
        return {
            "leader": (after[0] - before[0]) / messages,
            "follower": (after[1] - before[1]) / messages,
            "client": client / messages,
            "rate": result.rate,
        }

    def worker(self, act: str, count: int, passes: int) -> Figures:
        """Run our Producer or PushConsumer; the brokers see the messages `passes` times."""
        before = self._brokers()
        client = module_in(self._root, "client")
        line = [sys.executable, str(HERE / "costworker.py"), client, act, self._namesrv]
        done = subprocess.run(
            [*line, str(count), str(IN_FLIGHT)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self._root)},
        )
        if done.returncode:
            raise click.ClickException(done.stderr)
        after = self._brokers()
        found: Figures = json.loads(done.stdout)
        return {
            "leader": (after[0] - before[0]) / count / passes,
            "follower": (after[1] - before[1]) / count / passes,
        } | found


def measure(root: Path, scale: float) -> dict[str, Figures]:
    """Measure one round of one checkout."""
    count = max(1_000, int(50_000 * scale))
    cluster = Cluster(root)
    try:
        cluster.wire(count // 2, IN_FLIGHT)  # to warm up
        return {
            "wire, 256 in flight": cluster.wire(2 * count, IN_FLIGHT),
            "wire, 1 in flight": cluster.wire(count // 20, 1),
            "wire, batches of 100": cluster.wire(count // 50, 4, 100),
            "Producer, 256 in flight": cluster.worker("produce", count, 2),
            "PushConsumer": cluster.worker("consume", count, 1),
        }
    finally:
        cluster.down()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    "roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout to measure. Repeatable; this one if there is none.",
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--scale", default=1.0, show_default=True, help="Fewer or more messages.")
@click.option("--json", "json_path", type=click.Path(), help="Write every round to this file.")
def main(roots: tuple[Path, ...], rounds: int, scale: float, json_path: str | None) -> None:
    """Measure CPU microseconds a message, of leader, follower and client: medians of ROUNDS."""
    chosen = [root.resolve() for root in roots] or [HERE.parent]
    found: dict[str, list[dict[str, Figures]]] = {str(root): [] for root in chosen}
    for number in range(rounds):
        for root in chosen:
            found[str(root)].append(measure(root, scale))
            click.echo(f"round {number + 1} of {rounds}: {root}", err=True)
    Console().print(_table(found))
    if json_path:
        Path(json_path).write_text(json.dumps(found, indent=1))


def _table(found: dict[str, list[dict[str, Figures]]]) -> Table:
    table = Table("what", "checkout", "leader", "follower", "client", "a second")
    whats: list[Any] = list(next(iter(found.values()))[0])
    for what in whats:
        for root, rounds in found.items():
            names = ("leader", "follower", "client", "rate")
            medians = [statistics.median(turn[what][name] for turn in rounds) for name in names]
            cells = [f"{value:.1f}" for value in medians[:3]]
            table.add_row(what, Path(root).name, *cells, f"{medians[3]:,.0f}")
    return table


if __name__ == "__main__":
    main()
