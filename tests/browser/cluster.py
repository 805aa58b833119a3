"""A real cluster of processes for a page to look at, with something in it."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape

PATIENCE_S = 180.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "historyPeriodMs": "250",
    # A busy machine shall not make other leaders than the page does; a kill is noticed at once.
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "6000",
}


class Running:
    """The cluster and its API."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.url = f"http://{cluster.state().name_servers[0].http}"
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """An answer that succeeds; what is not possible just now is tried again."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            url = f"{self.url}/api/v1{path}"
            async with self._session.request(method, url, json=body, headers=sent) as answer:
                data = await answer.read()
                if answer.status < 300:
                    return orjson.loads(data)
            if answer.status not in (404, 503, 504) or time.monotonic() > deadline:
                raise AssertionError(f"{method} {path}: {answer.status} {data.decode()}")
            await asyncio.sleep(0.05)

    async def topic(self, name: str, queues: int = 4) -> None:
        body = {"readQueueNums": queues, "writeQueueNums": queues}
        await self.ask("PUT", f"/topics/{name}", body, If_None_Match="*")

    async def send(self, topic: str, body: str, **more: Any) -> dict[str, Any]:
        sent: dict[str, Any] = await self.ask(
            "POST", "/messages", {"topic": topic, "body": body, **more}
        )
        return sent

    async def kill_leader(self) -> str:
        """Its name."""
        leader = await self.cluster.find("leader")
        await self.cluster.wait_dead(self.cluster.signal(leader.name, signal.SIGKILL))
        return leader.name


@asynccontextmanager
async def running(directory: Path, shape: Shape | None = None) -> AsyncIterator[Running]:
    cluster = Cluster(directory)
    try:
        await cluster.up(shape, SETTINGS, timeout_s=PATIENCE_S)
        async with aiohttp.ClientSession() as session:
            yield Running(cluster, session)
    finally:
        if (directory / "cluster.json").exists():
            await cluster.down()
        await cluster.close()
