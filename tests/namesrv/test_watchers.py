"""Clients that are told of changed routes: which, how often, and the bounds."""

from typing import Any

import orjson
import pytest

from raftmq.client.instance import ClientInstance, InstanceConfig
from raftmq.client.metadata import WATCH
from raftmq.client.producer.producer import Producer
from raftmq.namesrv import watchers as room
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.namesrv.watchers import GOES_ON, NAME_BYTES, Pace, RouteWatchers
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.memory_limits import Allowance
from raftmq.remoting.registration import TopicConfig
from tests.instances import instances_of
from tests.namesrv.test_server import V1, V2, Caller
from tests.waiting import until


def told(watchers):
    return {c: (ch.groups, ch.topics, ch.everything) for c, ch in watchers.take()}


def test_route_watcher_is_notified_once_of_its_topics():
    kept = Allowance(1_000_000)
    watchers: RouteWatchers[Any] = RouteWatchers(kept)
    watchers.requested("one", "T", ["a"])
    watchers.requested("one", "T", ["a"])
    assert kept.used_bytes == 2 * (1 + NAME_BYTES)
    watchers.requested("two", "T", ["a", "b"])
    watchers.requested("two", "Unknown", [])
    assert watchers.group_changed("b")
    assert watchers.group_changed("b")
    assert not watchers.group_changed("c")
    assert watchers.topic_changed("Unknown")
    assert not watchers.topic_changed("Other")
    assert told(watchers) == {"two": ({"b"}, {"Unknown"}, False)}
    assert told(watchers) == {}
    assert watchers.topic_changed("T")
    watchers.closed("two")
    assert told(watchers) == {"one": (set(), {"T"}, False)}
    watchers.closed("one")
    watchers.closed("one")
    assert not watchers.topic_changed("T")
    assert len(watchers) == 0
    assert not watchers.group_changed("a") and not watchers.group_changed("b")
    assert kept.used_bytes == 0


def test_route_watchers_are_notified_in_the_order_of_their_requests():
    """So that what a name server sends does not depend on how Python hashes."""
    watchers: RouteWatchers[Any] = RouteWatchers(Allowance(1 << 20))
    names = [f"client {number}" for number in range(20)]
    for name in names:
        watchers.requested(name, "T", ["a"])
    watchers.topic_changed("T")
    assert list(told(watchers)) == names
    watchers.group_changed("a")
    assert list(told(watchers)) == names


def test_watchers_beyond_the_limits_are_notified_of_every_change(monkeypatch):
    monkeypatch.setattr(room, "CHANGES_MAX", 3)
    monkeypatch.setattr(room, "CONNECTION_BYTES_MAX", 5 * (2 + NAME_BYTES) + 1 + NAME_BYTES)
    watchers: RouteWatchers[Any] = RouteWatchers(Allowance(1_000_000))
    for number in range(5):
        watchers.requested("one", f"T{number}", ["a"])
    for number in range(3):
        watchers.topic_changed(f"T{number}")
    assert told(watchers) == {"one": (set(), {"T0", "T1", "T2"}, False)}
    for number in range(4):
        watchers.topic_changed(f"T{number}")
    assert told(watchers)["one"][2]
    watchers.requested("one", "one too many", [])
    assert not watchers.topic_changed("one too many")
    watchers.topic_changed("T1")
    assert told(watchers) == {"one": (set(), {"T1"}, False)}
    watchers.group_changed("a")
    assert told(watchers)["one"][2]
    watchers.requested("two", "one too many", ["b"])  # another connection has room of its own
    assert watchers.topic_changed("one too many")


def test_watchers_of_all_connections_are_limited_and_released():
    kept = Allowance(3 * (1 + NAME_BYTES))
    watchers: RouteWatchers[Any] = RouteWatchers(kept)
    for number in range(4):
        watchers.requested(number, "T", [])
    watchers.topic_changed("T")
    assert list(told(watchers)) == [0, 1, 2]
    watchers.closed(3)
    watchers.closed(0)
    watchers.requested(4, "U", [])
    assert watchers.topic_changed("U")
    for number in (1, 2, 4):
        watchers.closed(number)
    assert kept.used_bytes == 0


class Watcher(Caller):
    """A client that asks to be told."""

    def __init__(self, address):
        super().__init__(address)
        self.pushes = []
        self.remoting.register(int(RequestCode.ROUTE_CHANGED), self._pushed)

    def _pushed(self, _, command):
        self.pushes.append((command.ext["everything"], orjson.loads(command.body)))

    async def watch(self, topic):
        ext = {"topic": topic, **WATCH}
        return (await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)).code


async def test_name_server_pushes_route_changes():
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        broker, watcher = Caller(server.address), Watcher(server.address)
        silent = Watcher(server.address)
        try:
            await broker.register("n0:1", 0, raft_term=1)
            await watcher.watch("TopicTest")
            assert await watcher.watch("Soon") == ResponseCode.TOPIC_NOT_EXIST
            await silent.route("TopicTest")
            await broker.register("n1:1", 0, raft_term=2)  # another leads
            await until(lambda: len(watcher.pushes) == 1)
            everything, change = watcher.pushes[0]
            assert (everything, change["topics"]) == ("false", [])
            assert change["brokers"]["broker-a"]["brokerAddrs"] == {"0": "n1:1"}
            info = orjson.loads((await broker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            assert change["brokers"] == info["brokerAddrTable"]
            await broker.register("n1:1", 0, V2, [TopicConfig("Soon", 2, 2, 6)], raft_term=2)
            await until(lambda: len(watcher.pushes) == 2)
            assert watcher.pushes[1][1] == {"brokers": {}, "topics": ["Soon", "TopicTest"]}
            order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Soon", "value": "broker-a:2"}
            assert (await broker.ask(RequestCode.PUT_KV_CONFIG, order)).code == 0
            await until(lambda: len(watcher.pushes) == 3)
            assert watcher.pushes[2][1]["topics"] == ["Soon"]
            await watcher.remoting.close()
            await broker.register("n0:1", 0, V1, raft_term=3)
            assert (await broker.route("TopicTest"))["brokerDatas"][0]["brokerAddrs"]["0"] == "n0:1"
            assert silent.pushes == []
        finally:
            for one in (broker, watcher, silent):
                await one.remoting.close()


def test_push_pause_follows_the_requests_and_grows_with_further_changes():
    pace = Pace(GOES_ON)
    assert pace.due_s == 0
    pace.pushed(100.0, 1_000)
    assert pace.due_s == pytest.approx(100.2)
    pace.pushed(100.2, 1_000)  # as soon as it may be
    assert pace.due_s == pytest.approx(102.2)
    pace.pushed(102.2, 100_000)
    assert pace.due_s == pytest.approx(107.2)
    pace.pushed(120.0, 1)  # a lone change later
    assert pace.due_s < 120.001
    groups = Pace()  # a leader's change is not held longer however many change
    groups.pushed(100.0, 2_000)
    groups.pushed(100.4, 2_000)
    assert groups.due_s == pytest.approx(100.8)


async def test_changed_topics_wait_for_the_requests_after_their_last_push(monkeypatch):
    """And a changed leader does not."""
    monkeypatch.setattr(room, "REQUEST_S", 3_600.0)
    monkeypatch.setattr(room, "PAUSE_S_MAX", 3_600.0)
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        broker, watcher = Caller(server.address), Watcher(server.address)
        try:
            await broker.register("n0:1", 0, raft_term=1)
            await watcher.watch("TopicTest")
            changed = [TopicConfig("TopicTest", 9, 9, 6)]
            await broker.register("n0:1", 0, V2, changed, raft_term=1)
            await until(lambda: len(watcher.pushes) == 1)
            assert watcher.pushes[0][1]["topics"] == ["TopicTest"]
            await broker.register("n1:1", 0, V1, raft_term=2)
            await until(lambda: len(watcher.pushes) == 2)
            assert list(watcher.pushes[1][1]["brokers"]) == ["broker-a"]
            assert watcher.pushes[1][1]["topics"] == []
            assert server._watchers._changed_topics == {"TopicTest": None}
        finally:
            await broker.remoting.close()
            await watcher.remoting.close()


async def test_watched_topics_are_released_with_the_connection():
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        watcher = Watcher(server.address)
        try:
            for number in range(10):
                assert await watcher.watch(f"T{number}") == ResponseCode.TOPIC_NOT_EXIST
            assert server.budgets.kept.used_bytes == 10 * (2 + NAME_BYTES)
            assert await watcher.watch("t" * 256) == ResponseCode.SYSTEM_ERROR
            assert server.budgets.kept.used_bytes == 10 * (2 + NAME_BYTES)
        finally:
            await watcher.remoting.close()
        await until(lambda: server.budgets.kept.used_bytes == 0)


async def test_client_gets_a_new_leader_by_push(monkeypatch):
    quiet = InstanceConfig(route_interval_ms=3_600_000)
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        broker = Caller(server.address)
        try:
            await broker.register("127.0.0.1:1", 0, raft_term=1)
            instances = instances_of(monkeypatch, ClientInstance)
            async with Producer("pg", server.address, instance_config=quiet):
                directory = instances[0].directory
                await directory.route("TopicTest")
                await broker.register("127.0.0.1:2", 0, V2, [TopicConfig("TopicTest", 9, 9, 6)],
                                      raft_term=2)  # fmt: skip
                await until(lambda: "127.0.0.1:2" in directory.group("broker-a").addresses)
                await until(
                    lambda: (
                        (route := directory.route_if_known("TopicTest")) is not None
                        and route.queues[0].write_count == 9
                    )
                )
                asked = {code for code, _ in server.metrics.answers}
                assert RequestCode.GET_BROKER_CLUSTER_INFO not in asked  # it had the addresses
                directory.changed({"broker-a": {"brokerAddrs": 7}}, set(), False)  # nonsense
                await until(  # so all is asked for
                    lambda: (
                        RequestCode.GET_BROKER_CLUSTER_INFO
                        in {code for code, _ in server.metrics.answers}
                    )
                )
        finally:
            await broker.remoting.close()


async def test_unit_lists_and_topics_registered_by_hand():
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        caller = Caller(server.address)
        try:
            topics = [TopicConfig(f"F{flags}", 1, 1, 6, flags) for flags in range(4)]
            await caller.register("n0:1", 0, V1, topics, compressed=False)
            for code, expected in ((311, ["F1", "F3"]), (312, ["F2", "F3"]), (313, ["F2"])):
                answer = await caller.ask(code)
                assert orjson.loads(answer.body)["topicList"] == expected
            queues = {"readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
            route = {"queueDatas": [{"brokerName": "broker-a", **queues},
                                    {"brokerName": "nobody", **queues}]}  # fmt: skip
            body = orjson.dumps(route)
            answer = await caller.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "X"}, body)
            assert answer.code == 0
            assert [d["readQueueNums"] for d in (await caller.route("X"))["queueDatas"]] == [3]
            wrong = {"brokerName": "broker-a", **queues, "perm": "six"}
            body = orjson.dumps({"queueDatas": [wrong]})
            answer = await caller.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "X"}, body)
            assert answer.code != 0
        finally:
            await caller.remoting.close()
