"""Bodies of a name server with many broker groups, and the work for them, in function calls."""

import orjson

from raftmq.namesrv.routes import Registration, RouteTable
from raftmq.namesrv.views import changes_body, cluster_body, route_body
from raftmq.namesrv.watchers import Changes
from raftmq.remoting.fair_scheduling import finish
from raftmq.remoting.registration import DataVersion, TopicConfig
from tests.callcount import calls_of

GROUPS = 100
TOPICS = [TopicConfig(f"t{number}", 4, 4, 6) for number in range(50)]


def large_table() -> RouteTable:
    table = RouteTable()
    for number in range(GROUPS):
        for broker_id in range(3):
            name, address = f"g{number}", f"n{number}-{broker_id}:1"
            version = DataVersion(1, 0, number)
            claim = Registration(
                "c", name, address, broker_id, version=version, topics=TOPICS, term=1
            )
            table.register(claim, 0)
    return table


def test_route_is_joined_from_parts_that_are_encoded_once() -> None:
    table = large_table()
    body = finish(route_body(table, "t0", "g0:4"))
    assert body is not None
    route = orjson.loads(body)
    assert [data["brokerName"] for data in route["queueDatas"]] == [f"g{n}" for n in range(GROUPS)]
    assert route["queueDatas"][7] == {
        "brokerName": "g7", "perm": 6, "readQueueNums": 4, "topicSynFlag": 0, "topicSysFlag": 0,
        "writeQueueNums": 4,
    }  # fmt: skip
    assert route["brokerDatas"][7] == {
        "brokerAddrs": {"0": "n7-0:1", "1": "n7-1:1", "2": "n7-2:1"}, "brokerName": "g7",
        "cluster": "c", "enableActingMaster": False, "raftGroup": True,
    }  # fmt: skip
    assert (route["filterServerTable"], route["orderTopicConf"]) == ({}, "g0:4")
    # Some calls for each group; encoding its addresses would be a dozen more.
    assert calls_of(lambda: finish(route_body(table, "t1", None))) < 7 * GROUPS


def test_changed_group_is_encoded_again_in_every_body() -> None:
    table = large_table()
    finish(route_body(table, "t0", None))
    version = table.groups_version
    table.register(Registration("c", "g7", "n7-1:1", 0, topics=None, term=2), 1)
    assert table.groups_version > version
    version = table.groups_version
    table.register(Registration("c", "g7", "n7-1:1", 0, topics=None, term=2), 2)
    assert table.groups_version == version  # nothing new
    expected = {"0": "n7-1:1", "2": "n7-2:1"}
    route = orjson.loads(finish(route_body(table, "t0", None)) or b"")
    assert route["brokerDatas"][7]["brokerAddrs"] == expected
    info = orjson.loads(finish(cluster_body(table)))
    assert info["brokerAddrTable"]["g7"] == route["brokerDatas"][7]
    table.unregister("n8-0:1", "g8", 3)
    pushed = orjson.loads(changes_body(table, Changes({"g7", "gone", "g8"}, {"t0"})))
    assert list(pushed["brokers"]) == ["g7", "g8"] and pushed["topics"] == ["t0"]
    assert pushed["brokers"]["g7"]["brokerAddrs"] == expected
    assert pushed["brokers"]["g8"]["brokerAddrs"] == {"1": "n8-1:1", "2": "n8-2:1"}
    table.register(Registration("other", "g8", "n8-1:1", 1, topics=None, term=1), 4)
    assert orjson.loads(finish(cluster_body(table)))["brokerAddrTable"]["g8"]["cluster"] == "other"


def test_topics_of_the_same_groups_share_their_set_and_names() -> None:
    table = large_table()
    assert len({id(groups) for groups in table._groups_of.values()}) == 1
    own = {id(name) for group in table.groups() for name in group.topics}
    assert len(own) == len(TOPICS)
    for broker_id in range(3):
        table.unregister(f"n7-{broker_id}:1", "g7", 1)
    assert len({id(groups) for groups in table._groups_of.values()}) == 1
    assert "g7" not in (table.queues("t0") or {})
    assert table.topic_entry_count == (GROUPS - 1) * len(TOPICS)
