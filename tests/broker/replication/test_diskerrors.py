"""A disk that cannot be read: who leads is still seen, and somebody who can read comes to lead."""

import asyncio
import errno

import pytest

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from raftmq.store.record import decode_record
from tests.broker.cluster import Group
from tests.steadydisk import SteadyDisk, SteadyFile
from tests.waiting import until

OK = ResponseCode.SUCCESS


class UnreadFile(SteadyFile):
    """Reads as long as its disk does."""

    disk: "UnreadDisk"

    def pread(self, offset, size):
        if self.disk.fails:
            raise OSError(errno.EIO, "cannot read, says the test")
        return super().pread(offset, size)


class UnreadDisk(SteadyDisk):
    """A real disk, of which nothing can be read any more when `fails` is set."""

    fails = False
    usage_fails = False

    def open(self, path, *, allocate_bytes=None):
        file = super().open(path, allocate_bytes=allocate_bytes)
        file.__class__ = UnreadFile
        assert isinstance(file, UnreadFile)
        file.disk = self
        return file

    def usage(self):
        if self.usage_fails:
            raise OSError(errno.EIO, "no statvfs, says the test")
        return super().usage()


class UnreadGroup(Group):
    disk = UnreadDisk


async def info(group, broker):
    answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert answer.code == OK
    return loads_object(answer.body)["table"]


async def test_runtime_info_is_answered_despite_read_errors(tmp_path):
    async with UnreadGroup(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        await group.send(broker, "T")
        table = await info(group, broker)
        assert table["diskState"] == "ok"
        assert int(table["earliestMessageTimeStamp"]) > 0
        assert float(table["commitLogDiskRatio"]) >= 0
        broker.disk.fails = broker.disk.usage_fails = True
        table = await info(group, broker)
        assert (table["raftRole"], table["raftLeader"]) == ("leader", "n0")
        for key in ("earliestMessageTimeStamp", "commitLogDiskRatio", "consumeQueueDiskRatio"):
            assert table[key] == "-1"
        assert table["diskState"] == (
            "usage: [Errno 5] no statvfs, says the test; "
            "earliestMessageTimeStamp: [Errno 5] cannot read, says the test"
        )
        broker.disk.fails = broker.disk.usage_fails = False
        assert (await info(group, broker))["diskState"] == "ok"


async def test_runtime_info_uses_the_brokers_wall_clock(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        broker.life.boot_ms = broker.context.wall_ms() - ((2 * 24 + 3) * 60 + 4) * 60_000
        assert (await info(group, broker))["runtime"] == "[ 2 days, 3 hours, 4 minutes, 0 seconds ]"
        assert (await info(group, broker))["clockAheadOfLogMs"] == "0"


@pytest.mark.parametrize("held", [False, True])
async def test_pull_with_a_read_error_moves_leadership(tmp_path, held):
    async with UnreadGroup(tmp_path, 3) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        if held:
            pull = asyncio.create_task(group.pull(broker, "T", 0, flags=0x6))
            await until(lambda: broker.pulls.holds.count == 1)
            broker.disk.fails = True
            assert (await group.send(broker, "T", b"body")).code == OK  # writing works
            refused = await pull
        else:
            assert (await group.send(broker, "T", b"body")).code == OK
            broker.disk.fails = True
            refused = await group.pull(broker, "T", 0)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark.startswith("[DISK_ERROR] ")
        await until(lambda: not broker.roles.leading)
        leader = await group.leading()
        assert leader is not broker
        table = await info(group, broker)
        assert table["raftDiskState"] == "unreadable"
        assert "cannot read, says the test" in table["raftDiskReason"]
        pulled = await group.pull(leader, "T", 0)
        assert (pulled.code, decode_record(pulled.body, 0).body) == (OK, b"body")
        assert (await group.send(leader, "T", b"next")).code == OK
        broker.disk.fails = False
        await until(lambda: broker.engine.status()["disk_state"] == "ok")
        assert broker.failed is not None
        assert not broker.failed.done()
