"""checkMove: each thing that would go wrong in a move is a line, with its figure."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import orjson
import pytest

from raftmq.broker.config import OPTIONS
from raftmq.client import MessageQueue
from raftmq.client.admin import Admin
from raftmq.client.admin.bodies import ConsumeStats, Progress, TopicOffset
from raftmq.client.admin.cluster import ClusterInfo
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import BrokerData
from raftmq.mqadmin.check_move import check_move
from raftmq.mqadmin.command import Arguments, Table
from raftmq.remoting.command import RemotingCommand
from tests.mqadmin.conftest import NEW, OLD, Two
from tests.waiting import wait_until

ADDRESS = "127.0.0.1:1"
HALF, TIMER = "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"
REVIVE = "rmq_sys_REVIVE_LOG_c"
CONFIG = {
    "brokerName": "a",
    "storePathRootDir": OPTIONS["storePathRootDir"].default,
    "storePathCommitLog": f"{OPTIONS['storePathRootDir'].default}/commitlog",
    "socksProxyConfig": "{}",
    "sendMessageThreadPoolNums": "4",
    "isBrokerContainer": "false",
}
RUNTIME = {"brokerVersionDesc": "V5_3_3", "commitLogMinOffset": "0", "commitLogMaxOffset": "9"}
TOPIC = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


class Apache:
    """Answers as an admin client of one broker of Apache's; `told` is what it is asked for."""

    def __init__(self, **told: Any) -> None:
        self.cluster = self.topic = self.group = self.broker = self
        self._told = told

    async def info(self) -> ClusterInfo:
        addresses = {1: ADDRESS} if self._told.get("headless") else {0: ADDRESS}
        return ClusterInfo({"a": BrokerData("c", "a", addresses)}, {"c": ("a",)})

    async def config(self, address: str) -> dict[str, str]:
        return CONFIG | self._told.get("config", {})

    async def runtime_info(self, address: str) -> dict[str, str]:
        return RUNTIME | self._told.get("runtime", {})

    async def configs(self, address: str) -> dict[str, dict[str, Any]]:
        return {"T": TOPIC} | self._told.get("topics", {})

    async def offsets_at(self, address: str, topic: str) -> dict[MessageQueue, TopicOffset]:
        span = self._told.get("offsets", {}).get(topic)
        return {MessageQueue(topic, "a", 0): TopicOffset(span[0], span[1], 0)} if span else {}

    async def consume_stats(self, address: str) -> dict[str, list[ConsumeStats]]:
        if self._told["stats"] is None:
            raise BrokerRefused(1, "no", address)
        end, consumed = self._told["stats"]
        progress = {MessageQueue("T", "a", 0): Progress(end, consumed, 0, 0)}
        return {"g": [ConsumeStats(0.0, progress)]}

    async def invoke(self, address: str, code: int, ext: Any = None) -> RemotingCommand:
        body = self._told.get(str(code))
        if code == 14:
            return RemotingCommand.request(22 if body is None else 0, {"offset": str(body)})
        return RemotingCommand.request(1 if body is None else 0, {}, orjson.dumps(body))

    async def ask(self, address: str, code: int, ext: Any = None) -> RemotingCommand:
        if str(code) not in self._told:
            raise BrokerRefused(1, "no", address)
        return await self.invoke(address, code, ext)


def found(way: str = "", **told: Any) -> set[tuple[str, str, object, str]]:
    """The lines: state, what, figure, for."""
    admin = cast(Admin, Apache(**{"stats": (0, 0)} | told))
    arguments = Arguments({"way": way})
    *_, findings = asyncio.run(check_move(admin, arguments))
    assert isinstance(findings, Table)
    lines = {(row["state"], row["what"], row["figure"], row["for"]) for row in findings.rows}
    assert findings.complete is all(state != "stop" for state, *_ in lines)
    return lines


def test_check_move_finds_nothing_for_a_movable_broker() -> None:
    plain = found()
    assert {state for state, *_ in plain} == {"ok"}
    assert ("ok", "version", "V5_3_3", "") in plain
    assert ("ok", "keys without effect", 4, "store, slave") in plain
    assert ("ok", "log", 9, "store, slave") in plain


BOTH = "store, slave"


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        ({"headless": True}, [("stop", "leader", 0, "")]),
        ({"runtime": {"brokerVersionDesc": "V3_2_6"}}, [("look", "version", "V3_2_6", "")]),
        ({"config": {"storePathCommitLog": "/x"}},
         [("stop", "configuration", "storePathCommitLog", BOTH)]),
        ({"config": {"enableDLegerCommitLog": "true"}},
         [("stop", "configuration", "enableDLegerCommitLog", BOTH)]),
        ({"config": {"maxMessageSize": "x"}}, [("stop", "configuration", "maxMessageSize", BOTH)]),
        ({"config": {"fileReservedTime": "3"}}, [("look", "keys that differ", 1, BOTH)]),
        ({"config": {"maxMessageSize": "65536"}}, [("ok", "keys to keep", 2, BOTH)]),
        ({"runtime": {"commitLogMinOffset": "-1"}}, [("look", "log", "?", BOTH)]),
        ({"runtime": {"dispatchBehindBytes": "7"}}, [("look", "log", 7, "")]),
        ({"topics": {"E": TOPIC | {"readQueueNums": 0, "writeQueueNums": 0}}},
         [("stop", "topics", 1, "traffic"), ("look", "topics", 1, BOTH)]),
        ({"topics": {"a b": TOPIC}},
         [("stop", "topics", 1, "traffic"), ("look", "topics", 1, BOTH)]),
        ({"topics": {"C": TOPIC | {"attributes": {"cleanup.policy": "COMPACTION"}}}},
         [("stop", "topics", 1, "")]),
        ({"offsets": {"T": (2, 7)}},
         [("ok", "messages", 5, BOTH), ("look", "messages", 5, "traffic")]),
        ({"stats": (7, 3)}, [("look", "not consumed yet", 4, "traffic")]),
        ({"runtime": {"scheduleMessageOffset_3": "2,7", "scheduleMessageOffset_4": "1,2"}},
         [("look", "delayed messages", 6, "traffic")]),
        ({"topics": {TIMER: TOPIC}, "offsets": {TIMER: (0, 9)}},
         [("look", "timer messages", 9, "traffic")]),
        ({"topics": {TIMER: TOPIC}, "offsets": {TIMER: (0, 9)},
          "61": {"timingCount": {"T": {"count": 3}, "U": {"count": 1}}}},
         [("look", "timer messages", 4, "traffic")]),
        ({"runtime": {"timerWaiting": "2"}}, [("look", "timer messages", 2, "traffic")]),
        ({"topics": {HALF: TOPIC}, "offsets": {HALF: (1, 9)}},
         [("ok", "open transactions", 8, BOTH), ("look", "open transactions", 8, "traffic")]),
        ({"topics": {HALF: TOPIC}, "offsets": {HALF: (1, 9)}, "14": 6},
         [("look", "open transactions", 3, "traffic")]),
        ({"topics": {REVIVE: TOPIC}, "offsets": {REVIVE: (0, 4)}, "14": 4},
         [("ok", "pops", 0, BOTH)]),
        ({"topics": {REVIVE: TOPIC}, "offsets": {REVIVE: (0, 4)}}, [("look", "pops", 4, BOTH)]),
        ({"config": {"aclEnable": "true"}, "54": {"plainAccessConfigs": [{}, {}]}},
         [("look", "accounts", 2, "")]),
        ({"config": {"authenticationEnabled": "true"}, "3005": [{}, {}, {}]},
         [("stop", "accounts", 3, ""), ("stop", "configuration", "authenticationEnabled", BOTH)]),
    ],
)  # fmt: skip
def test_check_move_lists_each_obstacle_with_its_figure(told, lines) -> None:
    assert found(**told) >= set(lines)
    assert found("slave", **told) >= {line for line in lines if line[3] != "traffic"}
    assert not any(line[3] == "traffic" for line in found("store", **told))


def test_check_move_lists_what_a_broker_does_not_report_as_unknown() -> None:
    unknown = [line for line in found(stats=None, config={"aclEnable": "true"}) if line[2] == "?"]
    assert sorted(unknown) == [
        ("look", "accounts", "?", ""),
        ("look", "not consumed yet", "?", ""),
    ]


def test_check_move_asks_a_running_cluster(two: Two) -> None:
    made = two.run("updateTopic", "-b", two.at(OLD), "-t", "Asked", "-r", "2", "-w", "2")
    assert made.exit_code == 0
    wait_until(lambda: OLD in two.run("topicRoute", "-t", "Asked").stdout)
    for way, status in (("traffic", 0), ("store", 1)):  # a Raft group's store is no classic one
        done = two.run("checkMove", "-b", OLD, "--way", way, "--json")
        reported = json.loads(done.stdout)
        assert done.exit_code == status, done.stdout
        assert {row["broker"] for row in reported["findings"]} == {OLD}
        stops = [row["figure"] for row in reported["findings"] if row["state"] == "stop"]
        assert stops == (["enableDLegerCommitLog"] if status else [])
        queues = [q for q in reported["queues"] if q["topic"] == "Asked"]
        assert [(q["queue"], q["maxOffset"]) for q in queues] == [(0, 0), (1, 0)]
    unknown = two.run("checkMove", "-b", "none")
    assert unknown.exit_code == 1 and f"known: {OLD}, {NEW}" in unknown.stderr
