"""The nemesis over doubles, with failures, healing, and a broken load."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.faults import disk
from raftmq.chaos.faults.base import Context, Fault, Hit, Injection, Planned
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.chaos.run import nemesis
from raftmq.chaos.run.nemesis import Nemesis
from raftmq.client import Message, Producer, SendStatus
from tests.chaos.doubles import AgreeingProbe, Programs
from tests.waiting import until


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[Context]:
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    await cluster.up()
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        yield Context(cluster, history)
    await cluster.down()


def planned(
    number: int, kind: str, whom: str, at_s: float = 0.0, for_s: float = 0.05, slot: int = 0
) -> Planned:
    return Planned(number, at_s, for_s, kind, whom, 0.0, slot=slot)


async def test_nemesis_records_a_failed_fault_and_continues(context: Context) -> None:
    inflicter = Nemesis(context, 0.0)
    plan = [
        planned(1, "kill", "n7"),  # there is no such node
        planned(2, "pause", "n1", 1.0, slot=1),
        planned(3, "kill", "n2", 1.0, slot=1),  # together with the second
    ]
    result = await inflicter.inflict(plan, lambda: None)
    assert result.done == 2
    (failed,) = result.failed
    assert failed.startswith("kill:n7: ")
    assert result.stuck == []
    context.history.flush()
    faults = read_history(context.history.path).faults
    assert sorted(fault.kind for fault in faults) == ["kill", "pause"]
    assert all(fault.healed_ns > fault.done_ns for fault in faults)
    assert all(status.state == "running" for status in await context.cluster.status())


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["pause", "kill"])
async def test_fault_that_cannot_be_recorded_is_still_healed(
    context: Context, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def states() -> set[str]:
        return {status.state for status in await context.cluster.status()}

    plan = [planned(1, kind, "n1", for_s=600.0)]
    inflicter = Nemesis(context, 0.0)
    inflicting = asyncio.create_task(inflicter.inflict(plan, lambda: None))
    await until(lambda: inflicter.result.done == 1)
    assert await states() > {"running"}
    monkeypatch.setattr(context.history, "event", full)
    inflicting.cancel()
    await asyncio.wait([inflicting])
    assert await states() == {"running"}


async def test_disk_is_not_emptied_under_a_restarted_node(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a thread empties it, because threads are not cancelled."""
    cluster = context.cluster
    emptying, up_meanwhile = threading.Event(), []

    def slowly(store: Path) -> None:
        emptying.set()
        time.sleep(0.3)
        up_meanwhile.append(cluster.is_alive("n1"))

    (cluster.directory / "n1" / "store").mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(disk, "empty", slowly)
    plan = [planned(1, "disk-loss", "n1")]
    inflicting = asyncio.create_task(Nemesis(context, 0.0).inflict(plan, lambda: None))
    await until(emptying.is_set)
    inflicting.cancel()
    await asyncio.wait([inflicting])
    assert up_meanwhile == [False]
    assert cluster.is_alive("n1")


class HalfDone:
    """A deed that fails in the middle; notes that it was undone."""

    undone = False

    async def do(self, hit: Hit) -> None:
        raise ClusterError("half done")

    async def undo(self, hit: Hit) -> None:
        self.undone = True

    def describe(self, targets: str) -> str:
        return targets


async def test_half_done_fault_is_undone_although_it_cannot_be_recorded(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    deed, write = HalfDone(), context.history.event

    def last(*what: Any, **fields: Any) -> int:
        monkeypatch.setattr(context.history, "event", full)
        return write(*what, **fields)

    monkeypatch.setattr(context.history, "event", last)
    with pytest.raises(OSError):
        await Injection(planned(1, "kill", "n1"), context, deed).inject()
    assert deed.undone


class Slow(Fault):
    """Is injected as slowly as the test requires; records the time."""

    def __init__(self, began: list[str], name: str, wait: asyncio.Event) -> None:
        self._began, self._name, self._wait = began, name, wait

    async def inject(self) -> None:
        self._began.append(f"{self._name} begins")
        await self._wait.wait()
        self._began.append(f"{self._name} is done")

    async def heal(self) -> None:
        pass

    def describe(self) -> str:
        return self._name


async def test_later_part_starts_after_the_first_is_done(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    slow, soon = asyncio.Event(), asyncio.Event()
    soon.set()

    def made(planned: Planned, _: Context) -> Slow:
        return Slow(began, planned.kind, slow if planned.kind == "first" else soon)

    monkeypatch.setattr(nemesis, "make", made)
    plan = [planned(1, "first", "n0", 0.0, 5.0), planned(2, "second", "n0", 0.1, 0.0)]
    inflicting = asyncio.create_task(Nemesis(context, time.monotonic()).inflict(plan, lambda: None))
    await asyncio.sleep(0.5)
    assert began == ["first begins"]
    slow.set()
    await until(lambda: len(began) >= 4)
    assert began == ["first begins", "first is done", "second begins", "second is done"]
    inflicting.cancel()
    await asyncio.wait([inflicting])


async def test_heal_in_progress_is_completed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class SlowToHeal(Slow):
        async def heal(self) -> None:
            said.append("heals")
            await asyncio.sleep(0.2)
            said.append("is healed")

    soon = asyncio.Event()
    soon.set()
    monkeypatch.setattr(nemesis, "make", lambda *_: SlowToHeal([], "", soon))
    inflicter = Nemesis(context, 0.0)
    inflicting = asyncio.create_task(inflicter.inflict([planned(1, "any", "n0")], lambda: None))
    await until(lambda: said == ["heals"])
    inflicting.cancel()
    await asyncio.wait([inflicting])
    assert inflicting.cancelled()
    assert said == ["heals", "is healed"]


async def test_remaining_parts_are_injected_if_the_first_fails(context: Context) -> None:
    plan = [planned(1, "power-cut", "n0", 0.0, 5.0), planned(2, "pause", "n1", 0.1)]
    result = await Nemesis(context, time.monotonic()).inflict(plan, lambda: None)
    assert result.done == 1
    (failed,) = result.failed
    assert failed.startswith("power-cut:n0: ")


async def test_broken_load_ends_the_run_and_heals_everything(context: Context) -> None:
    asked = 0

    def check_load() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise ZeroDivisionError("the load broke")

    plan = [planned(1, "pause", "n0", for_s=600.0)]
    with pytest.raises(ExceptionGroup) as caught:
        await Nemesis(context, 0.0).inflict(plan, check_load)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
    assert all(status.state == "running" for status in await context.cluster.status())


async def test_cluster_that_does_not_recover_is_reported(context: Context) -> None:
    probe = AgreeingProbe()
    probe.silent = {"n1"}
    cluster = Cluster(context.cluster.directory, probe, Programs())
    lame = Context(cluster, context.history)
    inflicter = Nemesis(lame, 0.0, recovery_timeout_s=0.2)
    result = await inflicter.inflict([planned(1, "kill", "n2")], lambda: None)
    (text,) = result.stuck
    assert text.startswith("after kill:n2: not whole after 0.2 s")


@pytest.mark.long
async def test_slave_with_a_divergent_log_is_recreated(tmp_path: Path) -> None:
    """The master loses power and its unsynced data; its slave still has that, and refuses to
    follow."""
    said: list[str] = []
    settings = {
        "flushDiskType": "ASYNC_FLUSH",
        "flushIntervalCommitLog": "600000",
        "slaveTimeout": "60000",  # a slave that is slow is waited for
    }
    cluster = Cluster(tmp_path / "c")
    try:
        state = await cluster.up(Shape("sync", faultable=True), settings)
        async with Producer("p", state.namesrv) as producer:
            for number in range(5):  # the first is sent as soon as the cluster is up
                sent = await producer.send(Message("T", b"%d" % number), timeout_ms=120_000)
                assert sent.status is SendStatus.OK
            with HistoryWriter(tmp_path / "history.jsonl") as history:
                context = Context(cluster, history, say=said.append)
                cut = Planned(1, 0.0, 0.05, "power-cut", "leader", 0.5, {"lose_all": 1})
                result = await Nemesis(context, 0.0).inflict([cut], lambda: None)
            assert (result.failed, result.stuck) == ([], [])
            assert "  s0 refuses to follow; made anew from its master" in said
            sent = await producer.send(Message("T", b"again"), timeout_ms=120_000)
            assert sent.status is SendStatus.OK
    finally:
        await cluster.down()
        await cluster.close()
