"""A name server through real sockets, spoken to with the real client; and its command."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from raftmq.namesrv.kv import SIZE_BYTES_MAX, VALUE_BYTES_MAX
from raftmq.namesrv.routes import RouteLimits
from raftmq.namesrv.server import KV_FILE_NAME, NameServer, NameServerConfig
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import BodyError, ConnectionLost
from raftmq.remoting.fair_scheduling import StepTurns
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.registration import (
    BrokerHeader,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc,
    encode_register_body,
)
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
V1, V2, V3 = DataVersion(1, 0, 5), DataVersion(2, 0, 6), DataVersion(3, 0, 7)
TOPICS = [TopicConfig("TopicTest", 4, 8, 6), TopicConfig("Other", 1, 1, 4)]


class Caller:
    """A client of one name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.remoting = RemotingClient(connect_timeout_ms=60_000)

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, ext, body)
        return await self.remoting.invoke(self.address, request, 120_000)

    async def register(
        self,
        address: str,
        broker_id: int,
        version: DataVersion = V1,
        topics: list[TopicConfig] = TOPICS,
        compressed: bool = True,
        **more: Any,
    ) -> RemotingCommand:
        body = encode_register_body(version, topics, compressed)
        fields: dict[str, Any] = {"broker_name": "broker-a", "cluster": "c"}
        fields |= {"ha_address": "h:1", "compressed": compressed, "body_crc": body_crc(body)}
        header = RegisterBrokerHeader(
            broker_address=address, broker_id=broker_id, **(fields | more)
        )
        return await self.ask(RequestCode.REGISTER_BROKER, header.to_ext(), body)

    async def route(self, topic: str) -> dict[str, Any]:
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        route: dict[str, Any] = orjson.loads(answer.body)  # standard JSON, not only fastjson's
        return route

    async def addresses(self) -> dict[str, str]:
        route = await self.route("TopicTest")
        addresses: dict[str, str] = route["brokerDatas"][0]["brokerAddrs"]
        return addresses


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as running:
        yield running


@pytest.fixture
async def caller(server: NameServer) -> AsyncIterator[Caller]:
    one = Caller(f"127.0.0.1:{server.port}")
    yield one
    await one.remoting.close()


@pytest.mark.parametrize("compressed", [False, True])
async def test_registration_and_route(caller: Caller, compressed: bool) -> None:
    answer = await caller.register("10.0.0.1:10911", 0, compressed=compressed)
    assert (answer.code, answer.ext) == (0, {"topicDelta": "true"})
    answer = await caller.register("10.0.0.2:10911", 1, compressed=compressed)
    assert answer.ext == {
        "topicDelta": "true",
        "masterAddr": "10.0.0.1:10911",
        "haServerAddr": "h:1",
    }
    assert await caller.route("TopicTest") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
                "brokerName": "broker-a",
                "cluster": "c",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSynFlag": 0,
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
        ],
    }


async def test_route_of_an_unknown_topic_is_not_found(caller: Caller) -> None:
    answer = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nope"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith(
        "No topic route info in name server for the topic: nope\nSee "
    )


async def test_damaged_registration_is_rejected(caller: Caller) -> None:
    answer = await caller.register("10.0.0.1:10911", 0, body_crc=1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    header = RegisterBrokerHeader("broker-a", "10.0.0.1:10911", "c", "", 0, True)
    answer = await caller.ask(RequestCode.REGISTER_BROKER, header.to_ext(), b"not zlib")
    assert answer.code == 1
    assert "zlib" in (answer.remark or "")
    answer = await caller.ask(RequestCode.REGISTER_BROKER, {"brokerName": "b"})
    assert answer.remark == "the custom field <brokerAddr> is null"
    assert (await caller.register("10.0.0.1:10911", 0, body_crc=0)).code == 0  # unchecked


async def test_failover_and_the_stale_leader(caller: Caller) -> None:
    await caller.register("n0:1", 0, raft_term=5, raft_role="leader")
    await caller.register("n1:1", 2, raft_term=5, raft_role="follower")
    await caller.register("n1:1", 0, raft_term=6, raft_role="leader")
    assert await caller.addresses() == {"0": "n1:1"}
    answer = await caller.register("n0:1", 0, V3, [], raft_term=5)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert (answer.remark or "").startswith("[STALE_TERM]")
    assert answer.ext == {"leaderAddr": "n1:1", "raftTerm": "6"}
    assert await caller.addresses() == {"0": "n1:1"}
    await caller.register("n0:1", 1, raft_term=6)
    assert await caller.addresses() == {"0": "n1:1", "1": "n0:1"}


async def test_replica_without_a_leader_takes_no_broker_id_in_use(caller: Caller) -> None:
    said: dict[str, Any] = {"raft_term": 5, "raft_group_id": "0a" * 16}
    await caller.register("n0:1", 0, raft_role="leader", raft_own_id=1, **said)
    await caller.register("n1:1", 2, raft_role="follower", **said)
    for broker_id in (1, 2):
        answer = await caller.register("copy:1", broker_id, raft_role="none", **said)
        text = f"[OTHER_REPLICA] copy:1 registers as brokerId {broker_id} of "
        assert (answer.remark or "").startswith(text)
    assert await caller.addresses() == {"0": "n0:1", "2": "n1:1"}
    await caller.register("moved:1", 2, raft_role="follower", **said)
    assert await caller.addresses() == {"0": "n0:1", "2": "moved:1"}


async def test_foreign_group_id_is_rejected_and_an_older_version_accepted(
    caller: Caller,
) -> None:
    own: dict[str, Any] = {"raft_term": 1, "raft_role": "leader", "raft_group_id": "0a" * 16}
    await caller.register("n0:1", 0, **own)
    refused: dict[str, dict[str, Any]] = {
        "q0:1": {**own, "raft_term": 3, "raft_group_id": "0b" * 16},
        "q1:1": {**own, "raft_term": 3, "raft_group_id": "none"},
        "q2:1": {},  # Apache's, or a classic master
    }
    for address, said in refused.items():
        answer = await caller.register(address, 0, V3, [], **said)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert (answer.remark or "").startswith(f"[OTHER_GROUP] {address} ")
        assert answer.ext == {"leaderAddr": "n0:1", "raftTerm": "1"}
        assert await caller.addresses() == {"0": "n0:1"}
    before = await caller.register("n1:1", 0, raft_term=2, raft_role="leader")
    assert before.code == 0
    assert await caller.addresses() == {"0": "n1:1"}


async def test_broker_name_with_a_changed_group_id_is_logged_once(
    server: NameServer, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {"raft_term": 1, "raft_role": "leader"}
    await caller.register("n0:1", 0, **own, raft_group_id="0a" * 16)
    await caller.ask(
        RequestCode.UNREGISTER_BROKER, BrokerHeader("broker-a", "n0:1", "c", 0).to_ext()
    )
    for _ in range(2):
        answer = await caller.register("n0:1", 0, **own, raft_group_id="0b" * 16)
        assert answer.code == 0
    (line,) = [r.getMessage() for r in caplog.records if "group_id_changed" in r.getMessage()]
    assert server.table.new_group_id_count == 1
    assert f"address=n0:1 id={'0b' * 16} before={'0a' * 16}: if nobody meant it" in line


async def test_registration_deltas_and_data_versions(caller: Caller) -> None:
    async def version_changed(version: DataVersion) -> str:
        header = BrokerHeader("broker-a", "n0:1", "c", 0)
        answer = await caller.ask(RequestCode.QUERY_DATA_VERSION, header.to_ext(), version.encode())
        assert answer.ext is not None
        return answer.ext["changed"]

    assert await version_changed(V1) == "true"
    await caller.register("n0:1", 0, V1)
    assert await version_changed(V1) == "false"
    answer = await caller.register(
        "n0:1", 0, V2, [TopicConfig("New", 2, 2, 6)], topic_delta=True, delta_base=V1
    )
    assert answer.ext == {"topicDelta": "true"}
    assert (await caller.route("New"))["queueDatas"][0]["readQueueNums"] == 2
    assert await version_changed(V2) == "false"
    for base in (V1, None):
        answer = await caller.register("n0:1", 0, V3, [], topic_delta=True, delta_base=base)
        assert (answer.code, answer.ext) == (0, {"topicDelta": "true", "needFull": "true"})
    assert await version_changed(V3) == "true"
    assert (await caller.register("n0:1", 0, V3)).ext == {"topicDelta": "true"}
    answer = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "New"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_closed_channel_removes_its_broker_at_once(
    server: NameServer, caller: Caller
) -> None:
    other = Caller(caller.address)
    await caller.register("n0:1", 0)
    await other.register("n1:1", 1)
    await other.register("n0:1", 0)  # n0 speaks through the other connection now
    assert server.table.broker_count == 2
    (await caller.remoting.connect(caller.address)).close()
    listener = server.server
    assert listener is not None
    await until(lambda: len(listener.connections) == 1)
    assert await other.addresses() == {"0": "n0:1", "1": "n1:1"}
    await other.remoting.close()
    await until(lambda: not server.table.broker_count)
    answer = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicTest"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_silent_brokers_are_dropped_and_their_connections_closed(
    server: NameServer, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.stop()
    monkeypatch.setattr("raftmq.namesrv.server.SCAN_INTERVAL_S", 0.01)
    monkeypatch.setattr("raftmq.namesrv.registrations.TIMEOUT_MS_MIN", 1)
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as fresh:
        one = Caller(f"127.0.0.1:{fresh.port}")
        await one.register("n0:1", 0, heartbeat_timeout_ms=20)
        await until(lambda: not fresh.table.broker_count)
        await until(lambda: one.remoting.connection(one.address) is None)
        await one.remoting.close()


async def test_heartbeat_unregister_and_members(caller: Caller) -> None:
    header = BrokerHeader("broker-a", "n0:1", "c", 0, 60_000).to_ext()
    answer = await caller.ask(RequestCode.BROKER_HEARTBEAT, header)
    assert answer.ext == {"needFull": "true"}
    await caller.register("n0:1", 0)
    assert (await caller.ask(RequestCode.BROKER_HEARTBEAT, header)).ext == {}
    who = {"clusterName": "c", "brokerName": "broker-a"}
    answer = await caller.ask(RequestCode.GET_BROKER_MEMBER_GROUP, who)
    assert loads_object(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": "n0:1"}
    assert (await caller.ask(RequestCode.UNREGISTER_BROKER, header)).code == 0
    answer = await caller.ask(RequestCode.GET_BROKER_MEMBER_GROUP, who)
    assert loads_object(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_cluster_and_topic_lists(caller: Caller) -> None:
    await caller.register("n0:1", 0)
    await caller.register("m0:1", 0, V1, [TopicConfig("Z", 1, 1, 6)], broker_name="broker-b",
                          cluster="d")  # fmt: skip
    clusters = loads_object((await caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert clusters["clusterAddrTable"] == {"c": ["broker-a"], "d": ["broker-b"]}
    assert clusters["brokerAddrTable"]["broker-b"]["brokerAddrs"] == {"0": "m0:1"}
    for _ in range(2):  # the second answer is a kept one
        answer = await caller.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert sorted(loads_object(answer.body)["topicList"]) == ["Other", "TopicTest", "Z"]
    answer = await caller.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Other"})
    assert answer.code == 0
    answer = await caller.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert sorted(loads_object(answer.body)["topicList"]) == ["TopicTest", "Z"]
    answer = await caller.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "d"})
    assert loads_object(answer.body)["topicList"] == ["Z"]
    answer = await caller.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    system = loads_object(answer.body)
    assert system["topicList"] == ["c", "broker-a", "d", "broker-b"]
    assert system["brokerAddr"] == "n0:1"


async def test_write_permission_of_a_broker_is_changed(caller: Caller) -> None:
    await caller.register("n0:1", 0)
    name = {"brokerName": "broker-a"}
    answer = await caller.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
    assert answer.ext == {"wipeTopicCount": "2"}
    assert (await caller.route("TopicTest"))["queueDatas"][0]["perm"] == 4
    answer = await caller.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
    assert answer.ext == {"addTopicCount": "2"}
    assert (await caller.route("TopicTest"))["queueDatas"][0]["perm"] == 6


async def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    config = NameServerConfig("127.0.0.1", 0, str(tmp_path / "store"))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicTest"}
    async with NameServer(config) as first:
        caller = Caller(f"127.0.0.1:{first.port}")
        missing = await caller.ask(RequestCode.GET_KV_CONFIG, order)
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        answer = await caller.ask(RequestCode.PUT_KV_CONFIG, order | {"value": "broker-a:4"})
        assert answer.code == 0
        await caller.ask(RequestCode.PUT_KV_CONFIG, order | {"key": "x", "value": "y"})
        await caller.ask(RequestCode.DELETE_KV_CONFIG, order | {"key": "x"})
        shown = (await caller.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
        assert f"kvConfigPath={tmp_path / 'store' / KV_FILE_NAME}" in shown.splitlines()
        await caller.remoting.close()
    async with NameServer(config) as second:
        caller = Caller(f"127.0.0.1:{second.port}")
        answer = await caller.ask(RequestCode.GET_KV_CONFIG, order)
        assert answer.ext == {"value": "broker-a:4"}
        answer = await caller.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, order)
        assert loads_object(answer.body) == {"table": {"TopicTest": "broker-a:4"}}
        answer = await caller.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        registered = await caller.register("n0:1", 0)
        assert loads_object(registered.body) == {"table": {"TopicTest": "broker-a:4"}}
        assert (await caller.route("TopicTest"))["orderTopicConf"] == "broker-a:4"
        await caller.remoting.close()


async def test_key_value_that_cannot_be_saved_is_not_in_force(tmp_path: Path) -> None:
    key = {"namespace": "n", "key": "k"}
    config = NameServerConfig("127.0.0.1", 0, str(tmp_path))
    in_the_way = (tmp_path / KV_FILE_NAME).with_suffix(".tmp")
    async with NameServer(config) as one:
        caller = Caller(f"127.0.0.1:{one.port}")
        assert (await caller.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "before"})).code == 0
        in_the_way.mkdir()
        refused = await caller.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "after"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (await caller.ask(RequestCode.DELETE_KV_CONFIG, key)).code != 0
        assert (await caller.ask(RequestCode.GET_KV_CONFIG, key)).ext == {"value": "before"}
        in_the_way.rmdir()
        puts = [
            caller.ask(RequestCode.PUT_KV_CONFIG, key | {"key": f"k{n}", "value": "v"})
            for n in range(9)
        ]
        assert [answer.code for answer in await asyncio.gather(*puts)] == [0] * 9
        reported = loads_object((await caller.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key)).body)
        assert len(reported["table"]) == 10
        await caller.remoting.close()


async def test_damaged_kv_file_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / KV_FILE_NAME).write_text("{")
    with pytest.raises(BodyError):
        await NameServer(NameServerConfig("127.0.0.1", 0, str(tmp_path))).start()


async def test_limits_are_reported_over_the_wire(server: NameServer) -> None:
    config = NameServerConfig("127.0.0.1", 0, registration_bytes_max=2000)
    async with NameServer(config, RouteLimits(topics_max=1)) as small:
        caller = Caller(f"127.0.0.1:{small.port}")
        answer = await caller.register("n0:1", 0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert (answer.remark or "").startswith("[TABLE_FULL]")
        large = bytes(config.frame_size_max)
        with pytest.raises(ConnectionLost):
            await caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO, None, large)
        answer = await caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert answer.code == 0
        await caller.remoting.close()


@pytest.mark.parametrize(
    "wrong", ["t" * 256, "t" * 400_000, "x\n2026-11-27 12:00:00,000 CRITICAL forged", "a b", "é"]
)
async def test_malformed_names_are_rejected_in_every_request(
    server: NameServer, caller: Caller, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "brokerName": "b"}
    body = orjson.dumps({"queueDatas": [queues]})
    fields = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: ("topic",),
        RequestCode.GET_BROKER_MEMBER_GROUP: ("clusterName", "brokerName"),
        RequestCode.GET_TOPICS_BY_CLUSTER: ("cluster",),
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: ("topic",),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: ("topic", "clusterName"),
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: ("brokerName",),
        RequestCode.ADD_WRITE_PERM_OF_BROKER: ("brokerName",),
        RequestCode.PUT_KV_CONFIG: ("namespace", "key"),
        RequestCode.GET_KV_CONFIG: ("namespace", "key"),
        RequestCode.DELETE_KV_CONFIG: ("namespace", "key"),
        RequestCode.GET_KVLIST_BY_NAMESPACE: ("namespace",),
        RequestCode.UNREGISTER_BROKER: ("clusterName", "brokerName", "brokerAddr"),
        RequestCode.BROKER_HEARTBEAT: ("clusterName", "brokerName", "brokerAddr"),
        RequestCode.QUERY_DATA_VERSION: ("clusterName", "brokerName", "brokerAddr"),
    }
    for code, names in fields.items():
        right = dict.fromkeys(names, "b") | {"value": "v", "watchRoutes": "true"}
        if "brokerAddr" in names:
            right["brokerAddr"] = "h:1"
        reported = b"" if code == RequestCode.QUERY_DATA_VERSION else body
        assert "characters" not in ((await caller.ask(code, right, reported)).remark or "")
        for name in names:
            answer = await caller.ask(code, right | {name: wrong}, reported)
            assert answer.code == ResponseCode.SYSTEM_ERROR, code
            remark = answer.remark or ""
            assert name in remark and len(remark) < 700 and "\n" not in remark, remark
    queues["brokerName"] = wrong
    body = orjson.dumps({"queueDatas": [queues]})
    answer = await caller.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert not any(wrong in record.getMessage() for record in caplog.records)


async def test_kv_values_and_table_are_limited_in_size(caller: Caller) -> None:
    async def put(key: str, value: str) -> int:
        ext = {"namespace": "n", "key": key, "value": value}
        return (await caller.ask(RequestCode.PUT_KV_CONFIG, ext)).code

    assert await put("k", "v" * VALUE_BYTES_MAX) == 0
    assert await put("l", "v" * (VALUE_BYTES_MAX + 1)) == ResponseCode.SYSTEM_ERROR
    assert await put("l", "é" * (VALUE_BYTES_MAX // 2 + 1)) == ResponseCode.SYSTEM_ERROR
    count = SIZE_BYTES_MAX // VALUE_BYTES_MAX
    codes = [await put(f"k{number}", "v" * (VALUE_BYTES_MAX - 4)) for number in range(count)]
    assert codes == [0] * (count - 1) + [ResponseCode.SYSTEM_BUSY]


async def test_registration_of_a_hundred_thousand_topics(
    server: NameServer, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One registration takes them all; saying it again does not even read them."""
    topics = [TopicConfig(f"topic-{i:06d}", 4, 4, 6) for i in range(100_000)]
    assert (await caller.register("n0:1", 0, V1, topics)).code == 0
    assert (await caller.route("topic-099999"))["queueDatas"][0]["perm"] == 6
    assert server.table.topic_count == 100_000

    def unwanted(*_: object) -> None:
        raise RuntimeError("the topics were read")

    monkeypatch.setattr("raftmq.namesrv.registrations.reading_register_body", unwanted)
    for compressed in (True, False):
        assert (await caller.register("n0:1", 0, V1, topics, compressed)).code == 0
        assert (await caller.register("n1:1", 1, V1, topics, compressed)).code == 0
    assert (await caller.register("n0:1", 0, V2, topics)).code == 1  # the trap works


@pytest.fixture
def a_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted depends on no clock. Before the fixture `server`."""
    monkeypatch.setattr("raftmq.namesrv.server.StepTurns", partial(StepTurns, 0.0))


async def test_routes_are_answered_while_a_large_registration_is_read(
    a_step_a_turn: None, server: NameServer, caller: Caller
) -> None:
    """Each of its forms; and its topics are there when it is answered."""
    await caller.register("n0:1", 0, broker_name="small")
    for number, compressed in enumerate((False, True)):
        topics = [TopicConfig(f"topic-{number}-{i:05d}", 4, 4, 6) for i in range(20_000)]
        large = asyncio.ensure_future(
            caller.register(f"n{number}:2", 0, V1, topics, compressed, broker_name=f"x{number}")
        )
        answered = 0
        while not large.done():
            await caller.route("TopicTest")
            answered += 1
        assert (await large).code == 0
        assert answered >= 50, "there are more than 900 steps"
        assert await caller.route(f"topic-{number}-19999")
    for code in (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER):
        answer = await caller.ask(code, {"cluster": "c"})
        assert len(loads_object(answer.body)["topicList"]) == 40_002


async def start_command(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "raftmq.namesrv.cli",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "100"},
    )


async def test_mqnamesrv_starts_serves_and_stops() -> None:
    process = await start_command("--listen-port", "0", "--bind", "127.0.0.1")
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("The Name Server boot success.")
    address = line.split()[-1]
    dashboard = (await process.stdout.readline()).decode()
    assert dashboard.startswith("Dashboard and HTTP API: http://127.0.0.1:")
    caller = Caller(address)
    assert (await caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0

    port = address.rsplit(":", 1)[1]
    second = await start_command("--listen-port", port, "--bind", "127.0.0.1")
    _, errors = await second.communicate()
    assert second.returncode == 1
    assert f"mqnamesrv: cannot start on 127.0.0.1:{port}" in errors.decode()

    process.send_signal(signal.SIGTERM)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert output == b""
    assert b"Traceback" not in errors
    await caller.remoting.close()


async def test_configuration_is_printed_as_by_apaches_script() -> None:
    process = await start_command("-p", "--set", "listenPort=9")
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert b"\nlistenPort=9\n" in output


async def test_mqnamesrv_help() -> None:
    process = await start_command("--help")
    output, _ = await process.communicate()
    assert process.returncode == 0
    for word in (b"--listen-port", b"--bind", b"listenPort: 9876", b"Brokers register"):
        assert word in output
