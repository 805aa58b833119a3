"""Our broker in its three modes, and the floor, a server that only answers or only sends.

The same bare client measures all of them. Election time-outs are long, as in the other benchmarks.
The row that kills the leader has a group of its own with default time-outs.
"""

from __future__ import annotations

import signal
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bench.__main__ import consume
from bench.group import PATIENT, PROMPT, floor_server
from bench.peers.remoting import QUEUES, next_ack, paced_load, pull_all, send_loads, stream_all
from bench.peers.system import (
    BATCH,
    BATCHES,
    KILL,
    MANY,
    PULLS,
    PUSH,
    Failed,
    Load,
    Running,
    sends_of,
)
from bench.wire import LoadResult
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState
from raftmq.chaos.cluster.topology import Shape

SERVED = {"defaultTopicQueueNums": str(QUEUES)}


class Ours:
    """A cluster of this checkout in a mode and with a kind of flush."""

    def __init__(self, name: str, mode: str, flush: str) -> None:
        self.name = name
        self._mode = mode
        self._flush = {"flushDiskType": flush}

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        patience = PATIENT if self._mode == "raft" else {}
        async with _up(directory / "cluster", self._mode, {**patience, **self._flush}) as cluster:
            address = (await cluster.find("leader")).address
            namesrv = cluster.state().namesrv
            loads = send_loads(address, scale)
            loads[PULLS] = lambda: pull_all(address)
            loads[PUSH] = lambda: _push(namesrv, scale)
            if self._mode == "raft":
                loads[KILL] = self._kill(directory / "killed")
            state = cluster.state()
            paced = paced_load(address, namesrv)
            yield Running(loads, lambda: _processes(state), paced)

    def _kill(self, directory: Path) -> Load:
        async def run() -> LoadResult:
            async with _up(directory, self._mode, {**PROMPT, **self._flush}) as cluster:
                leader = await cluster.find("leader")
                return await next_ack(
                    cluster.state().namesrv, lambda: cluster.signal(leader.name, signal.SIGKILL)
                )

        return run


class Floor:
    """A server that only answers. Its own CPU is not measured."""

    name = "floor"

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        async with floor_server() as address:
            loads = send_loads(address, scale, batches=False)
            loads[PULLS] = lambda: stream_all(address, sends_of(MANY, scale))
            yield Running(loads, list)


@asynccontextmanager
async def _up(directory: Path, mode: str, settings: Mapping[str, str]) -> AsyncIterator[Cluster]:
    """Run a cluster while the block runs. Raises Failed if it does not start."""
    cluster = Cluster(directory)
    try:
        try:
            await cluster.up(Shape(mode=mode), {**SERVED, **settings})
        except ClusterError as error:
            raise Failed(str(error)) from error
        yield cluster
    finally:
        try:
            await cluster.down()
        finally:
            await cluster.close()


def _processes(state: ClusterState) -> list[int]:
    return [node.process.pid for node in state.nodes if node.process is not None]


async def _push(namesrv: str, scale: float) -> LoadResult:
    expected = sends_of(MANY, scale) + sends_of(BATCHES, scale) * BATCH
    result = await consume(namesrv, expected)
    return replace(result, messages=expected, latencies_ns=array("q"))


OURS = (
    Ours("ours, R3, ASYNC_FLUSH", "raft", "ASYNC_FLUSH"),
    Ours("ours, R3, SYNC_FLUSH", "raft", "SYNC_FLUSH"),
    Ours("ours, ASYNC_MASTER", "async", "ASYNC_FLUSH"),
)
