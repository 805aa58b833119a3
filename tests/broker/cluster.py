"""Brokers of one group on this loop, on loopback ports nobody chose; and a raw client for them."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from raftmq.broker.broker import open_broker
from raftmq.broker.config import build_config
from raftmq.broker.consume import offset_commits
from raftmq.broker.durations import Durations
from raftmq.broker.http.faults import FaultDoor
from raftmq.broker.replication.engine import RAFT
from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.messages import Role
from raftmq.ops.options import Setting
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.remoting.names import OPERATOR_LOG_TOPIC
from raftmq.store.disk import OsDisk
from tests.loopclock import LoopClock
from tests.ports import bound
from tests.steadydisk import SteadyDisk
from tests.waiting import until

PATIENCE_S = 120.0  # nothing here takes so long unless it is broken


class Group:
    """`count` replicas below `root`. They keep their directories and ports over restarts.

    Nothing happens here because a machine is slow: replicas wait long for a leader before they
    want another one, and the first is asked to lead at once."""

    # What a replica stores on: called with its directory.
    disk: Callable[[str], OsDisk] = SteadyDisk
    faults: FaultDoor | None = None
    replication = RAFT
    commit_interval_ms = 20
    # `clock` does not count how long the loop stands still, and the wall clock does: no jump.
    durations = Durations(outcome=30_000, timer_hold=0)

    def __init__(self, root, count=1, durations=None, **settings):
        """`durations` has those that differ from the class's."""
        self.root = root
        self.durations = replace(self.durations, **durations or {})
        self.settings = settings
        self.names = [f"n{number}" for number in range(count)]
        self.sockets = {name: bound() for name in self.names}
        self.ports = {name: s.getsockname()[1] for name, s in self.sockets.items()}
        self.held = {}  # their ports: nobody else is given them while they are down
        self.brokers = {}
        self.client: Any = None
        self.clock = LoopClock()
        self.ahead_ms = {}  # by how much the wall clocks of replicas are, by name
        self.stopped_ms = None  # the wall clocks of all replicas, if they stand still

    def wall_ms(self, name):
        if self.stopped_ms is not None:
            return self.stopped_ms
        return time.time_ns() // 1_000_000 + self.ahead_ms.get(name, 0)

    def asking(self):
        """Return a client for the test's own requests."""
        return RemotingClient(connect_timeout_ms=60_000)

    async def __aenter__(self):
        self.clock.run()
        self.client = self.asking()
        try:
            for name in self.names:
                await self.start(name)
            if len(self.names) > 1:
                self.let_lead(random.choice(self.names))  # tests hold whoever leads
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_):
        # Who leads goes last: nobody is left to be handed anything, and to be waited for.
        for name in sorted(self.brokers, key=lambda name: self.brokers[name].roles.leading):
            await self.stop(name)
        self.let_go()
        await self.client.close()

    def config(self, name):
        peers = ";".join(f"{n}-127.0.0.1:{port}" for n, port in self.ports.items())
        values = {
            "brokerName": "group-a",
            "brokerClusterName": "TestCluster",
            "listenPort": "0",
            "enableDLegerCommitLog": "true",
            "dLegerPeers": peers,
            "dLegerSelfId": name,
            "mappedFileSizeCommitLog": str(8 << 20),
            "mappedFileSizeConsumeQueue": "20000",
            # A busy machine must not cost a leader its office. Who is killed is missed at once,
            # by the end of its connections.
            "electionTimeoutMinMs": "2000",
            "electionTimeoutMaxMs": "4000",
            "heartbeatIntervalMs": "40",
            "diskSpaceWarningLevelRatio": "100",
        }
        values |= {key: str(value) for key, value in self.settings.items()}
        return build_config([Setting(key, value, "test") for key, value in values.items()])

    async def start(self, name):
        config = self.config(name)  # which may be refused
        listener = self.listener(name)
        with patch.object(offset_commits, "INTERVAL_MS", self.commit_interval_ms):
            broker = await open_broker(
                config,
                self.disk(str(self.root / name)),
                replication_socket=listener,
                clock_ms=self.clock.whole_ms,
                wall_ms=partial(self.wall_ms, name),
                faults=self.faults,
                replication=self.replication,
                durations=self.durations,
            )
        self.brokers[name] = broker
        await broker.start()
        if len(self.names) == 1:
            self.let_lead(name)
        return broker

    def let_lead(self, name):
        """As if its election time-out were over, when nobody leads."""
        engine = self.brokers[name].engine
        if isinstance(engine, RaftMember) and all(
            broker.engine.leader is None for broker in self.brokers.values()
        ):
            engine.core.timer.due_ms = 0.0

    async def transfer(self, leader, target=""):
        """Ask this broker to hand over; again while it says that it cannot just now (it does not
        know yet that the other one is whole), and when it was begun and given up."""
        ext = {"target": target} if target else {}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self.ask(leader, RequestCode.TRANSFER_LEADERSHIP, ext)
                later = "could lead at once" in (answer.remark or "")
                later = later or answer.code == ResponseCode.SYSTEM_BUSY
                if answer.code != ResponseCode.SUCCESS and not later:
                    return answer
                if answer.code == ResponseCode.SUCCESS:
                    core = leader.engine.core
                    await until(lambda core=core: core.transfer_target is None)
                    if core.role is not Role.LEADER:
                        return answer
                await asyncio.sleep(0.01)

    def let_go(self):
        """Of the ports that are held for who does not run."""
        for listener in (*self.sockets.values(), *self.held.values()):
            listener.close()

    def listener(self, name):
        """Bound for its peers; and once more, without listening, for as long as this group is."""
        if self.ports[name] not in self.held:
            self.held[self.ports[name]] = bound(self.ports[name])
        return self.sockets.pop(name, None) or bound(self.ports[name])

    async def stop(self, name):
        await self.brokers.pop(name).stop()

    async def kill(self, name):
        """As a crash: nothing is handed over or flushed."""
        broker = self.brokers.pop(name)
        broker.abandon("killed by the test")
        await broker.stop()

    async def leader(self):
        """The name of the ready leader, once there is one."""
        result: list[Any] = []

        def look():
            result[:] = [name for name, b in self.brokers.items() if b.roles.leading]
            return bool(result)

        await until(look)
        return result[0]

    async def leading(self):
        return self.brokers[await self.leader()]

    async def ask(self, broker, code, ext=None, body=b"", timeout_ms=60_000):
        command = RemotingCommand.request(code, ext, body)
        return await self.client.invoke(broker.address, command, timeout_ms)

    async def create_topic(self, broker, topic, queues=4):
        header = TopicHeader(topic, queues, queues, 6)
        before = self.recorded(broker)
        answer = await self.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        if answer.code == ResponseCode.SUCCESS:  # its outcome is stored after it is answered
            await until(lambda: self.recorded(broker) >= before + 2)
        return answer

    @staticmethod
    def recorded(broker):
        """Return how many records of operators' deeds there are."""
        queue = broker.store.queues.queue(OPERATOR_LOG_TOPIC, 0)
        return 0 if queue is None else queue.max_offset

    async def send(self, broker, topic, body=b"hello", queue=0, properties="", **options):
        header = SendHeader("pg", topic, "TBW102", 4, queue, 0, 1_700_000_000_000, 0, properties)
        ext = header.to_ext(310)
        return await self.ask(broker, RequestCode.SEND_MESSAGE_V2, ext, body, **options)

    async def pull(self, broker, topic, offset, queue=0, flags=0x4, wait_ms=30_000, tags="*", **o):
        header = PullHeader("cg", topic, queue, offset, 32, flags, 0, wait_ms, tags, 0)
        return await self.ask(broker, RequestCode.PULL_MESSAGE, header.to_ext(), **o)

    async def commit(self, broker, topic, queue, offset, group="cg"):
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        ext["commitOffset"] = str(offset)
        return await self.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def committed(self, broker, topic, queue, group="cg"):
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        ext["setZeroIfNotFound"] = "false"
        return await self.ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, ext)
