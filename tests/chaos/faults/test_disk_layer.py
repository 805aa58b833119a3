"""The fault layer over real files, its rules, and power cuts compared with a model."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.clusterfile import Node as ClusterNode
from raftmq.chaos.faults import fault_disk as faultdisk
from raftmq.chaos.faults.base import Context, Hit, Planned
from raftmq.chaos.faults.disk import DiskRules, copy_files, empty
from raftmq.chaos.faults.fault_control import (
    ALLOCATE,
    ERROR,
    FULL,
    LIE,
    READ,
    SHORT,
    SLOTS_MAX,
    SLOW,
    STALL,
    SYNC,
    WRITE,
    Control,
    Rule,
    Steering,
    TooManyRules,
)
from raftmq.chaos.faults.fault_disk import FaultDisk, FaultFile, Journal
from raftmq.chaos.faults.power import FAULTS, cut, forget
from raftmq.chaos.faults.power_loss_journal import (
    LOSE_ALL,
    SECTOR_BYTES,
    Record,
    RecordKind,
    Temper,
)
from raftmq.store.disk import DiskUsage, OsDisk
from raftmq.store.store_lock import lock_store

MIXED = Temper(0.3, 0.3)
KEEP_ALL = Temper(0.0, 1.0, 1.0)


class Node:
    """A directory with a store and faults, and the disk of the process that runs now."""

    def __init__(self, directory: Path) -> None:
        self.store, self.home = directory / "store", directory / "faults"
        self.steering = Steering(self.home)
        self.boot()

    def boot(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """A process starts; its predecessor is gone with its open files."""
        self.control = Control(self.home, sleep=sleep)
        self.disk = FaultDisk(str(self.store), self.home, self.control)

    def kill(self) -> None:
        self.disk.close()
        self.control.close()

    def cut(self, temper: Temper, seed: int = 1) -> str:
        self.kill()
        said = cut(self.home, self.store, random.Random(seed), temper)
        self.boot()
        return str(said)

    def read(self, path: str) -> bytes:
        return (self.store / path).read_bytes()

    def names(self) -> list[str]:
        """Of all files but the lock, which no disk layer is asked for."""
        result = [p.relative_to(self.store) for p in self.store.rglob("*") if p.is_file()]
        return sorted(str(path) for path in result if path.name != "lock")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kill()


def test_fault_layer_keeps_only_synced_bytes_over_a_power_cut(node: Node) -> None:
    disk = node.disk
    first = disk.boot_id()
    disk.makedirs("commitlog")
    file = disk.open("commitlog/0", allocate_bytes=3 * 4096)
    file.pwrite(0, b"a" * 5000)
    file.sync()
    disk.sync_directory("commitlog")
    file.pwrite(4990, b"b" * 20)
    file.pwritev(5010, [b"c" * 10, b"d" * 10])
    disk.open("commitlog/1").pwrite(0, b"never named durably")
    file.close()
    assert "1 of 1 unsynced names lost" in node.cut(LOSE_ALL)
    assert node.read("commitlog/0") == b"a" * 5000 + bytes(3 * 4096 - 5000)
    assert node.names() == ["commitlog/0"]
    boots = [first, node.disk.boot_id()]
    node.kill()
    node.boot()
    assert node.disk.boot_id() == boots[-1]
    node.cut(LOSE_ALL)
    assert node.disk.boot_id() not in boots
    assert node.read("commitlog/0").startswith(b"a" * 5000)


def test_kill_loses_nothing_and_keeps_bytes_unsynced(node: Node) -> None:
    file = node.disk.open("f")
    file.pwrite(0, b"old")
    file.sync()
    node.disk.sync_directory("")
    file.pwrite(0, b"new")
    for _ in range(3):
        node.kill()
        node.boot()
        assert node.read("f") == b"new"
    node.disk.open("f").pwrite(0, b"NEW")
    node.cut(LOSE_ALL)
    assert node.read("f") == b"old"


def test_replaced_name_survives_until_the_directory_is_synced(node: Node) -> None:
    disk = node.disk
    for name in ("table.json", "table.json.tmp"):
        file = disk.open(name)
        file.pwrite(0, name.encode())
        file.sync()
    disk.sync_directory("")
    disk.rename("table.json.tmp", "table.json")
    assert node.read("table.json") == b"table.json.tmp"
    node.cut(LOSE_ALL)
    assert node.read("table.json") == b"table.json"
    assert node.read("table.json.tmp") == b"table.json.tmp"
    node.disk.rename("table.json.tmp", "table.json")
    node.disk.sync_directory("")
    assert not list((node.home / "grave").iterdir())
    node.cut(LOSE_ALL)
    assert node.names() == ["table.json"]
    node.disk.remove("table.json")
    node.cut(LOSE_ALL)
    assert node.read("table.json") == b"table.json.tmp"
    with pytest.raises(OSError) as refused:
        node.disk.rename("table.json", "elsewhere/table.json")
    assert refused.value.errno == errno.EXDEV


def test_lying_sync_makes_nothing_durable(node: Node) -> None:
    node.steering.put("1", [Rule(LIE, (SYNC,))])
    file = node.disk.open("f")
    file.pwrite(0, b"acknowledged")
    file.sync()
    node.disk.sync_directory("")
    node.cut(LOSE_ALL)
    assert node.names() == []
    node.steering.drop("1")
    file = node.disk.open("f")
    file.pwrite(0, b"honest")
    file.sync()
    node.disk.sync_directory("")
    node.cut(LOSE_ALL)
    assert node.read("f") == b"honest"


def test_failed_sync_is_not_compensated_by_the_next(node: Node) -> None:
    file = node.disk.open("f")
    file.pwrite(0, b"-" * 8192)
    file.sync()
    node.disk.sync_directory("")
    node.steering.put("1", [Rule(ERROR, (SYNC,), times=1)])
    file.pwrite(0, b"a" * 4096)
    with pytest.raises(OSError, match="told to fail"):
        file.sync()
    file.pwrite(4096, b"b" * 4096)
    file.sync()
    assert node.read("f") == b"a" * 4096 + b"b" * 4096
    node.cut(LOSE_ALL)
    assert node.read("f") == b"-" * 4096 + b"b" * 4096


def test_write_during_a_sync_is_not_covered_by_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = node.disk.open("f")
    node.disk.sync_directory("")
    file.pwrite(0, b"before")
    fdatasync: Callable[[int], None] = os.fdatasync

    def meanwhile(descriptor: int) -> None:
        fdatasync(descriptor)
        file.pwrite(0, b"during")

    monkeypatch.setattr(os, "fdatasync", meanwhile)
    file.sync()
    monkeypatch.undo()
    assert node.read("f") == b"during"
    node.cut(LOSE_ALL)
    assert node.read("f") == b"before"


def test_unsynced_truncations_are_undone_with_their_bytes(node: Node) -> None:
    size = 5 << 20
    file = node.disk.open("big", allocate_bytes=size)
    file.pwrite(100, b"x" * 5000)
    file.pwrite(3 << 20, b"y" * 3000)
    file.sync()
    node.disk.sync_directory("")
    before = node.read("big")
    file.truncate(50)
    file.close()
    node.disk.open("big", allocate_bytes=size).close()
    assert node.read("big") == bytes(size)
    node.cut(LOSE_ALL)
    assert node.read("big") == before


class Model:
    """A model of the disk after a cut. An inode is the list of its contents since its last sync;
    names are the durable names and the changes since."""

    def __init__(self) -> None:
        self.inodes: list[list[bytes]] = []
        self.names: dict[str, int] = {}
        self.durable: dict[str, int] = {}
        self.changes: list[tuple[str, dict[str, int | None]]] = []  # directory and change

    def change(self, directory: str, changed: dict[str, int | None]) -> None:
        self.changes.append((directory, changed))
        _apply(self.names, changed)

    def sync_directory(self, directory: str) -> None:
        for _, changed in [c for c in self.changes if c[0] == directory]:
            _apply(self.durable, changed)
        self.changes = [c for c in self.changes if c[0] != directory]

    def survivors(self, count: int) -> dict[str, int]:
        names = dict(self.durable)
        for _, changed in self.changes[:count]:
            _apply(names, changed)
        return names

    def cut(self, found: dict[str, bytes]) -> None:
        """The remaining files are durable now."""
        self.inodes = [[content] for content in found.values()]
        self.names = {name: number for number, name in enumerate(found)}
        self.durable, self.changes = dict(self.names), []


def _apply(names: dict[str, int], changed: dict[str, int | None]) -> None:
    for name, inode in changed.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def one_step(node: Node, model: Model, rng: random.Random) -> None:
    """Do something to disk and model alike."""
    disk = node.disk
    directory = rng.choice(("d", "e"))
    there = sorted(name for name in model.names if name.startswith(directory))
    what = rng.choices(
        ("write", "truncate", "sync", "names", "sync names", "kill"), (8, 2, 3, 3, 2, 1)
    )
    match what[0]:
        case "kill":
            node.kill()
            node.boot()
        case "sync names":
            disk.sync_directory(directory)
            model.sync_directory(directory)
        case "names" if there and rng.random() < 0.4:
            name = rng.choice(there)
            disk.remove(name)
            model.change(directory, {name: None})
        case "names" if there and rng.random() < 0.6:
            source, target = rng.choice(there), f"{directory}/{rng.randrange(4)}"
            if source != target:
                disk.rename(source, target)
                model.change(directory, {source: None, target: model.names[source]})
        case _:
            name = (
                rng.choice(there)
                if there and what[0] != "names"
                else f"{directory}/{rng.randrange(4)}"
            )
            if name not in model.names:
                model.inodes.append([b""])
                model.change(directory, {name: len(model.inodes) - 1})
            change_contents(disk.open(name), model.inodes[model.names[name]], what[0], rng)


def change_contents(file: FaultFile, versions: list[bytes], what: str, rng: random.Random) -> None:
    now = versions[-1]
    if what == "sync":
        file.sync()
        del versions[:-1]
    elif what == "truncate":
        size = rng.randrange(20_000)
        file.truncate(size)
        versions.append(now[:size].ljust(size, b"\0"))
    else:
        offset, length = rng.randrange(15_000), rng.choice((8, 700, 9000))
        data = bytes([rng.randrange(256)]) * length
        file.pwrite(offset, data)
        versions.append(now[:offset].ljust(offset, b"\0") + data + now[offset + length :])
    file.close()


def check_contents(found: bytes, versions: list[bytes], seed: int) -> None:
    assert len(found) in {len(version) for version in versions}, f"seed {seed}"
    for at in range(0, len(found), SECTOR_BYTES):
        sector = found[at : at + SECTOR_BYTES]
        possible = {v[at : at + len(sector)].ljust(len(sector), b"\0") for v in versions}
        assert sector in possible, f"seed {seed}: byte {at}"


@pytest.mark.parametrize("seed", range(60))
def test_power_cut_leaves_a_state_that_the_model_permits(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several lives of a disk."""
    monkeypatch.setattr(faultdisk, "REWRITE_BYTES", 2000)
    rng = random.Random(seed)
    node, model = Node(tmp_path), Model()
    for directory in ("d", "e"):
        node.disk.makedirs(directory)
    for temper in (MIXED, LOSE_ALL, KEEP_ALL, MIXED, LOSE_ALL, MIXED):
        for _ in range(rng.randrange(5, 40)):
            one_step(node, model, rng)
        assert {n: node.read(n) for n in model.names} == {
            n: model.inodes[i][-1] for n, i in model.names.items()
        }, f"seed {seed}: before the cut"
        node.cut(temper, seed=rng.randrange(1000))
        result = {name: node.read(name) for name in node.names()}
        if temper is LOSE_ALL:
            expected = {n: model.inodes[i][0] for n, i in model.survivors(0).items()}
            assert result == expected, f"seed {seed}"
        elif temper is KEEP_ALL:
            assert result == {n: model.inodes[i][-1] for n, i in model.names.items()}, (
                f"seed {seed}"
            )
        else:
            allowed = [model.survivors(k) for k in range(len(model.changes) + 1)]
            fitting = [names for names in allowed if sorted(names) == sorted(result)]
            assert fitting, f"seed {seed}"
            for name, content in result.items():
                versions = [v for names in fitting for v in model.inodes[names[name]]]
                check_contents(content, versions, seed)
        model.cut(result)
    node.kill()


# ---- the journal -----------------------------------------------------------------------------


def test_full_undo_journal_fails_with_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path, pending_bytes_max=1000)
    record = Record(RecordKind.BYTES, 1, 1, 0, 500, bytes(500))
    journal.add(record)
    journal.add(record)
    with pytest.raises(OSError, match="journal is full"):
        journal.add(record)
    journal.close()


def test_undo_journal_is_rewritten_when_mostly_obsolete(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faultdisk, "REWRITE_BYTES", 10_000)
    file = node.disk.open("f", allocate_bytes=1 << 20)
    node.disk.sync_directory("")
    for turn in range(1000):
        file.pwrite(turn * 100, b"x" * 100)
        file.sync()
    assert (node.home / "undo.log").stat().st_size < 11_000
    node.cut(LOSE_ALL)
    assert node.read("f").rstrip(b"\0") == b"x" * 100_000


def test_removed_store_leaves_nothing_to_undo(node: Node) -> None:
    node.disk.open("f").pwrite(0, b"x")
    node.kill()
    (node.store / "f").unlink()
    node.boot()
    assert not node.disk.journal.pending.files
    node.kill()
    forget(node.home)
    node.boot()
    assert not node.disk.journal.pending.names


# ---- steering --------------------------------------------------------------------------------


def test_nth_call_fails_once_and_only_on_matching_files(node: Node) -> None:
    node.steering.put("7", [Rule(ERROR, (WRITE,), "raft/*", skip=2, times=1)])
    node.disk.makedirs("raft")
    vote, other = node.disk.open("raft/hardstate"), node.disk.open("checkpoint")
    vote.pwrite(0, b"1")
    other.pwrite(0, b"1")
    vote.pwrite(0, b"2")
    node.kill()
    node.boot()  # counts survive a restart
    vote = node.disk.open("raft/hardstate")
    with pytest.raises(OSError) as failed:
        vote.pwrite(0, b"3")
    assert failed.value.errno == errno.EIO
    vote.pwrite(0, b"4")
    assert node.read("raft/hardstate") == b"4"
    node.steering.drop("7")
    assert "7" not in node.steering.rules()


def test_reads_and_creations_fail_under_their_rule(node: Node) -> None:
    file = node.disk.open("f")
    file.pwrite(0, b"abc")
    node.steering.put("1", [Rule(ERROR, (READ, ALLOCATE))])
    with pytest.raises(OSError, match="told to fail"):
        file.pread(0, 3)
    with pytest.raises(OSError, match="told to fail"):
        node.disk.open("g")
    assert not node.disk.exists("g")
    node.disk.open("f").close()
    node.steering.drop("1")
    assert file.pread(0, 3) == b"abc"


def test_short_write_leaves_its_first_half(node: Node) -> None:
    file = node.disk.open("f")
    node.steering.put("1", [Rule(SHORT, (WRITE,), times=1)])
    with pytest.raises(OSError, match="half of it"):
        file.pwrite(0, b"abcdefgh")
    assert node.read("f") == b"abcd"


def test_full_disk_rejects_only_new_blocks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    half_full = DiskUsage(50, 50)  # however full the machine's is
    monkeypatch.setattr(OsDisk, "usage", lambda _: half_full)
    allocated = node.disk.open("log", allocate_bytes=1 << 16)
    sparse = node.disk.open("queue")
    sparse.truncate(1 << 20)
    sparse.pwrite(0, b"x" * 4096)
    sparse.sync()
    assert node.disk.usage() == half_full
    node.steering.put("1", [Rule(FULL, (WRITE, ALLOCATE))])
    assert node.disk.usage() == DiskUsage(50, 0)
    allocated.pwrite(5000, b"fits")
    sparse.pwrite(10, b"fits")
    for write in (
        lambda: sparse.pwrite(1 << 19, b"no"),
        lambda: allocated.pwrite((1 << 16) - 1, b"no"),
        lambda: node.disk.open("next", allocate_bytes=100),
    ):
        with pytest.raises(OSError) as refused:
            write()
        assert refused.value.errno == errno.ENOSPC
    assert allocated.pread(5000, 4) == b"fits"
    node.disk.remove("queue")
    node.steering.drop("1")
    sparse.pwrite(1 << 19, b"yes")
    assert node.disk.usage() == half_full


def test_stalled_sync_returns_when_it_is_healed(node: Node) -> None:
    file = node.disk.open("f")
    file.pwrite(0, b"x")
    node.steering.put("1", [Rule(STALL, (SYNC,))])
    syncing = threading.Thread(target=file.sync)
    syncing.start()
    syncing.join(0.05)
    assert syncing.is_alive()
    file.pwrite(0, b"y")  # writes continue
    node.steering.drop("1")
    syncing.join(20)
    assert not syncing.is_alive()


def test_slow_calls_take_longer_and_do_their_work(node: Node) -> None:
    slept: list[float] = []
    node.kill()
    node.boot(slept.append)
    node.steering.put("1", [Rule(SLOW, (SYNC,), delay_ms=80), Rule(SLOW, (SYNC,), delay_ms=20)])
    file = node.disk.open("f")
    file.pwrite(0, b"x")
    file.sync()
    node.disk.sync_directory("")
    assert slept == [0.08, 0.02, 0.08, 0.02]
    node.cut(LOSE_ALL)
    assert node.read("f") == b"x"


def test_rules_under_several_keys_are_all_in_force(node: Node) -> None:
    node.steering.put("1", [Rule(ERROR, (WRITE,), "a")])
    node.steering.put("2", [Rule(ERROR, (WRITE,), "b")])
    node.steering.put("1", [Rule(ERROR, (WRITE,), "c")])  # in place of the first
    files = {name: node.disk.open(name) for name in "abc"}

    def failing() -> set[str]:
        result = set()
        for name, file in files.items():
            try:
                file.pwrite(0, b"x")
            except OSError:
                result.add(name)
        return result

    assert failing() == {"b", "c"}
    Steering(node.home).drop("2")  # a second command of the harness
    assert failing() == {"c"}
    node.steering.drop("1")
    node.steering.drop("no such key")
    assert failing() == set()


def test_rules_are_limited_in_number(node: Node) -> None:
    rule = Rule(ERROR, (WRITE,), "nothing")
    node.steering.put("1", [rule] * (SLOTS_MAX - 1))
    node.steering.put("2", [rule])
    with pytest.raises(TooManyRules):
        node.steering.put("3", [rule])
    node.steering.put("1", [rule])
    node.steering.put("3", [rule] * (SLOTS_MAX - 2))


async def test_fault_beyond_the_rule_limit_is_rejected(tmp_path: Path) -> None:
    """It fails like every fault, and the run continues without it."""
    faults = tmp_path / "n1" / FAULTS
    faults.mkdir(parents=True)
    Steering(faults).put("1", [Rule(ERROR, (WRITE,), "nothing")] * SLOTS_MAX)
    context = cast(Context, SimpleNamespace(cluster=SimpleNamespace(directory=tmp_path)))
    planned = Planned(2, 0, 1, "disk-full", "n1", 0.0)
    fault = DiskRules(planned, context, lambda _: [Rule(FULL, (WRITE,))], "full", may_end=False)
    with pytest.raises(ClusterError, match="64 rules at most"):
        await fault.do(Hit((ClusterNode("n1", "broker", "127.0.0.1", 1, 0),)))


def test_wall_clock_is_shifted_and_strobed(tmp_path: Path) -> None:
    monotonic_ms = [0]
    control = Control(tmp_path, lambda: 5_000_000_000, lambda: monotonic_ms[0] * 1_000_000)
    steering = Steering(tmp_path)
    assert control.wall_ms() == 5_000
    steering.set_clock(-60_000)
    assert control.wall_ms() == -55_000
    steering.set_clock(1_000, 250, 40)
    seen = []
    for now_ms in (0, 39, 40, 79, 80, 120):
        monotonic_ms[0] = now_ms
        seen.append(control.wall_ms())
    assert seen == [6_000, 6_000, 6_250, 6_250, 6_000, 6_250]
    steering.set_clock(0)
    assert control.wall_ms() == 5_000
    control.close()


# ---- ownership of stores -------------------------------------------------------------------


def test_store_in_use_is_neither_cut_nor_emptied_nor_copied(node: Node, tmp_path: Path) -> None:
    """A harness that took a live node for dead would report losses that no disk caused."""
    node.disk.open("f").pwrite(0, b"not synced")
    other = tmp_path / "other"
    other.mkdir()
    lock = lock_store(str(node.store), "a broker")
    deeds: list[Callable[[], object]] = [
        lambda: cut(node.home, node.store, random.Random(1), LOSE_ALL),
        lambda: empty(node.store),
        lambda: copy_files(node.store, other),
        lambda: copy_files(other, node.store),
    ]
    for deed in deeds:
        with pytest.raises(ClusterError, match="in use by a broker"):
            deed()
        assert node.read("f") == b"not synced"
    lock.release()
    copy_files(node.store, other)
    assert (other / "f").read_bytes() == b"not synced"
    empty(node.store)
    assert node.names() == []
