"""Workloads of deferred messages, on a real cluster through a leader's death, and alone."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raftmq.chaos.checks.suite import suite_of
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.history.events import Kind, Outcome
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.chaos.workloads.base import Environment, Tally
from raftmq.chaos.workloads.catalogue import settings_for
from raftmq.chaos.workloads.deferred import LATE_S, Deliveries, Paced, PostedWorkload, Posting
from raftmq.chaos.workloads.delayed import DELAYED, Delayed, delay_levels
from raftmq.chaos.workloads.locks import LOCKS, locks_workload
from raftmq.chaos.workloads.pops import POP, Poppers, Pops
from raftmq.chaos.workloads.retries import FAILURES, RETRIES, Retries
from raftmq.chaos.workloads.transactions import PLANS, TRANSACTIONS, Transacted
from raftmq.client import Admin, Later, MessageExt, MessageQueue
from raftmq.client.admin.bodies import ConsumeStats, Progress
from raftmq.client.message import properties_text
from tests.waiting import until

SETTINGS = settings_for(["transactions", "delayed", "retries"]) | {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    "messageDelayLevel": "500ms 1s 1500ms",
}
CHECKS = {
    "committed but lost",
    "delivered without a commit",
    "transactions stored more than once",
    "half messages at the end",
    "delayed and lost",
    "delayed but early",
    "delayed and stored more than once",
    "lateness of delayed messages",
    "given back and lost",
    "retries out of turn",
    "retries stored more than once",
    "popped and lost",
    "popped again though acknowledged",
    "popped before its time",
    "two consumers in one queue",
    "skipped in an orderly queue",
    "linearizable queue locks",
    "linearizable consumer offsets",
    "acknowledged but lost",
    "order as consumed",
}


async def test_deferred_workloads_survive_a_leader_crash(tmp_path: Path) -> None:
    workloads = (
        PostedWorkload(replace(TRANSACTIONS, rate_per_s=80, window=32), Transacted),
        PostedWorkload(replace(DELAYED, rate_per_s=60, window=32), Delayed),
        PostedWorkload(replace(RETRIES, rate_per_s=40, window=32), Retries),
        PostedWorkload(replace(POP, rate_per_s=40, window=32), Pops),
        locks_workload(replace(LOCKS, rate_per_s=60, queues=4), restart_every_s=0.8),
    )
    posting = workloads[:4]
    transactions = workloads[0].work
    assert isinstance(transactions, Transacted)
    cluster = Cluster(tmp_path / "cluster")
    path = tmp_path / "history.jsonl"
    try:
        state = await cluster.up(settings=SETTINGS)
        with HistoryWriter(path) as history:
            env = Environment(state.namesrv, history, random.Random(3))
            async with AsyncExitStack() as stack:
                for workload in workloads:
                    await workload.prepare(env)
                await asyncio.gather(*(workload.start(stack) for workload in workloads))
                await asyncio.sleep(1.5)
                leader = await cluster.find("leader")
                await cluster.wait_dead(cluster.signal(leader.name, signal.SIGKILL))
                await asyncio.sleep(1.5)
                cluster.start(leader.name)
                await cluster.wait_serving()
                # A busy machine needs more for the assertions on the history below.
                await until(lambda: transactions.checked and min(w.tally.ok for w in posting) > 50)
                assert [workload.failure() for workload in workloads] == [None] * 5
                for workload in workloads:
                    workload.stop()
                drained = await asyncio.gather(*(workload.drain() for workload in workloads))
    finally:
        await cluster.down()
        await cluster.close()
    assert drained == [True] * 5
    result = read_history(path)
    results = {check.name: check for check in suite_of(result).results()}
    assert {*results} >= CHECKS
    wrong = [check for check in results.values() if check.verdict is not Verdict.PASS]
    assert wrong == []
    posts = [event for kind, event in result.later if kind is Kind.POSTED]
    sent = {work: 0 for work in ("transactions", "delayed", "retries", "pop")}
    for post in posts:
        sent[post.work] += post.outcome is Outcome.OK
    assert all(count > 50 for count in sent.values()), sent
    assert transactions.checked > 0
    levels = {int(ms) for ms in delay_levels(SETTINGS["messageDelayLevel"]).values()}
    assert sum(post.work == "delayed" and post.delay_ms not in levels for post in posts) > 50
    seen = [event for kind, event in result.later if kind is Kind.DELIVERED]
    assert {event.topic for event in seen} >= {"%RETRY%chaos-retries", "%DLQ%chaos-retries"}
    assert results["skipped in an orderly queue"].detail.endswith("4 queues")


# ---- alone


def test_deferred_plans_have_hundreds_of_messages_and_failures() -> None:
    assert sum(weight for weight, _ in PLANS) == sum(weight for weight, _ in FAILURES) == 100


def test_delay_levels_are_parsed() -> None:
    assert delay_levels("500ms 1s 2m") == {1: 500, 2: 1000, 3: 120_000}
    with pytest.raises(ClusterError, match="has '1y'"):
        delay_levels("1s 1y")


async def test_open_loop_keeps_its_window_and_ends() -> None:
    at_work = most = 0
    numbers = []
    loop = None

    async def work(number: int) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        numbers.append(number)
        await asyncio.sleep(0.005)
        at_work -= 1
        if len(numbers) >= 20:
            assert loop is not None
            loop.stop()

    loop = Paced(10_000, 3, Tally(), work)
    async with asyncio.timeout(60):
        await loop.run()
    assert (most, at_work) == (3, 0)
    assert sorted(numbers) == list(range(len(numbers)))


async def test_work_overdue_after_a_stall_is_shed() -> None:
    tally = Tally()
    loop = None

    async def work(number: int) -> None:
        assert loop is not None
        loop.stop()

    loop = Paced(100, 1, tally, work)
    begin_ns = time.monotonic_ns()
    loop._start_ns = begin_ns - int((LATE_S + 1) * 1e9)  # as after a stall of that length
    await loop._worker()
    assert tally.shed == tally.invoked >= 100
    assert tally.ok == 0


def message(topic: str, times: int, offset: int = 5, **properties: str) -> MessageExt:
    text = properties_text({"UNIQ_KEY": "U", **properties}).encode()
    host = bytes(8)
    return MessageExt(
        topic, b"", text, "b", 2, offset, 0, 0, 0, 0, host, 77, host, times, 0, 100
    )  # fmt: skip


def test_delivery_records_the_position_of_its_message(tmp_path: Path) -> None:
    news: list[str] = []
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        refused = Deliveries(history, "retries", "G", news.append, lambda name, times: times < 2)
        listen = refused.listener("c")
        again = message("T", 1, RETRY_TOPIC="T")  # shown under the topic it was sent to
        assert listen([again]) == Later(0, 1)
        again.reconsume_times = 2  # like a client that redelivers it by itself
        assert listen([again]) == Later(0, 1)
        assert news == []
        listen([message("T", 2, 6, RETRY_TOPIC="T")])
        listen([message("%DLQ%G", 3, RETRY_TOPIC="T")])
    assert news == ["U", "U"]
    result = [event for _, event in read_history(tmp_path / "h.jsonl").later]
    assert [(e.topic, e.offset, e.times, e.accepted) for e in result] == [
        ("%RETRY%G", 5, 1, False),
        ("%RETRY%G", 5, 1, False),
        ("%RETRY%G", 6, 2, True),
        ("%DLQ%G", 5, 3, True),
    ]
    assert {e.store_ms for e in result} == {77}


async def test_wait_ends_without_new_deliveries_for_the_quiet_time(tmp_path: Path) -> None:
    posting = Posting(replace(DELAYED, quiet_s=0.05))
    posting.awaited.add("lost")
    async with asyncio.timeout(60):
        assert not await posting.wait_arrived(time.monotonic() + 3600)
    posting.arrived("lost")
    assert await posting.wait_arrived(time.monotonic() + 3600)


@pytest.mark.parametrize(("missing", "lag"), [((), 0), (("broker-b",), None)])
async def test_lag_is_unknown_while_a_broker_group_is_missing(
    missing: tuple[str, ...], lag: int | None
) -> None:
    """Its queues are missing from the answer, with their waiting messages."""

    async def stats(group: str, topic: str) -> ConsumeStats:
        return ConsumeStats(0.0, {MessageQueue(topic, "b", 0): Progress(7, 7, 7, 0)}, missing)

    poppers = Poppers(Posting(POP), {})
    admin = cast(Admin, SimpleNamespace(group=SimpleNamespace(stats=stats)))
    assert await poppers.lag(admin, ()) == lag
