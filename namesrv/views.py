"""The name server's answers as JSON bodies in Apache's formats.

Bodies that grow with the table are built in steps (remoting.fair_scheduling), from parts that are
encoded once per group. Broker ids are quoted keys, which every version of fastjson accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import orjson

from raftmq.remoting.fair_scheduling import Steps

from .routes import BrokerGroup, QueueData, RouteTable
from .watchers import Changes

GROUPS_PER_STEP, NAMES_PER_STEP = 500, 2_000  # some .5 ms
QUEUE_FIELDS_MAX = 1_024  # encoded ones; most topics are alike


def route_body(table: RouteTable, topic: str, order_config: str | None) -> Steps[bytes | None]:
    """Return a topic's TopicRouteData; None without a group with addresses."""
    queue_datas: list[bytes] = []
    broker_datas: list[bytes] = []
    for number, (group, data) in enumerate(list(table.topic_entries(topic)), 1):
        if number % GROUPS_PER_STEP == 0:
            yield
        if group.addresses:
            broker_data, queue_data = _encoded(group)
            broker_datas.append(broker_data)
            queue_datas.append(queue_data + _queue_fields(data))
    if not broker_datas:
        return None
    order = b"" if order_config is None else b',"orderTopicConf":%b' % orjson.dumps(order_config)
    return b'{"brokerDatas":[%b],"filterServerTable":{},"queueDatas":[%b]%b}' % (
        b",".join(broker_datas), b",".join(queue_datas), order,
    )  # fmt: skip


def cluster_body(table: RouteTable) -> Steps[bytes]:
    """Return ClusterInfo, all groups and their names by cluster."""
    brokers: list[bytes] = []
    clusters: dict[str, list[str]] = {}
    for number, group in enumerate(list(table.groups()), 1):
        if number % GROUPS_PER_STEP == 0:
            yield
        if group.addresses:
            brokers.append(_named(group))
            clusters.setdefault(group.cluster, []).append(group.name)
    return b'{"brokerAddrTable":{%b},"clusterAddrTable":%b}' % (
        b",".join(brokers), orjson.dumps(clusters),
    )  # fmt: skip


def changes_body(table: RouteTable, changes: Changes) -> bytes:
    """Return the changed groups with their addresses, without those that ended, and topics."""
    groups = filter(None, (table.group(name) for name in sorted(changes.groups)))
    brokers = b",".join(_named(group) for group in groups if group.addresses)
    return b'{"brokers":{%b},"topics":%b}' % (brokers, orjson.dumps(sorted(changes.topics)))


def member_body(table: RouteTable, cluster: str, broker_name: str) -> bytes:
    """Return BrokerMemberGroup, without addresses for an unknown group."""
    group = table.group(broker_name)
    known = group is not None and group.cluster == cluster
    member = {
        "brokerAddrs": _addresses(group) if group is not None and known else {},
        "brokerName": broker_name,
        "cluster": cluster,
    }
    return orjson.dumps({"brokerMemberGroup": member})


def all_topics_body(table: RouteTable) -> Steps[bytes]:
    names = table.names()
    result: list[str] = []
    for start in range(0, len(names), NAMES_PER_STEP):
        result += filter(table.has_topic, names[start : start + NAMES_PER_STEP])
        yield
    return (yield from topic_list_body(result))


def topic_list_body(topics: Sequence[str], broker_address: str = "") -> Steps[bytes]:
    parts = []
    for start in range(0, len(topics), NAMES_PER_STEP):
        parts.append(orjson.dumps(topics[start : start + NAMES_PER_STEP])[1:-1])
        yield
    address = b'"brokerAddr":%s,' % orjson.dumps(broker_address) if broker_address else b""
    return b'{%s"topicList":[%s]}' % (address, b",".join(parts))


def system_topics_body(table: RouteTable) -> Steps[bytes]:
    """Return the names of clusters and brokers, which are system topics at Apache's."""
    names: dict[str, None] = {}  # ordered, without duplicates
    some_address = ""
    for group in table.groups():
        names[group.cluster] = None
        names[group.name] = None
        some_address = some_address or next(iter(group.addresses.values()), "")
    return (yield from topic_list_body(list(names), some_address))


def cluster_topics_body(table: RouteTable, cluster: str) -> Steps[bytes]:
    result: dict[str, None] = {}
    for group in [group for group in table.groups() if group.cluster == cluster]:
        topics = list(group.topics)
        for start in range(0, len(topics), NAMES_PER_STEP):
            result.update(dict.fromkeys(topics[start : start + NAMES_PER_STEP]))
            yield
    return (yield from topic_list_body(list(result)))


def unit_topics_body(table: RouteTable, requested: int, refused: int = 0) -> Steps[bytes]:
    """Return TopicList of topics with `requested` and without `refused` flags on some group."""
    result, seen = [], 0
    for topic in table.names():
        seen += 1
        for _, data in table.topic_entries(topic):
            seen += 1
            if data.sys_flag & requested and not data.sys_flag & refused:
                result.append(topic)
                break
        if seen > NAMES_PER_STEP:
            seen = 0
            yield
    return (yield from topic_list_body(result))


def _named(group: BrokerGroup) -> bytes:
    return b"%b:%b" % (orjson.dumps(group.name), _encoded(group)[0])


def _encoded(group: BrokerGroup) -> tuple[bytes, bytes]:
    """Return the group's BrokerData, and the start of its QueueDatas, encoded once per change."""
    if group.encoded is None:
        data = {
            "brokerAddrs": _addresses(group),
            "brokerName": group.name,
            "cluster": group.cluster,
            "enableActingMaster": False,
        }
        if group.raft:
            # Our client sends to replicas besides id 0 only with this flag; Apache's clients
            # ignore it.
            data["raftGroup"] = True
        group.encoded = orjson.dumps(data), b'{"brokerName":%b,' % orjson.dumps(group.name)
    return group.encoded


@lru_cache(QUEUE_FIELDS_MAX)
def _queue_fields(data: QueueData) -> bytes:
    fields = {
        "perm": data.perm,
        "readQueueNums": data.read_queue_count,
        "topicSynFlag": data.sys_flag,  # the spelling of clients before 4.9
        "topicSysFlag": data.sys_flag,
        "writeQueueNums": data.write_queue_count,
    }
    return orjson.dumps(fields)[1:]


def _addresses(group: BrokerGroup) -> dict[str, str]:
    return {str(number): group.addresses[number] for number in sorted(group.addresses)}
