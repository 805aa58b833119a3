"""Kills of drivers, executors and leaders, by turns, while messages are sent."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Message, Producer, SendConfig
from tests.spark.test_sink import kill_leader

PAUSE_S = (1.0, 6.0)  # before each kill, once a driver has begun
WAIT_S = 300.0


class Feed:
    """Sends numbered messages, each stored once, for as long as it is open."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv, self._topic = namesrv, topic
        self.count = 0
        self._wanted = True

    async def run(self) -> None:
        async with Producer("feed", self._namesrv, config=SendConfig(idempotent=True)) as producer:
            while self._wanted:
                body = b"%d" % self.count
                message = Message(self._topic, body, keys=f"k{self.count}")
                await producer.send(message, timeout_ms=60_000)
                self.count += 1
                await asyncio.sleep(0.002)

    def end(self) -> None:
        self._wanted = False


class Drivers:
    """The one driver that runs the query, started again when it was killed."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        checkpoint: Path,
    ) -> None:
        self._command, self._environment = command, environment
        self._checkpoint, self._log = checkpoint, checkpoint.parent / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, *more],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_and_wait(self) -> None:
        """Return when a micro-batch is done, or the driver has ended by itself."""
        before = self.last_batch()
        self.start()
        self.wait(lambda: self.last_batch() > before or not self.runs)

    def last_batch(self) -> int:
        """The last micro-batch that the checkpoint has as done."""
        names = [path.name for path in (self._checkpoint / "commits").glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self, *more: str) -> None:
        """Run what is there to its end."""
        self.start(*more)
        assert self._process is not None
        assert self._process.wait(WAIT_S) == 0, self.log

    def close(self) -> None:
        if self.runs:
            self.kill()


def kill_by_turns(
    drivers: Drivers, feed: Feed, cluster: Cluster, work: Path, kills: int
) -> Counter[str]:
    """Feed and kill; return the kills by kind. `work` is above the executors' directories."""
    killed: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(asyncio.run, feed.run())
        try:
            for kind, _ in zip(cycle(("driver", "executor", "leader")), range(kills), strict=False):
                if not drivers.runs:
                    drivers.start_and_wait()
                time.sleep(random.uniform(*PAUSE_S))
                if kind == "driver":
                    drivers.kill()
                elif kind == "executor":
                    kill_executor(work)
                else:
                    asyncio.run(kill_leader(cluster))
                killed[kind] += 1
        finally:
            drivers.close()
            feed.end()
        feeding.result()
    return killed


def kill_executor(work: Path) -> None:
    """Kill one of the executors that run below a directory, once there is one."""
    deadline = time.monotonic() + WAIT_S
    while not (result := list(executors(work))):
        assert time.monotonic() < deadline, "no executor"
        time.sleep(0.2)
    os.kill(random.choice(result), signal.SIGKILL)


def executors(work: Path) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            if b"ExecutorBackend" in command and work in (process / "cwd").resolve().parents:
                yield int(process.name)
        except OSError:
            pass  # it has ended, or is no process
