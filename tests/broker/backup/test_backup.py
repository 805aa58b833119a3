"""A group is backed up while messages are sent, destroyed, and restored as another group: other
ports, other ids."""

import asyncio
import re
import shutil
import sys
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import pytest

from raftmq.audit.read.log_scanner import walk_range
from raftmq.broker.backup import service
from raftmq.broker.backup.create import take
from raftmq.broker.backup.directory import BackupDirectory
from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.offline_source import StoppedSource
from raftmq.broker.backup.online_source import RemoteSource, choose
from raftmq.broker.backup.protocol import READ_BYTES_MAX
from raftmq.broker.backup.restore import point_of, restore
from raftmq.broker.backup.verify import complaints
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.spark.layout import ItemKind
from raftmq.store.record import decode_record
from tests.broker.cluster import Group
from tests.broker.replication.test_members import Growing
from tests.waiting import until

PATIENCE_S = 120.0

SEGMENT = 1 << 20
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT,
    "maxMessageSize": 256 << 10,
    "fileReservedTime": 1,
    "durations": {"snapshot": 50},
}


async def fill(group, count, size=40_000, topic="T"):
    """Send, and return what was acknowledged: (queue, offset) → body."""
    acknowledged = {}
    for number in range(count):
        body = f"{topic} {number} {time.monotonic_ns()}".encode().ljust(size, b".")
        while True:  # a busy machine's group may elect another leader in the middle
            leader = await group.leading()
            answer = await group.send(leader, topic, body, queue=number % 4)
            if answer.code == ResponseCode.SUCCESS:
                break
            assert "[NOT_LEADER]" in answer.remark or "[OUTCOME_UNKNOWN]" in answer.remark, answer
            await asyncio.sleep(0.02)
        acknowledged[number % 4, int(answer.ext["queueOffset"])] = body
    return acknowledged


def assert_holds(found, sent):
    """Everything that was acknowledged, and nothing that was not sent."""
    assert sent.items() <= found.items()
    assert set(found.values()) == set(sent.values())


async def stored(group, topic="T", queues=4):
    """Every message that a consumer gets: (queue, offset) → body."""
    result = {}
    for queue in range(queues):
        offset = 0
        while True:
            answer = await group.pull(await group.leading(), topic, offset, queue)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            if "nextBeginOffset" not in (answer.ext or {}):
                assert "[NOT_LEADER]" in answer.remark, answer
                continue
            if answer.code == ResponseCode.SUCCESS:
                at = 0
                while at < len(answer.body):
                    record = decode_record(answer.body, at)
                    result[queue, record.queue_offset] = record.body
                    at += int.from_bytes(answer.body[at : at + 4], "big")
            offset = int(answer.ext["nextBeginOffset"])
    return result


async def create_topic(group):
    answer = await group.create_topic(await group.leading(), "T")
    while answer.code != ResponseCode.SUCCESS:
        await asyncio.sleep(0.02)
        answer = await group.create_topic(await group.leading(), "T")


async def commit(group, queue, offset):
    """Until it is applied by whoever leads."""
    leader = await group.leading()
    while leader.state.offsets.get("T", "cg", queue) != offset:
        await group.commit(leader, "T", queue, offset)
        await asyncio.sleep(0.02)
        leader = await group.leading()


async def taken(group, path, name=None, **options):
    names = [name] if name else list(group.brokers)
    address = await choose(group.client, [group.brokers[name].address for name in names])
    source = RemoteSource(group.client, address, **options)
    return await take(source, BackupDirectory(str(path)), pause_s=0.01)


def restored(group, path, names=None, incarnation=1, **point):
    """Make the stores of a group that is not started yet."""
    directory = BackupDirectory(str(path))
    manifest = directory.required()
    peers = [(name, f"127.0.0.1:{group.ports[name]}") for name in group.names]
    stores = [str(group.root / name) for name in names or group.names]
    at = point_of(directory, manifest, **point)
    return restore(directory, manifest, at, stores, peers, UUID(int=incarnation))


async def tables(group):
    state = (await group.leading()).state
    value = [table.to_json() for table in (state.topics, state.groups, state.offsets)]
    return orjson.loads(orjson.dumps(value))


def renamed(group):
    """The same group, not started yet, with other ids."""
    for name in list(group.names):
        other = f"r{name}"
        group.sockets[other], group.ports[other] = group.sockets.pop(name), group.ports.pop(name)
    group.names = list(group.ports)
    return group


def logs(group, end):
    """The CommitLogs of stopped replicas up to `end`; and nothing in them is a hole."""
    result = []
    for name in group.names:
        data = b""
        for path in sorted((group.root / name / "commitlog").iterdir()):
            segment = path.read_bytes()
            walk = walk_range(memoryview(segment), int(path.name), 0, len(segment))
            assert all(gap.kind is not ItemKind.HOLE for gap in walk.gaps), walk.gaps
            data += segment
        result.append(data[:end])
    return result


async def test_backup_is_restored_as_another_group(tmp_path):
    async with Group(tmp_path / "old", 3, **SMALL) as group:
        await create_topic(group)
        before = await fill(group, 60)
        assert_holds(await stored(group), before)  # and now there is a consumer group
        await commit(group, 1, 7)
        await commit(group, 2, 9)
        backup = asyncio.create_task(taken(group, tmp_path / "backup"))
        during = await fill(group, 40)
        manifest = (await backup).manifest
        assert manifest.role == "follower" and manifest.confirmed
        assert len(manifest.segments) >= 3
        expected = await tables(group)
        everything = before | during
        assert len(everything) == 100
    directory = BackupDirectory(str(tmp_path / "backup"))
    assert list(complaints(directory, manifest)) == []

    other = renamed(Group(tmp_path / "new", 3, **SMALL))
    made = restored(other, tmp_path / "backup")
    first, *others = logs(other, made.end)
    assert all(log == first for log in others)
    async with other as group:
        leader = await group.leading()
        assert leader.roles.term > manifest.current_term
        result = await stored(group)
        assert before.items() <= result.items()
        assert set(result.values()) <= set(everything.values())
        assert len(result) == manifest.messages - 2  # the records of who made the topic
        assert await tables(group) == expected
        after = await fill(group, 8)
        assert_holds(await stored(group), result | after)
        assert len(after) == 8 and not set(after) & set(result)
        assert [member["node_id"] for member in leader.engine.members] == group.names
        for broker in group.brokers.values():  # another group than the one that was backed up
            await until(lambda b=broker: b.state.group.value == made.group_id)
            assert broker.engine.identity.group_id == made.group_id
        assert leader.engine.core.membership.configurations.index == made.configuration_index
        last = leader.engine.log.index.last_index
        await until(lambda: all(b.state.applied_index >= last for b in group.brokers.values()))
    replicas = logs(other, leader.engine.log.index.end_of(last))
    assert replicas[0] == replicas[1] == replicas[2] and replicas[0].startswith(first)


async def test_store_of_an_earlier_restore_is_kept_out_of_the_next_one(tmp_path):
    """Both go on from one frame, in the same terms."""
    async with Group(tmp_path / "old", 1, **SMALL) as group:
        await create_topic(group)
        await fill(group, 20)
        await taken(group, tmp_path / "backup")
    other = Group(tmp_path / "new", 3, **SMALL)
    restored(other, tmp_path / "backup")
    async with other as group:
        await fill(group, 8)
        for name in group.names:
            await group.stop(name)
        left, *again = group.names
        kept = (group.root / left).rename(tmp_path / "left")
        for name in again:
            shutil.rmtree(group.root / name)
        made = restored(group, tmp_path / "backup", incarnation=2)
        for name in group.names:
            await group.start(name)
        group.let_lead(again[0])
        sent = await fill(group, 12)
        await group.stop(left)
        shutil.rmtree(group.root / left)
        kept.rename(group.root / left)
        await group.start(left)
        identity = group.brokers[left].engine.identity
        await until(lambda: len(identity.foreign(0)) >= 2)
        assert identity.group_id != made.group_id
        assert sent.items() <= (await stored(group)).items()


async def test_second_restore_of_one_incarnation_waits_for_all_stores(tmp_path):
    """Two of three stores are made again from the backup. They wait for the third, which may have
    more than the backup, and has."""
    async with Group(tmp_path / "old", 1, **SMALL) as group:
        await create_topic(group)
        await fill(group, 20)
        await taken(group, tmp_path / "backup")
    other = Group(tmp_path / "new", 3, **SMALL)
    restored(other, tmp_path / "backup")
    async with other as group:
        left, *again = group.names
        sent = await fill(group, 40)
        for name in group.names:
            await group.stop(name)
        for name in again:
            shutil.rmtree(group.root / name)
        restored(group, tmp_path / "backup", again)
        for name in again:
            await group.start(name)
        assert not any(group.brokers[name].engine.core.recovered for name in again)
        await group.start(left)
        await group.leading()
        assert sent.items() <= (await stored(group)).items()


async def test_members_of_the_backed_up_group_are_not_restored(tmp_path):
    async with Growing(tmp_path / "old", 1, **SMALL) as group:
        await create_topic(group)
        sent = await fill(group, 20)
        await group.join("n1")
        await group.change("add-learner", "n1", f"127.0.0.1:{group.ports['n1']}")
        await group.change("promote", "n1")
        sent |= await fill(group, 4)
        manifest = (await taken(group, tmp_path / "backup", "n1")).manifest
        assert manifest.members == tuple(f"n{n}-127.0.0.1:{group.ports[f'n{n}']}" for n in (0, 1))
    other = renamed(Growing(tmp_path / "new", 2, **SMALL))
    other.founders = other.peers(other.names)
    made = restored(other, tmp_path / "backup")
    async with other as group:
        leader = await group.leading()
        assert leader.engine.core.membership.configurations.settled[0] == made.configuration_index
        # A replica that is added reads the old group's configurations on its way.
        new = await group.join("rn2")
        await group.change("add-learner", "rn2", f"127.0.0.1:{group.ports['rn2']}")
        await group.change("promote", "rn2")
        last = leader.engine.log.index.last_index
        await until(lambda: new.state.applied_index >= last)
        for broker in group.brokers.values():
            assert broker.engine.identity.group_id == broker.state.group.value == made.group_id
            current = broker.engine.core.membership.configurations.current
            assert sorted(current.voters) == ["rn0", "rn1", "rn2"]
            assert [member.broker_id for member in current.members] == [1, 2, 3]
        assert_holds(await stored(group), sent)


async def run(*arguments):
    """`mqbroker` as a process of its own: (exit status, standard output, standard error)."""
    process = await start(*arguments)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


async def start(*arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "raftmq.broker.cli",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def held_from(monkeypatch, position):
    """Reads of the log from there on wait for this event: a backup stays in the middle."""
    gate = asyncio.Event()
    read = service.Backups._read

    async def held(self, request, ext):
        if int(ext["position"]) >= position:
            await gate.wait()
        return await read(self, request, ext)

    monkeypatch.setattr(service.Backups, "_read", held)
    return gate


async def test_killed_backup_continues_in_its_next_run(tmp_path, monkeypatch):
    path = tmp_path / "backup"
    names = NameServer(NameServerConfig(bind="127.0.0.1", port=0, http_enable=False))
    async with names:
        where = f"127.0.0.1:{names.port}"
        async with Group(tmp_path / "old", 1, namesrvAddr=where, **SMALL) as group:
            await create_topic(group)
            sent = await fill(group, 120)
            address = group.brokers["n0"].address
            gate = held_from(monkeypatch, SEGMENT)
            slow = await start("backup", path, "--from", address, "--bytes-per-s", "8MiB")
            await until(lambda: BackupDirectory(str(path)).progress())
            slow.kill()
            await slow.communicate()
            gate.set()
            assert not (path / "manifest.json").exists()
            status, out, err = await run("backup", path, "-n", where, "--brokerName", "group-a")
            assert status == 0, err
            (kept,) = re.findall(r"copied +\d+ bytes; (\d+) were there already", out)
            assert int(kept) >= SEGMENT
            expected = await tables(group)
    peers = "a-127.0.0.1:40911;b-127.0.0.1:40912"
    one, two = tmp_path / "one", tmp_path / "two"
    status, out, err = await run("restore", path, "--into", one, "--into", two, "--peers", peers)
    assert status == 0, err
    assert (
        f"need mappedFileSizeCommitLog={SEGMENT}" in out and "members     a-127.0.0.1:40911" in out
    )
    alone = Group(tmp_path / "alone", 1, **SMALL)
    restored(alone, path)
    async with alone as group:
        assert await tables(group) == expected
        assert_holds(await stored(group), sent)


async def test_retention_keeps_segments_during_a_backup_and_may_overtake_it(tmp_path):
    async with Group(tmp_path / "old", 1, flushDiskType="SYNC_FLUSH", **SMALL) as group:
        broker = await group.leading()
        await create_topic(group)
        sent = await fill(group, 120)
        ends = {queue: broker.store.queues.end_of("T", queue) for queue in range(4)}
        segments = broker.store.commitlog.segments()
        source = RemoteSource(group.client, broker.address)
        offer = await source.start(0)
        assert broker.backups.needed_from() == 0
        await source.read(segments[1].start, 1)
        assert broker.backups.needed_from() == segments[1].start
        said: list[Any] = []
        lost = Overtaking(broker, source, segments[2].start)
        manifest = (
            await take(lost, BackupDirectory(str(tmp_path / "b")), say=said.append, pause_s=0.0)
        ).manifest
        assert offer.end <= manifest.end and manifest.start == segments[2].start
        assert "[OVERTAKEN]" in said[0]
        assert broker.backups.needed_from() is None
    alone = Group(tmp_path / "alone", 1, **SMALL)
    restored(alone, tmp_path / "b")
    async with alone as group:
        result = await stored(group)
        assert len(result) == manifest.messages < len(sent)
        assert set(result.values()) <= set(sent.values())
        more = await fill(group, 4)
        assert {queue: offset for queue, offset in more} == ends


class Overtaking:
    """A source during whose third read retention goes up to `position`, as for a full disk."""

    def __init__(self, broker, source, position):
        self._broker = broker
        self._source = source
        self._position = position
        self._reads = 0

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def read(self, position, size):
        self._reads += 1
        if self._reads == 3:
            await self._broker.engine.delete_before(self._position)
            queues = self._broker.store.queues
            while queues.corrected_to != self._position:  # put off while they are flushed
                self._broker.store.derived.correct_min_offset()
                await asyncio.sleep(0.01)
            assert self._broker.store.commitlog.min_offset == self._position
        return await self._source.read(position, min(size, SEGMENT // 4))


async def test_damage_on_the_replica_is_repaired_before_its_backup(tmp_path):
    async with Group(tmp_path / "old", 3, flushDiskType="SYNC_FLUSH", **SMALL) as group:
        await create_topic(group)
        await fill(group, 60)
        leader = await group.leading()
        name = next(name for name in group.names if group.brokers[name] is not leader)
        follower = group.brokers[name]
        last = leader.engine.log.index.last_index
        await until(lambda: follower.state.applied_index >= last)
        path = tmp_path / "old" / name / "commitlog" / f"{0:020d}"
        index = follower.engine.log.index
        at = index.position_of(9) + 1000  # in that frame, or behind it if few sends share one
        frame = next(each for each in range(9, last) if index.position_of(each + 1) > at)
        said: list[Any] = []
        source = Damaging(RemoteSource(group.client, follower.address), path, at)
        directory = BackupDirectory(str(tmp_path / "backup"))
        manifest = (await take(source, directory, say=said.append, pause_s=0.2)).manifest
        assert f"the replica's log is damaged: frame {frame} at" in said[0]
        assert manifest.messages >= 60
        assert list(complaints(directory, manifest)) == []


def spoil(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"???")


class Damaging:
    """A source before whose first read somebody spoils the replica's file."""

    def __init__(self, source, path, at):
        self._source = source
        self._path = path
        self._at = at
        self._done = False

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def read(self, position, size):
        if not self._done:
            self._done = True
            spoil(self._path, self._at)
        return await self._source.read(position, size)


async def test_single_remaining_disk_of_three_is_backed_up_and_restored(tmp_path):
    async with Group(tmp_path / "old", 3, **SMALL) as group:
        await create_topic(group)
        sent = await fill(group, 30)
        left = await group.leader()
        for name in group.names:  # at once: nothing is flushed or handed over
            await group.kill(name)
        config = replace(group.config(left), store_path_root_dir=str(group.root / left))
    directory = BackupDirectory(str(tmp_path / "backup"))
    known = (await take(StoppedSource(config), directory)).manifest
    manifest = (await take(StoppedSource(config, full_log=True), directory)).manifest
    assert known.commit_index <= manifest.commit_index and manifest.messages >= 30
    assert list(complaints(directory, manifest)) == []
    alone = renamed(Group(tmp_path / "alone", 1, **SMALL))
    restored(alone, tmp_path / "backup")
    async with alone as group:
        assert_holds(await stored(group), sent)
        after = await fill(group, 4)
        assert_holds(await stored(group), sent | after)


async def test_backup_without_a_leader_needs_the_unconfirmed_option(tmp_path):
    async with Group(tmp_path / "old", 2, **SMALL) as group:
        await create_topic(group)
        await fill(group, 8)
        dead = await group.leader()
        await group.kill(dead)
        left = next(iter(group.brokers.values()))
        directory = BackupDirectory(str(tmp_path / "backup"))
        with pytest.raises(BackupError, match="--unconfirmed"):
            await take(RemoteSource(group.client, left.address, wait_s=0.0), directory)
        source = RemoteSource(group.client, left.address, confirm=False)
        manifest = (await take(source, directory)).manifest
        assert not manifest.confirmed
        nobody = f"127.0.0.1:{group.ports[dead]}"
        with pytest.raises(BackupError, match=nobody):
            await choose(group.client, [nobody])


async def backup(group, broker, op, **fields):
    return await group.ask(broker, RequestCode.BACKUP, {"op": op} | fields)


async def test_replica_rejects_malformed_and_outdated_backup_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "WAIT_MS", 20)
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        for fields in ({}, {"atLeast": "x"}, {"atLeast": "9" * 19}):
            answer = await backup(group, broker, "begin", **fields)
            assert (answer.code, "is no number" in answer.remark) == (29, True)
        assert (await backup(group, broker, "copy")).code == ResponseCode.INVALID_PARAMETER
        behind = await backup(group, broker, "begin", atLeast="999999")
        assert behind.code == ResponseCode.SERVICE_NOT_AVAILABLE and "[BEHIND]" in behind.remark
        started = [
            await backup(group, broker, "begin", atLeast="1") for _ in range(service.SESSIONS_MAX)
        ]
        busy = await backup(group, broker, "begin", atLeast="1")
        assert (busy.code, "[BUSY]" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)
        session = started[0].ext["session"]
        assert (await backup(group, broker, "end", session=session)).code == 0
        gone = await backup(group, broker, "end", session=session)
        assert "[GONE]" in gone.remark
        session, end = started[1].ext["session"], started[1].ext["end"]
        for position, size in ((end, "1"), ("0", "0"), ("0", str(READ_BYTES_MAX + 1))):
            wrong = await backup(
                group, broker, "read", session=session, position=position, size=size
            )
            assert wrong.code == ResponseCode.INVALID_PARAMETER, wrong
        parcel = await backup(group, broker, "state", session=session, offset="0")
        assert len(parcel.body) == int(started[1].ext["size"])
        # Whoever is silent for long is forgotten, and what it needed is not kept any more.
        assert broker.backups.needed_from() is not None
        group.clock.skip(service.SILENT_MS + 1)
        assert broker.backups.needed_from() is None
        assert "[GONE]" in (await backup(group, broker, "end", session=session)).remark


async def test_backup_of_a_classic_master_is_rejected_with_instructions(tmp_path):
    classic = {"enableDLegerCommitLog": "false", "haListenPort": "0"}
    async with Group(tmp_path, 1, **classic) as group:
        address = group.brokers["n0"].address
        with pytest.raises(BackupError, match="is no replica of a Raft group"):
            await choose(group.client, [address])
        source = RemoteSource(group.client, address)
        with pytest.raises(BackupError, match="copy its storePathRootDir"):
            await take(source, BackupDirectory(str(tmp_path / "backup")))
