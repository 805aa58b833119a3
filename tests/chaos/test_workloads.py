"""All workloads at once on a real cluster, through a leader's death; each alone on stand-ins."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from raftmq.chaos.checks.suite import METADATA, OFFSETS, OFFSETS_BACK, Suite
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.history.files import HistoryWriter, Records, read_history
from raftmq.chaos.workloads import consumers
from raftmq.chaos.workloads.base import Environment, Tally, Tasks, Workload, sum_tallies
from raftmq.chaos.workloads.catalogue import WORKLOADS, make_workloads, settings_for
from raftmq.chaos.workloads.consumers import fairly_shared, wait_until
from raftmq.chaos.workloads.load import DESCRIPTIONS, GROUP, LOG, ORDERED
from raftmq.chaos.workloads.messages import Churn, MessagesWorkload
from raftmq.chaos.workloads.metadata import MetadataWorkload, MetaObject, write_request
from raftmq.client import Admin, BrokerRefused, BrokerUnreachable, MessageQueue
from raftmq.remoting.codes import RequestCode
from tests.waiting import until

SETTINGS = {"mappedFileSizeCommitLog": str(8 * 1024 * 1024)}


async def test_all_workloads_survive_a_leader_crash(tmp_path: Path) -> None:
    churn = Churn(restart_every_s=0.7)
    workloads: list[Workload] = [
        MessagesWorkload(replace(LOG, rate_per_s=300, keys=50, window=64, queues=4)),
        MessagesWorkload(replace(ORDERED, rate_per_s=200, keys=50, producers=2, queues=4)),
        MessagesWorkload(replace(GROUP, rate_per_s=100, keys=10, queues=4), churn=churn),
        MetadataWorkload(objects=3, rate_per_s=50),
    ]
    cluster = Cluster(tmp_path / "cluster")
    path = tmp_path / "history.jsonl"
    try:
        state = await cluster.up(settings=SETTINGS)
        with HistoryWriter(path) as history:
            env = Environment(state.namesrv, history, random.Random(3))
            async with AsyncExitStack() as stack:
                for workload in workloads:
                    await workload.prepare(env)
                for workload in workloads:
                    await workload.start(stack)
                await asyncio.sleep(1.5)
                leader = await cluster.find("leader")
                await cluster.wait_dead(cluster.signal(leader.name, signal.SIGKILL))
                await asyncio.sleep(1.5)
                cluster.start(leader.name)
                await cluster.wait_serving()
                await asyncio.sleep(0.5)
                # A busy machine needs more for the assertions on the history below.
                await until(
                    lambda: (
                        workloads[3].tally.ok > 20
                        and sum(w.tally.ok for w in workloads[:3]) > 500
                        and all(w.tally.ok for w in workloads)
                        and churn.restarts
                    )
                )
                assert [workload.failure() for workload in workloads] == [None] * 4
                for workload in workloads:
                    workload.stop()
                drained = await asyncio.gather(*(workload.drain() for workload in workloads))
    finally:
        await cluster.down()
        await cluster.close()
    assert drained == [True] * 4
    suite = Suite()
    for record in Records(path):
        suite.feed(record)
    by_name = {check.name: check for check in suite.results()}
    assert suite.verdict() is Verdict.PASS, by_name
    assert {"order as consumed", OFFSETS, OFFSETS_BACK, METADATA} <= {*by_name}
    result = read_history(path)
    assert result.joins and result.leaves and churn.restarts > 0
    assert any(commit.fetched for commit in result.commits)
    assert {consume.broker for consume in result.consumes} == {"broker-a"}
    assert {consume.topic for consume in result.consumes if consume.orderly} == {"ChaosOrdered"}
    assert {send.topic for send in result.sends} == {t for w in workloads for t in w.topics}
    assert workloads[3].tally.ok > 20
    writers = defaultdict(set)
    for write in result.meta_writes:
        writers[write.name].add(write.process)
    assert {len(processes) for processes in writers.values()} == {1, 2}
    assert sum(w.tally.ok for w in workloads[:3]) == sum(s.promised for s in result.sends) > 500


def queue(number: int, broker: str = "b") -> MessageQueue:
    return MessageQueue("T", broker, number)


@pytest.mark.parametrize(
    ("held", "shared"),
    [
        ([[0, 1], [2, 3]], True),
        ([[0, 1, 2], [3]], False),  # a consumer has fewer than its share
        ([[0, 1], [2]], False),  # 3 has nobody
        ([[0, 1], [1, 2, 3]], False),  # 1 has two
        ([], False),
    ],
)
def test_group_queues_are_shared_out(held: list[list[int]], shared: bool) -> None:
    queues = [queue(number) for number in range(4)]
    assert fairly_shared([[queue(n) for n in numbers] for numbers in held], queues) is shared


async def test_workload_wait_ends_with_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "POLL_S", 0.001)
    with pytest.raises(ClusterError, match=r"not yet after 0\.01 s"):
        await wait_until(lambda: False, 0.01, lambda: "not yet")


class StandInAdmin:
    """Offsets by queue; a missing queue is never answered."""

    def __init__(self, ends: dict[int, int], committed: dict[int, int]) -> None:
        self.offset = StandInOffsets(ends, committed)


class StandInOffsets:
    def __init__(self, ends: dict[int, int], committed: dict[int, int]) -> None:
        self._ends, self._committed = ends, committed

    async def max(self, of: MessageQueue) -> int:
        if of.queue_id not in self._ends:
            raise BrokerUnreachable("silence")
        return self._ends[of.queue_id]

    async def committed(self, group: str, of: MessageQueue) -> int | None:
        return self._committed.get(of.queue_id)


@pytest.mark.parametrize(
    ("ends", "committed", "lag"),
    [
        ({0: 5, 1: 7}, {0: 5, 1: 7}, 0),
        ({0: 5, 1: 7}, {0: 5}, 7),
        ({0: 5, 1: 3}, {0: 4, 1: 7}, 1),  # queue 1 has lost its end
        ({0: 5}, {0: 5}, None),
    ],
)
async def test_lag_of_a_group(
    ends: dict[int, int], committed: dict[int, int], lag: int | None
) -> None:
    admin = cast(Admin, StandInAdmin(ends, committed))
    assert await consumers.group_lag(admin, "G", [queue(0), queue(1)]) == lag


async def test_failed_task_is_raised_and_ends_the_others() -> None:
    async def fail() -> None:
        raise ClusterError("no leader")

    tasks = Tasks()
    tasks.spawn(asyncio.sleep(3600), "sleeper")
    assert tasks.failure() is None
    tasks.spawn(fail(), "failing")
    with pytest.raises(ClusterError, match="no leader"):
        await tasks.finish()
    assert isinstance(tasks.failure(), ClusterError)
    await tasks.cancel()


def test_tallies_add_up() -> None:
    assert sum_tallies([Tally(5, 1, 1, 1, 2, 1), Tally(1, 1)]) == Tally(6, 2, 1, 1, 2, 1)
    assert Tally(5, 1, 1, 1, 2, 1).decided == 5


def test_workloads_by_name() -> None:
    names = ["metadata", "log", "log", "group", "ordered"]
    later = ["idempotent", "transactions", "delayed", "retries", "locks", "pop"]
    made = make_workloads([*names, *later], replace(LOG, queues=3))
    assert [w.name for w in made] == ["metadata", "log", "group", "ordered", *later]
    assert isinstance(made[1], MessagesWorkload) and made[1].config.queues == 3
    assert sorted(w.name for w in made) == sorted(WORKLOADS) == sorted(DESCRIPTIONS)
    topics = [topic for workload in made for topic in workload.topics]
    assert len(set(topics)) == len(topics) == 9
    assert [workload.groups for workload in made][1] == (("Chaos", "chaos-consumers"),)
    for names in ([], ["nonsense"]):
        with pytest.raises(ClusterError, match="there are log, ordered, group, metadata"):
            make_workloads(names)


def test_workloads_set_the_settings_they_need() -> None:
    assert settings_for(["log", "locks", "metadata"]) == {}
    assert settings_for(["log", "delayed"]) == {"messageDelayLevel": "1s 2s 3s"}
    assert settings_for(["transactions"])["transactionCheckInterval"] == "2000"


def test_metadata_version_is_written_into_queue_or_retry_numbers() -> None:
    code, ext, _ = write_request(MetaObject("b", "topic", "X", 8), 7)
    assert code == RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (ext["readQueueNums"], ext["writeQueueNums"]) == ("7", "7")
    code, _, body = write_request(MetaObject("b", "group", "X", 8), 7)
    assert code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert b'"retryMaxTimes":7' in body


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (BrokerRefused(14, "[NOT_LEADER] n1", "x"), "fail"),
        (BrokerRefused(1, "[OUTCOME_UNKNOWN] no answer", "x"), "unknown"),
        (BrokerUnreachable("no answer", outcome_unknown=True), "unknown"),
        (BrokerUnreachable("no connection"), "fail"),
    ],
)
async def test_metadata_write_outcomes(
    tmp_path: Path, error: Exception | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = MetadataWorkload()

    async def leader(broker: str) -> str:
        return "address"

    async def ask(*request: object) -> bytes:
        if error is not None:
            raise error
        return b""

    monkeypatch.setattr(workload, "_leader", leader)
    monkeypatch.setattr(workload, "_ask", ask)
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        workload._env = Environment("", history, random.Random(1))
        await workload._write("metadata-0", MetaObject("b", "topic", "X"))
    (write,) = read_history(tmp_path / "h.jsonl").meta_writes
    assert (write.outcome.value, write.version, write.broker) == (outcome, 1, "b")
    assert getattr(workload.tally, outcome) == workload.tally.decided == 1
