"""Faults of disks, which are full, failing, slow, stalled, lying, without power, lost or set back.

All but the last two need brokers over the fault layer (`mqcluster up --faultable`). A broker may
rightly end itself because of a disk error. Healing repairs the disk and starts brokers that are
down.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raftmq.store.store_lock import LOCK_FILE

from ..cluster.clusterfile import ClusterError, ClusterState, Node
from ..cluster.launch import node_directory
from ..cluster.topology import CLASSIC, MODES
from . import power
from .base import Context, Factory, Hit, Kind, Need, Planned, Table, in_thread, injected
from .fault_control import (
    ALLOCATE,
    ERROR,
    FULL,
    LIE,
    READ,
    SHORT,
    SLOW,
    STALL,
    SYNC,
    WRITE,
    Rule,
    Steering,
    TooManyRules,
)
from .power import FAULTS, Cut, LoopDisk, owned
from .power_loss_journal import LOSE_ALL
from .process import Kill, alive

END_S = 120.0  # within which a broker with a failed disk must serve again or have ended
STEADY_S = 0.5  # a broker that answers for this long will not end because of the fault
POLL_S = 0.05

RulesOf = Callable[[Planned], Sequence[Rule]]


def store_of(context: Context, node: Node) -> Path:
    return node_directory(context.cluster.directory, node) / "store"


def faults_of(context: Context, node: Node) -> Path:
    """Return the node's directory of faults, beside its store."""
    return node_directory(context.cluster.directory, node) / FAULTS


class DiskRules:
    """Puts rules in force for the disks of the nodes that it hits, as long as it lasts."""

    def __init__(
        self, planned: Planned, context: Context, rules: RulesOf, text: str, *, may_end: bool
    ) -> None:
        """`may_end`: a broker may end itself because of it."""
        self._context = context
        self._key = str(planned.number)
        self._rules = tuple(rules(planned))
        self._text = text
        self._may_end = may_end
        self._ran: list[str] = []  # running at the injection, so started again if they end

    async def do(self, hit: Hit) -> None:
        self._ran = [node.name for node in hit.nodes if alive(node)]
        for node in hit.nodes:
            try:
                self._steering(node).put(self._key, self._rules)
            except TooManyRules as error:
                raise ClusterError(str(error)) from error

    async def undo(self, hit: Hit) -> None:
        for node in hit.nodes:
            self._steering(node).drop(self._key)
        if self._may_end:
            for name in list(self._ran):
                await self._see_to(name)
                self._ran.remove(name)

    async def _see_to(self, name: str) -> None:
        """Wait until the node either serves or has ended; then start it if it ended."""
        cluster = self._context.cluster
        steady_s = until_s = time.monotonic()
        until_s += END_S
        while time.monotonic() < until_s:
            (status,) = [s for s in await cluster.status() if s.node.name == name]
            if not status.alive:
                cluster.start(name)
                return
            if status.view is None:
                steady_s = time.monotonic()
            elif time.monotonic() - steady_s > STEADY_S:
                return
            await asyncio.sleep(POLL_S)
        raise ClusterError(f"{name} neither serves nor ends, {END_S:g} s after its disk was healed")

    def _steering(self, node: Node) -> Steering:
        return Steering(faults_of(self._context, node))

    def describe(self, targets: str) -> str:
        return f"{targets}: {self._text}"


class PowerCut:
    """SIGKILL to all at once, then unsynced changes are undone; healing starts them again."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._context = context
        self._kill = Kill(context.cluster)
        self._cuts: dict[str, Cut] = {}

    async def do(self, hit: Hit) -> None:
        await self._kill.do(hit)
        temper = LOSE_ALL if self._planned.figure("lose_all", 0) else None
        for node in hit.nodes:
            rng = random.Random(f"{self._planned.number}:{self._planned.choice}:{node.name}")
            home, store = faults_of(self._context, node), store_of(self._context, node)
            self._cuts[node.name] = await in_thread(power.cut, home, store, rng, temper)

    async def undo(self, hit: Hit) -> None:
        await self._kill.undo(hit)

    def describe(self, targets: str) -> str:
        taken = "; ".join(f"{name}: {cut}" for name, cut in self._cuts.items())
        return f"power cut of {targets}" + (f" ({taken})" if taken else "")


class KernelPowerCut:
    """A power cut by the kernel. Each store is on its own file system, which is shut down."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._context = context
        self._kill = Kill(context.cluster)

    async def do(self, hit: Hit) -> None:
        disks = [LoopDisk.of_store(store_of(self._context, node)) for node in hit.nodes]
        await self._kill.do(hit)
        for disk in disks:
            await in_thread(disk.cut)

    async def undo(self, hit: Hit) -> None:
        await self._kill.undo(hit)

    def describe(self, targets: str) -> str:
        return f"power cut of {targets}, by the kernel (FS_IOC_SHUTDOWN)"


class DiskLoss:
    """SIGKILL, and the store is gone; started again with an empty disk.

    A classic master cannot fetch its lost data, so heal acts like an operator. It stops the slave
    in order, copies its store to the master's disk, and starts both.
    """

    def __init__(self, planned: Planned, context: Context) -> None:
        self._context = context
        self._kill = Kill(context.cluster)

    async def do(self, hit: Hit) -> None:
        await self._kill.do(hit)
        for node in hit.nodes:
            await in_thread(lose_disk, self._context, node)

    async def undo(self, hit: Hit) -> None:
        cluster = self._context.cluster
        for name in list(self._kill.taken):
            node = cluster.state().node(name)
            if not alive(node) and needs_restoring(cluster.state(), node):
                await self._restore(node)
        await self._kill.undo(hit)

    async def _restore(self, master: Node) -> None:
        cluster = self._context.cluster
        slaves = [n for n in cluster.state().members(master.group) if n.name != master.name]
        slave = next((n for n in slaves if store_of(self._context, n).exists()), None)
        if slave is None:
            raise ClusterError(f"{master.name} has no slave to be restored from")
        if alive(slave):
            process = cluster.signal(slave.name, signal.SIGTERM)
            await cluster.wait_dead(process, END_S)
        source, target = store_of(self._context, slave), store_of(self._context, master)
        await in_thread(copy_files, source, target)
        cluster.start(slave.name)

    def describe(self, targets: str) -> str:
        return f"disk of {targets} lost, started again with an empty or restored one"


class OldDisk:
    """An image of the store is taken in order; healing restores it, so that the node loses
    everything since, without a trace on its disk."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._context = context
        self._name = f"image-{planned.number}"  # beside the store
        self._taken: list[str] = []  # with complete images that were not restored yet
        self._stop = Kill(context.cluster, signal.SIGTERM)
        self._kill = Kill(context.cluster)

    async def do(self, hit: Hit) -> None:
        await self._stop.do(hit)
        for node in hit.nodes:
            store = store_of(self._context, node)
            await in_thread(copy_files, store, self._image(node))
            self._taken.append(node.name)
        await self._stop.undo(hit)

    async def undo(self, hit: Hit) -> None:
        for node in hit.nodes:
            if node.name in self._taken:
                if self._context.cluster.is_alive(node.name):
                    await self._kill.do(Hit((node,)))
                await in_thread(self._put_back, node)
                self._taken.remove(node.name)
            shutil.rmtree(self._image(node), ignore_errors=True)
        await self._kill.undo(hit)
        await self._stop.undo(hit)

    def _put_back(self, node: Node) -> None:
        lose_disk(self._context, node)
        copy_files(self._image(node), store_of(self._context, node))

    def _image(self, node: Node) -> Path:
        return store_of(self._context, node).with_name(self._name)

    def describe(self, targets: str) -> str:
        return f"disk of {targets} set back to an image taken when it began"


def needs_restoring(state: ClusterState, node: Node) -> bool:
    """Return whether it is a classic master with slaves, to which no node sends its lost data."""
    classic = MODES[state.mode].engine == CLASSIC
    return classic and node.broker_id == 0 and len(state.members(node.group)) > 1


def copy_files(source: Path, target: Path) -> None:
    """Copy a store. Blocking. Raises ClusterError, OSError.

    The index is skipped, because its files are sparse and large, a copy would fill them, and the
    broker rebuilds them from the log.
    """
    with owned(source), owned(target):
        for entry in source.iterdir():
            if entry.name in ("index", LOCK_FILE):  # a lock is its directory's own
                continue
            target_path = target / entry.name
            if entry.is_dir():
                shutil.copytree(entry, target_path, dirs_exist_ok=True)
            else:
                shutil.copy2(entry, target_path)


def lose_disk(context: Context, node: Node) -> None:
    """Remove everything in a dead node's store. Blocking. Raises ClusterError, OSError."""
    store = store_of(context, node)
    if not store.exists():
        raise ClusterError(f"{node.name} has no store yet")
    empty(store)
    power.forget(faults_of(context, node))


def empty(store: Path) -> None:
    """Remove everything in a store. Blocking. Raises ClusterError, OSError."""
    with owned(store):
        for entry in list(store.iterdir()):  # not the directory itself, which may be a mount point
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK_FILE:
                entry.unlink()


def _needs_layer(cluster: ClusterState | None) -> str | None:
    if cluster is None or cluster.faultable:
        return None
    return "its brokers run without the fault layer; make the cluster with: up --faultable"


def _needs_copies(cluster: ClusterState | None) -> str | None:
    if cluster is None or all(len(cluster.members(group)) > 1 for group in cluster.groups):
        return None
    return "its groups have one broker each: nothing would come back"


def _needs_loop(cluster: ClusterState | None) -> str | None:
    return power.unavailable()


_ONE = ("leader", "follower", "most-behind", "minority", "majority", "all")
_SOME = ("follower", "leader", "minority", "majority", "all")
_LAYER = frozenset({"faultable"})


def _of_layer(
    name: str,
    description: str,
    rules: RulesOf,
    text: str,
    whom: tuple[str, ...] = _ONE,
    *,
    may_end: bool = True,
    lasts_s: tuple[float, float] = (1.0, 4.0),
    params: dict[str, tuple[float, float]] | None = None,
) -> tuple[Kind, Factory]:
    kind = Kind(name, "disk", description, whom, _LAYER, lasts_s=lasts_s, params=params or {})
    return kind, injected(
        lambda planned, context: DiskRules(planned, context, rules, text, may_end=may_end)
    )


def _slow(call: str) -> RulesOf:
    return lambda planned: [Rule(SLOW, (call,), delay_ms=planned.figure("delay_ms", 100))]


_LOG = ("commitlog/*", "raft/*")  # the files that Raft's promises depend on
_READ = ("commitlog/*", "consumequeue/*")

_ENTRIES = (
    _of_layer("disk-full", "no free block is left: what needs one fails (ENOSPC)",
        lambda _: [Rule(FULL, (WRITE, ALLOCATE))], "the disk is full"),
    _of_layer("eio-write", "every write to the log and the vote fails (EIO)",
        lambda _: [Rule(ERROR, (WRITE,), p) for p in _LOG], "writes fail (EIO)"),
    _of_layer("eio-sync", "the next fdatasync of the log fails (EIO); its pages are never written",
        lambda _: [Rule(ERROR, (SYNC,), "commitlog/*", times=1)], "an fdatasync fails (EIO)"),
    _of_layer("eio-sync-vote", "making the vote durable fails (EIO)",
        lambda _: [Rule(ERROR, (SYNC,), "raft/*")], "fdatasync of the vote fails (EIO)", _SOME),
    _of_layer("eio-read", "every read of the log and the queues fails (EIO)",
        lambda _: [Rule(ERROR, (READ,), p) for p in _READ], "reads fail (EIO)"),
    _of_layer("short-write", "one write to the log does its first half only, then fails (EIO)",
        lambda _: [Rule(SHORT, (WRITE,), "commitlog/*", times=1)], "half a write, then EIO"),
    _of_layer("slow-fsync", "every fdatasync takes delay_ms longer",
        _slow(SYNC), "fdatasync is slow", may_end=False, params={"delay_ms": (20, 400)}),
    _of_layer("slow-write", "every write takes delay_ms longer",
        _slow(WRITE), "writes are slow", may_end=False, params={"delay_ms": (1, 20)}),
    _of_layer("stalled-fsync", "no fdatasync returns before it is healed",
        lambda _: [Rule(STALL, (SYNC,))], "fdatasync does not return", lasts_s=(2.0, 8.0)),
    _of_layer("lying-fsync", "fdatasync says it has and has not: Raft with fsync left out",
        lambda _: [Rule(LIE, (SYNC,))], "fdatasync lies", ("all",), may_end=False),
    (Kind("power-cut", "disk",
        "killed, and what was not synced is lost, kept or torn page by page (lose_all=1: lost)",
        _ONE, _LAYER, params={"lose_all": (0.0, 0.0)}), injected(PowerCut)),
    (Kind("kernel-power-cut", "disk",
        "killed, and the store's own file system is shut down without flushing its log", _ONE,
        frozenset({"loop-device"})), injected(KernelPowerCut)),
    (Kind("disk-loss", "disk",
        "killed, its whole store removed; started again with an empty disk (a classic master: "
        "restored from its slave)", ("follower", "leader", "most-behind", "minority"),
        frozenset({"copies"})), injected(DiskLoss)),
    (Kind("old-disk", "disk",
        "stopped in order, an image of its store taken, started again; in the end killed and "
        "started with the image", ("follower", "leader"), frozenset({"raft", "copies"}),
        lasts_s=(8.0, 12.0)), injected(OldDisk)),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
NEEDS: dict[str, Need] = {
    "copies": _needs_copies,
    "faultable": _needs_layer,
    "loop-device": _needs_loop,
}
