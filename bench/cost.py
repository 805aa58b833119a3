"""The CPU time of a message, process by process: `python -m bench.cost`.

CPU time per message of leader, follower and clients. Rates mean little on a busy machine. With
several `--root`, each a checkout of this project, the checkouts take turns, `--rounds` times, and
medians are printed, so that a change can be compared with earlier code. `--also KEY=VALUE` measures
each a second time with that setting and shows the cost of a feature. The load generator
`bench.wire` is always this checkout's.

A figure has all of the work. After each load the brokers are watched until they are idle again, so
that later work (the index of keys) counts; their idle CPU time does not.

A busy machine lengthens CPU time (caches, shared cores) and makes frames smaller. Compare figures
of one run only.
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

from bench.group import cpu_us
from bench.wire import LoadResult, run_load

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
REST_S_MAX = 30  # that the brokers may need after a load until they are idle
# by process, CPU microseconds per message; "rate" is messages per second
Figures = dict[str, float]


class Cluster:
    """A Raft group of three from some checkout, in a directory of its own."""

    def __init__(self, root: Path, also: tuple[str, ...]) -> None:
        self._root = root
        self._directory = tempfile.mkdtemp(prefix="bench-cost-")
        pairs = ["=".join(item) for item in SETTINGS.items()] + list(also)
        settings = [argument for pair in pairs for argument in ("--set", pair)]
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
        self._idle = 0.0, 0.0  # idle CPU, in us per second

    def _mqcluster(self, command: str, *arguments: str) -> str:
        return mqcluster(self._root, command, "--dir", self._directory, *arguments)

    def down(self) -> None:
        try:
            self._mqcluster("down")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _brokers(self) -> tuple[float, float]:
        return cpu_us(self._leader), statistics.mean(map(cpu_us, self._followers))

    def _busy(self, seconds: float) -> tuple[float, float]:
        """Return the CPU of leader and follower from now on, in us per second."""
        before, start_s = self._brokers(), time.perf_counter()
        time.sleep(seconds)
        after, elapsed_s = self._brokers(), time.perf_counter() - start_s
        return (after[0] - before[0]) / elapsed_s, (after[1] - before[1]) / elapsed_s

    def find_idle(self) -> None:
        """Wait until no work is left, and record the brokers' idle CPU."""
        samples = [self._busy(1)]
        while len(samples) < REST_S_MAX:
            samples.append(self._busy(1))
            if sum(samples[-1]) > 0.8 * sum(samples[-2]):
                break
        self._idle = samples[-1]

    def _spent(self, before: tuple[float, float], count: int) -> tuple[float, float]:
        """Return the CPU time for each of `count` messages since `before`, once all that is left
        to be done for them is done."""
        waited_s = 0.0
        while waited_s < REST_S_MAX:
            busy = self._busy(0.5)
            waited_s += 0.5
            if sum(busy) < 1.3 * sum(self._idle):
                break
        after = self._brokers()
        leader, follower = (
            (after[n] - before[n] - waited_s * self._idle[n]) / count for n in (0, 1)
        )
        return leader, follower

    def load(self, count: int, in_flight: int, batch: int = 0) -> LoadResult:
        """Send with the thin load generator; in batches of `batch` if that is not 0."""
        load = run_load(
            *(self._address, "Bench"),
            queues=QUEUES,
            body=BODY,
            count=count,
            in_flight=in_flight,
            batch=batch,
        )
        return uvloop.run(load)

    def wire(self, count: int, in_flight: int, batch: int = 0) -> Figures:
        before, start_s = self._brokers(), time.process_time()
        result = self.load(count, in_flight, batch)
        client = (time.process_time() - start_s) * 1e6 / result.messages
        leader, follower = self._spent(before, result.messages)
        return {"leader": leader, "follower": follower, "client": client, "rate": result.rate}

    def worker(self, act: str, count: int, passes: int) -> Figures:
        """Run our Producer or PushConsumer; the brokers see the messages `passes` times."""
        before = self._brokers()
        line = [sys.executable, str(HERE / "costworker.py"), act, self._namesrv]
        done = subprocess.run(
            [*line, str(count), str(IN_FLIGHT)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self._root)},
        )
        if done.returncode:
            raise click.ClickException(done.stderr)
        leader, follower = self._spent(before, count * passes)
        result: Figures = json.loads(done.stdout)
        return {"leader": leader, "follower": follower} | result


def measure(root: Path, also: tuple[str, ...], scale: float) -> dict[str, Figures]:
    count = max(1_000, int(50_000 * scale))
    cluster = Cluster(root, also)
    try:
        cluster.load(count // 2, IN_FLIGHT)  # to warm up
        cluster.find_idle()
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
@click.option("--also", multiple=True, help="KEY=VALUE: measure each with this setting, too.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--scale", default=1.0, show_default=True, help="Fewer or more messages.")
@click.option("--json", "json_path", type=click.Path(), help="Write every round to this file.")
def main(
    roots: tuple[Path, ...],
    also: tuple[str, ...],
    rounds: int,
    scale: float,
    json_path: str | None,
) -> None:
    """Measure CPU microseconds per message, of leader, follower and client; medians of ROUNDS."""
    chosen = {
        " ".join((str(root.resolve()), *settings)): (root.resolve(), settings)
        for root in roots or [HERE.parent]
        for settings in ([(), also] if also else [()])
    }
    result: dict[str, list[dict[str, Figures]]] = {name: [] for name in chosen}
    for number in range(rounds):
        for name, (root, settings) in chosen.items():
            result[name].append(measure(root, settings, scale))
            click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
    Console().print(_table(result))
    if json_path:
        Path(json_path).write_text(json.dumps(result, indent=1))


def _table(figures: dict[str, list[dict[str, Figures]]]) -> Table:
    table = Table("what", "checkout", "leader", "follower", "client", "a second")
    whats: list[Any] = list(next(iter(figures.values()))[0])
    for what in whats:
        for name, rounds in figures.items():
            names = ("leader", "follower", "client", "rate")
            medians = [statistics.median(turn[what][one] for turn in rounds) for one in names]
            cells = [f"{value:.2f}" for value in medians[:3]]
            table.add_row(what, Path(name).name, *cells, f"{medians[3]:,.0f}")
    return table


def mqcluster(root: Path, *arguments: str) -> str:
    """Run a checkout's mqcluster; return its output. Raises ClickException if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "raftmq.chaos.cluster.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    if done.returncode:
        raise click.ClickException(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
