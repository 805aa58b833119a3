"""The demo's load on a cluster, with two consumers and two leader kills.

Every departure is sent in order. The current leader is killed with -9 at one third and at two
thirds of the acknowledgements, and restarts after RESTART_AFTER_S. The second kill waits until all
replicas have caught up, and the load waits for the kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import orjson

from demo.board import Board
from demo.flights_data import Flight, flight_id, tail_number
from raftmq import Admin, Producer
from raftmq.chaos.checks.experiment import ENDS
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.chaos.faults.base import Context, Injection, Planned
from raftmq.chaos.faults.process import Kill
from raftmq.chaos.history.events import Outcome
from raftmq.chaos.history.files import HistoryWriter
from raftmq.chaos.workloads.base import Tally
from raftmq.chaos.workloads.consumers import ConsumerGroup, drain_group
from raftmq.chaos.workloads.log import Consumption, Item, KeyedSender
from raftmq.chaos.workloads.observer import Observer, Watched

TOPIC = "Flights"
GROUP = "flight-consumers"
QUEUES = 8
KILLS_AT = (1 / 3, 2 / 3)  # of all acknowledged sends
RESTART_AFTER_S = 2.0
JOIN_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 180.0
SEND_TIMEOUT_MS = 60_000  # far longer than any failover, so that a failed send may fail the demo
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),  # for several segments
    "maxTransferBytesOnMessageInMemory": str(1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The settings of the load. `rate_per_s` is None for the window's maximum."""

    directory: Path
    total: int
    window: int
    rate_per_s: float | None
    command: str

    @property
    def history(self) -> Path:
        return self.directory / "history.jsonl"

    @property
    def cluster(self) -> Path:
        return self.directory / "cluster"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The results of the load; further results are in the history and the stores."""

    tally: Tally
    drained: bool
    stopped: dict[str, str]  # node → its exit
    stores: dict[str, Path]


class Milestones:
    """Wakes waiters at a number of acknowledged sends."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def outcome(self, outcome: Outcome) -> None:
        """Count an outcome; called for each send."""
        if outcome is not Outcome.OK:
            return
        self.acknowledged += 1
        while self._waiting and self.acknowledged >= self._waiting[0][0]:
            self._waiting.pop(0)[1].set()

    async def reached(self, count: int) -> None:
        """Wait for `count` acknowledged sends."""
        if self.acknowledged >= count:
            return
        event = asyncio.Event()
        self._waiting.append((count, event))
        self._waiting.sort(key=lambda waiter: waiter[0])
        await event.wait()


def messages(flights: Iterable[Flight]) -> Iterator[Item]:
    """Yield each departure as a message, ordered by aircraft and tagged with its carrier."""
    for flight in flights:
        tail = tail_number(flight)
        properties = {"__SHARDINGKEY": tail} if tail else {}
        yield Item(
            TOPIC, orjson.dumps(flight), flight_id(flight), tail, str(flight["carrier"]), properties
        )


async def run_load(config: LoadConfig, flights: Iterable[Flight], board: Board) -> LoadResult:
    """Run the load and stop the cluster in all cases. Raises ClusterError, ClientError, OSError,
    possibly in an ExceptionGroup."""
    cluster = Cluster(config.cluster)
    try:
        with board.during("starting a name server and three brokers"):
            await cluster.up(settings=SETTINGS)
        try:
            meta = {"scenario": "flights", "command": config.command, ENDS: True}
            with HistoryWriter(config.history, **meta) as history:
                tally, drained = await _run(config, flights, cluster, history, board)
                history.event("ok", "end", "demo", history.next_op())
        finally:
            stopped = await cluster.down()
        board.say("cluster stopped: " + ", ".join(f"{n} {how}" for n, how in stopped.items()))
        stores = {n.name: config.cluster / n.name / "store" for n in cluster.state().brokers}
        return LoadResult(tally, drained, stopped, stores)
    finally:
        await cluster.close()


async def _run(
    config: LoadConfig,
    flights: Iterable[Flight],
    cluster: Cluster,
    history: HistoryWriter,
    board: Board,
) -> tuple[Tally, bool]:
    namesrv = cluster.state().namesrv
    watched = Watched(TOPIC, GROUP, QUEUES)
    consumption = Consumption(history)
    milestones = Milestones()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(namesrv))
        await admin.topic.create(TOPIC, QUEUES)
        producer = await stack.enter_async_context(Producer("flight-producers", namesrv))
        queues = await producer.queues(TOPIC)
        consumers = await stack.enter_async_context(
            ConsumerGroup(namesrv, history, TOPIC, GROUP, listener=consumption.listener)
        )
        for name in ("consumer-0", "consumer-1"):
            await consumers.join(name)
        await consumers.wait_shared_out(queues, JOIN_TIMEOUT_S)
        await stack.enter_async_context(Observer(cluster, history, (watched,)))
        sender = KeyedSender(
            producer,
            history,
            "producer-0",
            queues,
            window=config.window,
            timeout_ms=SEND_TIMEOUT_MS,
            rate_per_s=config.rate_per_s,
            on_outcome=milestones.outcome,
        )
        board.say(f"sending {config.total:,} departures, two consumers of one group listen")
        stack.enter_context(board)
        board.count("acknowledged", config.total)
        board.count("consumed", config.total)
        async with asyncio.TaskGroup() as group:
            show = group.create_task(_show(board, milestones, consumption), name="progress")
            send = group.create_task(sender.run(messages(flights)), name="sender")
            kills = group.create_task(
                _kill_leaders(config, cluster, history, milestones, sender, send, board),
                name="kills",
            )
            tally = await send
            await kills
            board.say(f"all sent: {tally.ok:,} acknowledged; waiting for the consumers")
            drained = await drain_group(admin, history, consumers, queues, DRAIN_TIMEOUT_S)
            board.say(f"consumed {consumption.distinct:,}" + ("" if drained else ", NOT drained"))
            show.cancel()
    return tally, drained


async def _kill_leaders(
    config: LoadConfig,
    cluster: Cluster,
    history: HistoryWriter,
    milestones: Milestones,
    sender: KeyedSender,
    send: asyncio.Task[Tally],
    board: Board,
) -> None:
    counts = [int(config.total * fraction) for fraction in KILLS_AT]
    for number, count in enumerate(counts, 1):
        reached = asyncio.create_task(milestones.reached(count))
        try:
            await asyncio.wait((reached, send), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reached.cancel()
        if send.done():
            raise ClusterError(
                "the load was over before the leader could be killed under it: "
                "take a larger --limit or a lower --rate"
            )
        planned = Planned(number, 0.0, RESTART_AFTER_S, "kill", "leader", 0.0)
        fault = Injection(planned, Context(cluster, history), Kill(cluster))
        following = counts[number : number + 1]
        async with held_at(following[0], milestones, sender) if following else nullcontext():
            try:
                await fault.inject()
                node = fault.targets()
                board.say(f"kill -9 of the leader {node} at {milestones.acknowledged:,}")
                await asyncio.sleep(RESTART_AFTER_S)
            finally:
                await fault.heal()
            board.say(f"{node} started again")
            await wait_recovered(cluster)
            board.say("all three replicas have caught up")


@asynccontextmanager
async def held_at(count: int, milestones: Milestones, sender: KeyedSender) -> AsyncIterator[None]:
    """Hold the load at `count` acknowledged sends during the block. Otherwise a slow restart could
    outlast the load, and no send would remain for the next kill."""

    async def hold() -> None:
        await milestones.reached(count)
        sender.hold()

    holding = asyncio.create_task(hold(), name="hold")
    try:
        yield
    finally:
        holding.cancel()
        await asyncio.wait([holding])
        sender.go_on()


async def _show(board: Board, milestones: Milestones, consumption: Consumption) -> None:
    while True:
        board.advance("acknowledged", milestones.acknowledged)
        board.advance("consumed", consumption.distinct)
        await asyncio.sleep(0.2)
