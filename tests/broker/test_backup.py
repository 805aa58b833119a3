"""A group is backed up while messages are sent, destroyed, and restored as another group: other
ports, other ids."""

import asyncio

import orjson

from broker.backup.directory import BackupDirectory
from broker.backup.restore import point_of, restore
from broker.backup.source import RemoteSource, choose
from broker.backup.take import take
from broker.backup.verify import complaints
from remoting.codes import ResponseCode
from store.record import decode_record
from tests.broker.cluster import Group, until

SEGMENT = 1 << 20
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT,
    "maxMessageSize": 256 << 10,
    "fileReservedTime": 1,
    "snapshotIntervalMs": 50,
}


async def fill(group, count, size=40_000, topic="T"):
    """What was acknowledged: (queue, offset) → body."""
    acknowledged = {}
    leader = await group.leading()
    for number in range(count):
        body = f"{topic} {number} ".encode().ljust(size, b".")
        answer = await group.send(leader, topic, body, queue=number % 4)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        acknowledged[number % 4, int(answer.ext["queueOffset"])] = body
    return acknowledged


async def stored(group, topic="T", queues=4):
    """Every message that a consumer gets: (queue, offset) → body."""
    found = {}
    leader = await group.leading()
    for queue in range(queues):
        offset = 0
        while True:
            answer = await group.pull(leader, topic, offset, queue)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            if answer.code == ResponseCode.SUCCESS:
                at = 0
                while at < len(answer.body):
                    record = decode_record(answer.body, at)
                    found[queue, record.queue_offset] = record.body
                    at += int.from_bytes(answer.body[at : at + 4], "big")
            offset = int(answer.ext["nextBeginOffset"])
    return found


async def taken(group, path, name=None, **options):
    names = [name] if name else list(group.brokers)
    address = await choose(group.client, [group.brokers[name].address for name in names])
    source = RemoteSource(group.client, address, **options)
    return await take(source, BackupDirectory(str(path)), pause_s=0.01)


def restored(group, path, names=None, **point):
    """Make the stores of a group that is not started yet."""
    directory = BackupDirectory(str(path))
    manifest = directory.required()
    peers = [(name, f"127.0.0.1:{group.ports[name]}") for name in group.names]
    stores = [str(group.root / name) for name in names or group.names]
    return restore(directory, manifest, point_of(directory, manifest, **point), stores, peers)


async def tables(group):
    state = (await group.leading()).state
    value = [table.to_json() for table in (state.topics, state.groups, state.offsets)]
    return orjson.loads(orjson.dumps(value))


class Renamed(Group):
    """Another group: other ids, other ports, of its own name."""

    def __init__(self, root, count=3, **settings):
        super().__init__(root, count, **settings)
        for name in list(self.names):
            other = f"r{name}"
            self.sockets[other], self.ports[other] = self.sockets.pop(name), self.ports.pop(name)
        self.names = list(self.ports)


async def test_a_group_comes_back_as_another_group(tmp_path):
    async with Group(tmp_path / "old", 3, **SMALL) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        before = await fill(group, 60)
        assert await stored(group) == before  # and now there is a consumer group
        await group.commit(leader, "T", 1, 7)
        answer = await group.commit(leader, "T", 2, 9)
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: leader.state.offsets.get("T", "cg", 2) == 9)
        backup = asyncio.create_task(taken(group, tmp_path / "backup"))
        during = await fill(group, 40, topic="T")
        manifest = (await backup).manifest
        assert manifest.role == "follower" and manifest.confirmed
        assert len(manifest.segments) >= 3
        wanted = await tables(group)
        everything = await stored(group)
    directory = BackupDirectory(str(tmp_path / "backup"))
    assert list(complaints(directory, manifest)) == []

    other = Renamed(tmp_path / "new", 3, **SMALL)
    made = restored(other, tmp_path / "backup")
    async with other as group:
        leader = await group.leading()
        assert leader.roles.term > manifest.current_term
        found = await stored(group)
        assert before.items() <= found.items()
        assert found.items() <= everything.items()
        assert len(found) == manifest.messages
        assert await tables(group) == wanted
        after = await fill(group, 4)
        assert not set(after) & set(found)
        assert len(await stored(group)) == len(found) + 4
        members = [m["node_id"] for m in leader.engine.members]
        assert members == ["rn0", "rn1", "rn2"]
        assert leader.engine.core.configurations.index == made.configuration_index
    assert len(during) == 40
