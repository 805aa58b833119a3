"""The load of a world: the chaos harness's workloads, small, in one client process.

Time costs nothing here, so rates are low and periods as users have them. The history goes to the
harness's own judges (chaos.checks.suite).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import cast
from unittest.mock import patch

from raftmq.chaos.history.files import HistoryWriter
from raftmq.chaos.workloads import delayed, pops, retries, transactions
from raftmq.chaos.workloads.base import Environment, Tasks, Workload
from raftmq.chaos.workloads.deferred import PostedConfig, PostedWorkload
from raftmq.chaos.workloads.load import GROUP, LOG, ONCE, ORDERED, MessagesConfig
from raftmq.chaos.workloads.locks import LOCKS, locks_workload
from raftmq.chaos.workloads.messages import Churn, MessagesWorkload
from raftmq.chaos.workloads.metadata import MetadataWorkload
from tests.simulator.cluster import asked
from tests.simulator.cluster.asked import AskedWorkload
from tests.simulator.cluster.filtered import FilteredWorkload
from tests.simulator.cluster.recorder import Recorder
from tests.simulator.cluster.scaled import ScaledWorkload
from tests.simulator.cluster.trims import Latecomer, Trims

JOIN_WITHIN_S = 60.0
DRAIN_WITHIN_S = 150.0
# What brokers are configured with, so that nobody waits for hours.
SETTINGS = {
    **transactions.SETTINGS,
    **retries.SETTINGS,
    **delayed.SETTINGS,
    **asked.SETTINGS,
}


@dataclass(frozen=True, slots=True)
class Manner:
    """How fast a load is, and how large the bodies are of what is not posted, and of what is."""

    pace: float
    body_bytes: int = 128
    posted_bytes: int = 64


def messages(config: MessagesConfig, manner: Manner) -> MessagesConfig:
    return replace(
        config, queues=4, producers=2, window=16, rate_per_s=60.0 * manner.pace, keys=20,
        send_timeout_ms=5_000, body_bytes=manner.body_bytes,
    )  # fmt: skip


def posted(config: PostedConfig, manner: Manner) -> PostedConfig:
    return replace(
        config, queues=2, window=8, rate_per_s=20.0 * manner.pace, quiet_s=8.0,
        body_bytes=manner.posted_bytes,
    )  # fmt: skip


MAKERS: dict[str, Callable[[Manner], Workload]] = {
    "log": lambda manner: MessagesWorkload(messages(LOG, manner)),
    "ordered": lambda manner: MessagesWorkload(messages(ORDERED, manner)),
    "group": lambda manner: MessagesWorkload(
        messages(GROUP, manner), churn=Churn(restart_every_s=2.0)
    ),
    "idempotent": lambda manner: MessagesWorkload(messages(ONCE, manner)),
    "metadata": lambda manner: MetadataWorkload(rate_per_s=20.0 * manner.pace),
    "locks": lambda manner: locks_workload(messages(LOCKS, manner), restart_every_s=2.0),
    # A broker that restarted may ask no producer before that one's next heartbeat, 30 s later.
    "transactions": lambda manner: PostedWorkload(
        replace(posted(transactions.TRANSACTIONS, manner), quiet_s=40.0), transactions.Transacted
    ),
    "delayed": lambda manner: PostedWorkload(posted(delayed.DELAYED, manner), delayed.Delayed),
    "retries": lambda manner: PostedWorkload(posted(retries.RETRIES, manner), retries.Retries),
    # A dead letter is three invisible times away, and then a consumer finds its new topic.
    "pop": lambda manner: PostedWorkload(
        replace(posted(pops.POP, manner), quiet_s=30.0), pops.Pops
    ),
    "asked": lambda manner: AskedWorkload(20.0 * manner.pace),
    "filtered": lambda manner: FilteredWorkload(40.0 * manner.pace),
    "scaled": lambda manner: ScaledWorkload(
        replace(posted(delayed.DELAYED, manner), rate_per_s=40.0 * manner.pace, quiet_s=45.0)
    ),
}
DRAWN = tuple(name for name in MAKERS if name not in ("pop", "asked", "filtered", "scaled"))
FILLING = ("log", "ordered", "group", "idempotent")  # nobody waits for what retention takes
# Brokers know a repeated send for some time after it was stored, by the leader's clock.
UNDATED = ("log", "ordered", "group")
WAITING = ("transactions", "pop")  # what waits goes with it
WITHOUT_CLOCKS = ("log", "ordered", "group", "idempotent", "metadata", "locks")


class Load:
    """Workloads and how far they are."""

    def __init__(
        self,
        names: Sequence[str],
        manner: Manner,
        rng: Random,
        note: Callable[[str], None],
        trims: Trims | None = None,
    ) -> None:
        """`trims`: if a latecomer is to read what they leave."""
        self.names = tuple(names)
        self.workloads: list[Workload] = []  # there are some once it runs
        self.began = False
        self.stopping = asyncio.Event()
        self.late: list[str] = []  # names of those that were not drained in time
        self.over = False
        self.latecomer: Latecomer | None = None
        self._manner = manner
        self._trims = trims
        self._rng = rng
        self._note = note

    def acknowledged(self) -> list[int]:
        """Return how many operations of each workload were acknowledged so far."""
        return [one.tally.ok for one in self.workloads]

    def give_up(self, names: Collection[str]) -> None:
        """Wait no longer for these messages."""
        for one in self.workloads:
            if isinstance(one, PostedWorkload):
                one.posting.awaited.difference_update(names)

    async def run(self, namesrv: str, history: Recorder) -> None:
        """Play all workloads in the harness's order: prepare, start, stop, drain."""
        written = cast(HistoryWriter, history)
        self._make()
        async with AsyncExitStack() as stack:
            for one in self.workloads:
                rng = Random(self._rng.random())
                await one.prepare(
                    Environment(
                        *(namesrv, written, rng, self._note, JOIN_WITHIN_S, DRAIN_WITHIN_S),
                        groups_change="scaled" in self.names,
                    )
                )
            for one in self.workloads:
                await one.start(stack)
            self._note("loaded")
            self.began = True
            others = Tasks()
            stack.push_async_callback(others.cancel)
            if self._trims is not None:
                topics = [topic for one in self.workloads for topic in one.topics]
                self.latecomer = Latecomer(topics, self._trims)
                others.spawn(self.latecomer.run(namesrv), "latecomer")
            await self.stopping.wait()
            for one in self.workloads:
                one.stop()
            self.late = [one.name for one in self.workloads if not await one.drain()]
            if self.latecomer is not None:
                self.latecomer.end()
                await others.finish()
        self.over = True

    def _make(self) -> None:
        """Make the workloads, as the client's process: they number their messages by its address
        and by chance, here by their names, so that nothing else is drawn otherwise."""
        for name in self.names:
            with patch.object(os, "urandom", Random(name).randbytes):
                self.workloads.append(MAKERS[name](self._manner))
