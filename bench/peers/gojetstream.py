"""The loads of JetStream's Go client: go/load, a process for each."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

import orjson

from bench.peers.gomodule import build
from bench.peers.system import MANY, ONE, PULLS, PUSH, WARM_UP, Failed, Load, sends_of
from bench.wire import LoadResult

PACKAGE = "./load"
LOADS = {WARM_UP: "many", ONE: "one", MANY: "many", PULLS: "pull", PUSH: "push"}


def go_loads(urls: Sequence[str], scale: float) -> dict[str, Load]:
    """Return the loads by row. Raises Missing. Blocking."""
    command = build("natsload", PACKAGE)

    def load(row: str) -> Load:
        count = sends_of(row if row in (WARM_UP, ONE) else MANY, scale)
        return lambda: _run(command, urls, LOADS[row], count)

    return {row: load(row) for row in LOADS}


async def _run(command: Path, urls: Sequence[str], load: str, count: int) -> LoadResult:
    process = await asyncio.create_subprocess_exec(
        *(str(command), ",".join(urls), load, str(count)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        printed, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Failed(f"the Go client: {said.decode(errors='replace').strip()}")
    found = orjson.loads(printed)
    latencies = array("q", found["latencies_ns"] or ())
    return LoadResult(count, found["seconds"], latencies, 0)
