"""From `docker compose up -d` to the first acknowledged send: python -m tests.compose.measure

The images are built before; every round begins with no containers, no network and empty volumes.
The client is outside, where the ports are published, and tries from the first moment on: both
broker groups take a new topic, then one message of it is acknowledged. Prints JSON; seconds from
the start of `docker compose up -d`. Run it on an idle machine: `load` says what else ran. Needs
what tests/compose needs.

    --rounds N          (3)
    --state DIR         the engine's folder, as STATE of tools/compose-offline.sh
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from raftmq.client import Admin, ClientError, Message, Producer
from tests.compose.stage import CALL_TIMEOUT_S, ROOT, Stage

NAMESRV = "127.0.0.1:9876;127.0.0.1:9877"
TOPIC = "Measured"
BETWEEN_S = 0.02  # from a refusal to the next try: little beside the seconds that are measured
PROBE_TIMEOUT_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        asyncio.run(probe())
        return
    stage = Stage(options.state)
    try:
        stage.up()
        rounds = [measure(stage) for _ in range(options.rounds)]
    finally:
        stage.down()
    best = min(rounds, key=lambda one: one["first_ack_s"])
    print(json.dumps({"cores": os.cpu_count(), "rounds": rounds, "best": best}, indent=1))


def measure(stage: Stage) -> dict[str, float | str]:
    """One round, from nothing."""
    stage.compose("down", "-v")
    load = os.getloadavg()[0]
    command = (sys.executable, "-m", "tests.compose.measure", "--probe")
    client = subprocess.Popen(
        [*stage.command, "in", *command],
        env=stage.environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"  # its imports are no part of the figure
        began = time.monotonic()
        stage.compose("up", "-d", "--no-build")
        returned = time.monotonic()
        out, _ = client.communicate(timeout=CALL_TIMEOUT_S)
        assert client.returncode == 0, out
    finally:
        client.kill()
        client.wait()
    at: dict[str, float] = json.loads(out)
    figures = {name: round(when - began, 2) for name, when in at.items()}
    return {"load": load, "up_returned_s": round(returned - began, 2), **figures}


async def probe() -> None:
    """Try until a message is acknowledged; prints when each step worked, on the monotonic clock."""
    print("ready", flush=True)
    at = {}
    async with Admin(NAMESRV) as admin:
        await until(admin.cluster.info)
        at["name_server_s"] = time.monotonic()

        async def both_groups() -> None:
            assert len((await admin.cluster.info()).brokers) == 2
            await admin.topic.create(TOPIC)

        await until(both_groups)
        at["topic_s"] = time.monotonic()
    async with Producer("measurer", NAMESRV) as producer:
        await until(lambda: producer.send(Message(TOPIC, b"first")))
        at["first_ack_s"] = time.monotonic()
    print(json.dumps(at))


async def until(attempt: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Call it until it raises nothing; what it raises last, after PROBE_TIMEOUT_S."""
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    while True:
        try:
            await attempt()
            return
        except (ClientError, AssertionError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(BETWEEN_S)


if __name__ == "__main__":
    main()
