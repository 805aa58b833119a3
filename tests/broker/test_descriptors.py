"""Three real processes that have few file descriptors: strangers who say nothing take none of those
that the log needs, and a log that finds none waits until there are some."""

import asyncio
import contextlib
import random
import resource
import signal
import socket
import subprocess
import sys
from typing import Any

import aiohttp
import orjson

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.record import decode_record, walk_records
from tests.ops.scrape import Scrape
from tests.waiting import until

NAMES = ("n0", "n1", "n2")
FEW = 512  # descriptors; a group's replica at rest has some 30
ENOUGH = 1024
NONE_MORE = 3  # whatever is opened gets a number above
BODY_BYTES = 48 << 10
SEGMENT_BYTES = 256 << 10  # five messages


class Processes:
    """A group of three, each with at most `descriptors`."""

    def __init__(self, root, descriptors):
        self.root = root
        self.descriptors = descriptors
        self.client = RemotingClient()
        self.running = {}
        self.held = HeldPorts("127.0.0.1")
        ports = iter(self.held.choose(3 * len(NAMES), random.Random()))
        self.ports = dict(zip(NAMES, ports, strict=False))
        self.http = dict(zip(NAMES, ports, strict=False))
        raft = ";".join(f"{name}-127.0.0.1:{next(ports)}" for name in NAMES)
        for name in NAMES:
            (root / f"{name}.conf").write_text(
                f"enableDLegerCommitLog=true\ndLegerPeers={raft}\ndLegerSelfId={name}\n"
                f"listenPort={self.ports[name]}\nstorePathRootDir={root / name}\n"
                f"httpPort={self.http[name]}\nmappedFileSizeCommitLog={SEGMENT_BYTES}\n"
                f"maxMessageSize={64 << 10}\ndiskSpaceWarningLevelRatio=100\n"
                "electionTimeoutMinMs=1000\nelectionTimeoutMaxMs=2000\n"
            )

    async def __aenter__(self):
        for name in NAMES:
            self.start(name)
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        for process in self.running.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.held.close()

    def start(self, name):
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.broker.node", "-c", f"{self.root / name}.conf"],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.limit(name, self.descriptors, hard=self.descriptors)  # before Python has begun

    async def reconnect(self):
        """Be a new client, which every broker lets in by now."""
        await self.client.close()
        self.client = RemotingClient()
        for name in NAMES:
            await until(lambda name=name: self.info(name))

    def limit(self, name, descriptors, hard=None):
        pid = self.running[name].pid
        _, hard_before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, hard or hard_before))

    def log(self, name):
        return (self.root / f"{name}.log").read_text()

    async def ask(self, name, code, ext=None, body=b""):
        request = RemotingCommand.request(code, ext, body)
        return await self.client.invoke(f"127.0.0.1:{self.ports[name]}", request, 60_000)

    async def info(self, name):
        """Return what the broker tells about itself; nothing while it cannot be asked."""
        process = self.running[name]
        assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
        with contextlib.suppress(RemotingError):
            answer = await self.ask(name, RequestCode.GET_BROKER_RUNTIME_INFO)
            return orjson.loads(answer.body)["table"]
        return {}

    async def leader(self):
        async def leading():
            infos = {name: await self.info(name) for name in NAMES}
            return [n for n, info in infos.items() if info.get("raftLeaderReady") == "true"]

        return (await until(leading))[0]

    async def create_topic(self, name):
        header = TopicHeader("T", 1, 1, 6)
        answer = await self.ask(name, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        assert answer.code == 0, answer

    async def send(self, name, key):
        """Return whether the message was acknowledged."""
        body = b"%06d" % key + bytes(BODY_BYTES)
        header = SendHeader("pg", "T", "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "")
        answer = await self.ask(name, RequestCode.SEND_MESSAGE_V2, header.to_ext(310), body)
        return answer.code == 0

    async def keys(self, name):
        """Return the keys of all messages, in their order."""
        offset = 0
        result: list[Any] = []
        while True:
            header = PullHeader("cg", "T", 0, offset, 32, 0x4, 0, 0, "*", 0)
            answer = await self.ask(name, RequestCode.PULL_MESSAGE, header.to_ext())
            assert answer.code in (0, 19), answer
            if answer.code == 19:
                return result
            offset = int(answer.ext["nextBeginOffset"])
            for at, _ in walk_records(answer.body):
                result.append(int(decode_record(answer.body, at).body[:6]))

    async def is_filled(self, name):
        """Return whether the broker has all the clients that it has room for, and refused some."""
        figures = await self.scrape(name)
        full = figures.sum("rocketmq_connections") >= figures.sum("rocketmq_connections_limit")
        return full and figures.sum("rocketmq_connections_refused_total") > 0

    async def scrape(self, name):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{self.http[name]}/metrics") as answer:
                return Scrape(await answer.text())


def strangers(port, count):
    """Return so many connections that say nothing; the broker may have closed some of them."""
    result = []
    for _ in range(count):
        result.append(socket.socket())
        result[-1].setblocking(False)
        result[-1].connect_ex(("127.0.0.1", port))
    return result


async def test_silent_connections_do_not_exhaust_the_logs_descriptors(tmp_path):
    async with Processes(tmp_path, FEW) as group:
        leader = await group.leader()
        await group.create_topic(leader)
        silent = []
        for name in NAMES:
            assert "connections_limited" in group.log(name)
            while not await group.is_filled(name):
                silent += strangers(group.ports[name], 32)
        acknowledged = [key for key in range(30) if await group.send(leader, key)]
        assert len(acknowledged) == 30
        for name in NAMES:
            log = tmp_path / name / "commitlog"
            await until(lambda log=log: len(list(log.iterdir())) > 5)  # one of them may be behind
            figures = await group.scrape(name)  # an operator gets in
            assert figures.sum("process_open_fds") < FEW * 3 / 4
        for stranger in silent:
            stranger.close()
        await group.reconnect()  # a new client gets in
        assert await group.send(leader, 30)
        assert await group.keys(leader) == [*acknowledged, 30]


async def test_log_without_a_file_descriptor_waits_for_one(tmp_path):
    async with Processes(tmp_path, ENOUGH) as group:
        leader = await group.leader()
        await group.create_topic(leader)
        acknowledged = [0] if await group.send(leader, 0) else []
        for name in NAMES:
            await group.info(name)  # connected from here on
            group.limit(name, NONE_MORE)
        keys = iter(range(1, 999_999))
        while sum("disk_full" in group.log(name) for name in NAMES) < 2:  # no majority can write
            for key, name in zip(keys, NAMES, strict=False):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):  # nobody answers while it is held
                        if await group.send(name, key):
                            acknowledged.append(key)
        for name in NAMES:
            assert await group.info(name)  # it is alive
            group.limit(name, ENOUGH)
        leader = await group.leader()
        await until(lambda: group.send(leader, 999_999))
        assert len(acknowledged) > 3
        kept = await group.keys(leader)
        assert [key for key in kept if key in acknowledged] == acknowledged
        assert kept[-1] == 999_999
        assert not any("member_failed" in group.log(name) for name in NAMES)
