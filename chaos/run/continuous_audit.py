"""Runs `mqaudit watch` beside an experiment, and kills it now and then.

    DIR/watch/            state and findings of the watch (docs/audit.md)
    DIR/watch.log         its output

The producers of the workloads write their acknowledgements into TOPIC. At the end, when they have
stopped and the cluster is healthy, a last run judges all that is left. The result is an event
`watched` of the history, for chaos.run.judge.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import orjson

from raftmq.client import Admin

from ..checks.verdict import EXAMPLES_MAX
from ..cluster.clusterfile import ClusterError
from ..cluster.credentials import signing
from ..history.files import HistoryWriter

TOPIC = "ChaosAcknowledged"
QUEUES = 4  # in each broker group
LIFE_S = (5.0, 30.0)  # of a process, before it is killed
MINUTES = 1.0  # after which a message is missing or late, and a group behind
LAST_TIMEOUT_S = 300.0
UNUSABLE = 2  # exit status of mqaudit


@asynccontextmanager
async def continuous_audit(
    namesrv: str,
    groups: Sequence[str],
    directory: Path,
    history: HistoryWriter,
    rng: random.Random,
) -> AsyncIterator[None]:
    """Watch during the block, and judge the rest after it. Raises ClusterError, ClientError."""
    async with Admin(namesrv, instance_config=signing()) as admin:
        await admin.topic.create(TOPIC, QUEUES)
    results = directory / "watch"
    command = [sys.executable, "-m", "raftmq.audit", "watch", f"--namesrv={namesrv}"]
    command += [f"--audit-topic={TOPIC}", f"--results={results}"]
    command += [f"--consumer-group={group}" for group in groups]
    with (directory / "watch.log").open("ab") as log:
        watch = _Watch([*command, f"--minutes={MINUTES}", "--every=1"], log, rng)
        task = asyncio.create_task(watch.run(), name="mqaudit watch")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        last = await _started([*command, "--minutes=0", "--once"], log)
        async with asyncio.timeout(LAST_TIMEOUT_S):
            status = await last.wait()
    lines = (results / "findings.jsonl").read_text().splitlines()
    findings = [orjson.loads(line) for line in lines]
    if status == UNUSABLE and not findings:
        raise ClusterError(f"mqaudit watch could not judge; see {log.name}")
    history.record(
        "watched",
        "runner",
        judged=_judged(results / "mqaudit_watch.prom"),
        kills=watch.kills,
        findings=Counter(each["kind"] for each in findings),
        examples=lines[:EXAMPLES_MAX],
    )


class _Watch:
    """A watch that is killed and started again until `run` is cancelled."""

    def __init__(self, command: Sequence[str], log: IO[bytes], rng: random.Random) -> None:
        self.kills = 0
        self._command = command
        self._log = log
        self._rng = rng

    async def run(self) -> None:
        """Raises ClusterError if a process ends by itself."""
        while True:
            process = await _started(self._command, self._log)
            try:
                async with asyncio.timeout(self._rng.uniform(*LIFE_S)):
                    status = await process.wait()
                raise ClusterError(f"mqaudit watch ended with {status}; see {self._log.name}")
            except TimeoutError:
                self.kills += 1
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def _started(command: Sequence[str], log: IO[bytes]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=subprocess.STDOUT)


def _judged(metrics: Path) -> int:
    lines = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines())
    return int(lines["raftmq_watch_acknowledged_total"])
