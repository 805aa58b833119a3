"""Three real processes: one loses its store while the group takes load and lets old segments go;
it comes back by itself, votes, leads, and serves the same messages at the same queue offsets."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from typing import ClassVar

import orjson

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.record import decode_record, walk_records

KIB = 1 << 10
SEGMENT = 256 * KIB
PATIENCE_S = 120.0  # only a hang takes so long
NAMES = ("n0", "n1", "n2")
BODY = bytes(range(256)) * 32
LANES = 4
PAUSE_S = 0.005  # between a lane's sends: the machine's other half is for who catches up


class Processes:
    """A group of three. Whoever leads stays, however slow the machine and its disk are, until it is
    killed: that is seen by the end of its connections."""

    durations: ClassVar = {"snapshot": 100, "retention": 100}

    def __init__(self, root, names=NAMES):
        self.root = root
        self.names = names
        self.client = RemotingClient()
        self.running = {}
        self.held = HeldPorts("127.0.0.1")
        ports = self.held.choose(2 * len(names), random.Random())
        self.ports = dict(zip(names, ports, strict=False))
        raft_ports = zip(names, ports[len(names) :], strict=True)
        raft = ";".join(f"{name}-127.0.0.1:{port}" for name, port in raft_ports)
        hours = ";".join(map(str, range(24)))
        for name in names:
            (root / f"{name}.conf").write_text(
                f"enableDLegerCommitLog=true\ndLegerPeers={raft}\ndLegerSelfId={name}\n"
                f"listenPort={self.ports[name]}\nstorePathRootDir={root / name}\n"
                f"flushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog={SEGMENT}\n"
                f"mappedFileSizeConsumeQueue=20000\nmaxMessageSize={64 * KIB}\n"
                f"fileReservedTime=0\ndeleteWhen={hours}\n\n"
                "diskSpaceWarningLevelRatio=100\nhttpEnable=false\n"
                "electionTimeoutMinMs=4000\nelectionTimeoutMaxMs=8000\n"
            )

    async def __aenter__(self):
        for name in self.names:
            self.start(name)
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        for name in list(self.running):
            self.end(name, signal.SIGKILL)
        self.held.close()

    def start(self, name):
        conf, log = self.root / f"{name}.conf", self.root / f"{name}.log"
        with log.open("ab") as err:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.broker.node", "-c", str(conf), "--log-level", "INFO"],
                stdout=subprocess.DEVNULL,
                stderr=err,
                env=os.environ | {"NODE_DURATIONS": json.dumps(self.durations)},
            )

    def end(self, name, number):
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(timeout=PATIENCE_S)

    async def ask(self, name, code, ext=None, body=b""):
        request = RemotingCommand.request(code, ext, body)
        return await self.client.invoke(f"127.0.0.1:{self.ports[name]}", request, 60_000)

    async def info(self, name):
        """Return what the broker tells about itself; nothing while it cannot be asked."""
        with contextlib.suppress(RemotingError):
            answer = await self.ask(name, RequestCode.GET_BROKER_RUNTIME_INFO)
            return orjson.loads(answer.body)["table"]
        return {}

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                infos = {name: await self.info(name) for name in self.running}
                for name, process in self.running.items():
                    assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
                if condition(infos):
                    return infos
                await asyncio.sleep(0.05)

    async def leader(self):
        infos = await self.until(lambda infos: any(map(leads, infos.values())))
        return next(name for name, info in infos.items() if leads(info))

    async def hand_over(self, leader, target):
        """Ask for it until it is done: what was begun may have been given up."""
        async with asyncio.timeout(PATIENCE_S):
            while not leads(await self.info(target)):
                await self.ask(leader, RequestCode.TRANSFER_LEADERSHIP, {"target": target})
                await asyncio.sleep(0.2)

    def log(self, name):
        return (self.root / f"{name}.log").read_text()

    async def send(self, name, topic, body, queue=0):
        header = SendHeader("pg", topic, "TBW102", 4, queue, 0, 1_700_000_000_000, 0, "")
        answer = await self.ask(name, RequestCode.SEND_MESSAGE_V2, header.to_ext(310), body)
        assert answer.code == 0, answer
        return int(answer.ext["queueOffset"])

    async def ends(self, name, topic, queue):
        header = {"topic": topic, "queueId": str(queue)}
        low = await self.ask(name, RequestCode.GET_MIN_OFFSET, header)
        high = await self.ask(name, RequestCode.GET_MAX_OFFSET, header)
        return int(low.ext["offset"]), int(high.ext["offset"])

    async def messages(self, name, topic, queue, offset, end):
        """Record by queue offset, of what is there: retention goes on, and a follower may not have
        the last of it yet."""
        result = {}
        while offset < end:
            header = PullHeader("cg", topic, queue, offset, 32, 0x4, 0, 0, "*", 0)
            answer = await self.ask(name, RequestCode.PULL_MESSAGE, header.to_ext())
            assert answer.code in (0, 19, 21), answer
            if answer.code == 19:
                break
            offset = int(answer.ext["nextBeginOffset"])
            body = answer.body or b""
            for at, size in walk_records(body):
                result[decode_record(body, at).queue_offset] = body[at : at + size]
        return result

    def commitlog(self, name):
        """Segments' bytes by name."""
        files = sorted((self.root / name / "commitlog").iterdir())
        return {file.name: file.read_bytes() for file in files}


def leads(info):
    return info.get("raftLeaderReady") == "true"


class Load:
    """Some lanes of sends to one leader, none of which may fail."""

    def __init__(self, group, leader):
        self.group, self.leader = group, leader
        self.sent = 0
        self.wanted = True

    async def __aenter__(self):
        self.lanes = [asyncio.ensure_future(self._lane(lane)) for lane in range(LANES)]
        return self

    async def __aexit__(self, *_):
        self.wanted = False
        await asyncio.gather(*self.lanes)

    async def _lane(self, lane):
        while self.wanted:
            await self.group.send(self.leader, "T", BODY, queue=lane)
            self.sent += 1
            await asyncio.sleep(PAUSE_S)

    async def more(self, count):
        goal = self.sent + count
        async with asyncio.timeout(PATIENCE_S):
            while self.sent < goal:
                for lane in self.lanes:
                    assert not lane.done(), lane
                await asyncio.sleep(0.01)


async def test_replica_with_a_lost_store_catches_up_under_load(tmp_path):
    async with Processes(tmp_path) as group:
        leader = await group.leader()
        for topic in ("T", "Gone"):
            header = TopicHeader(topic, LANES, LANES, 6)
            await group.ask(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        for number in range(5):
            assert await group.send(leader, "Gone", b"%d" % number, queue=2) == number
        await group.until(lambda all_: all(i.get("raftRecovered") == "true" for i in all_.values()))
        name = next(n for n in NAMES if n != leader)
        before = int((await group.info(leader))["commitLogMaxOffset"])
        group.end(name, signal.SIGKILL)
        shutil.rmtree(tmp_path / name)
        async with Load(group, leader) as load:
            await group.until(
                lambda all_: all(int(i["commitLogMinOffset"]) > before for i in all_.values() if i)
            )
            group.start(name)
            await group.until(lambda all_: all_[name].get("raftRecovered") == "true")
            await load.more(50)
        infos = await group.until(same_ends)
        assert leads(infos[leader])  # nobody had to take over meanwhile
        assert "installed first=" in group.log(name)
        assert group.commitlog(name)
        ends = [(await group.ends(leader, "T", lane))[1] for lane in range(LANES)]
        await group.hand_over(leader, name)
        for lane in range(LANES):
            assert (await group.ends(name, "T", lane))[1] == ends[lane]
            await same_messages(group, "T", lane, name, leader)
        assert await group.ends(name, "Gone", 2) == (5, 5)
        assert await group.send(name, "Gone", b"next", queue=2) == 5
        await group.until(same_ends)
        logs = [group.commitlog(n) for n in NAMES]
        common = set.intersection(*map(set, logs))
        assert common
        for segment in common:
            assert logs[0][segment] == logs[1][segment] == logs[2][segment], segment


async def same_messages(group, topic, queue, leader, follower):
    """Return what both have of a queue; sends to it until they have something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await group.send(leader, topic, BODY, queue=queue)
            ends = await group.ends(leader, topic, queue)
            messages = await group.messages(leader, topic, queue, *ends)
            want = await group.messages(follower, topic, queue, *ends)
            both = messages.keys() & want.keys()
            assert [messages[offset] for offset in both] == [want[offset] for offset in both]
            if both:
                return
            await asyncio.sleep(0.05)


def same_ends(infos):
    keys = ("commitLogMaxOffset", "raftAppliedIndex")
    return len({tuple(info.get(key) for key in keys) for info in infos.values()}) == 1
