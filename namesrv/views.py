"""The name server's answers as bodies: plain data in Apache's shapes, encoded as JSON. Pure.

Broker ids are quoted keys everywhere; every fastjson version reads those.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from raftmq.namesrv.routes import BrokerGroup, RouteTable


def route_body(table: RouteTable, topic: str, order_config: str | None) -> bytes | None:
    """Return TopicRouteData of a topic; None if no group with addresses has it."""
    by_broker = table.queues(topic)
    if not by_broker:
        return None
    queue_datas: list[dict[str, Any]] = []
    broker_datas: list[dict[str, Any]] = []
    for name, data in by_broker.items():
        group = table.group(name)
        if group is None or not group.addresses:
            continue
        queue_datas.append(
            {
                "brokerName": name,
                "perm": data.perm,
                "readQueueNums": data.read_queue_count,
                "topicSynFlag": data.sys_flag,  # how clients before 4.9 spell it
                "topicSysFlag": data.sys_flag,
                "writeQueueNums": data.write_queue_count,
            }
        )
        broker_datas.append(_broker_data(group))
    if not broker_datas:
        return None
    route: dict[str, Any] = {
        "brokerDatas": broker_datas,
        "filterServerTable": {},
        "queueDatas": queue_datas,
    }
    if order_config is not None:
        route["orderTopicConf"] = order_config
    return orjson.dumps(route)


def cluster_body(table: RouteTable) -> bytes:
    """Return ClusterInfo: all groups, and their names by cluster."""
    brokers: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    for group in table.groups():
        if group.addresses:
            brokers[group.name] = _broker_data(group)
            clusters.setdefault(group.cluster, []).append(group.name)
    return orjson.dumps({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def member_body(table: RouteTable, cluster: str, broker_name: str) -> bytes:
    """Return BrokerMemberGroup; without addresses for an unknown group."""
    group = table.group(broker_name)
    known = group is not None and group.cluster == cluster
    member = {
        "brokerAddrs": _addresses(group) if group is not None and known else {},
        "brokerName": broker_name,
        "cluster": cluster,
    }
    return orjson.dumps({"brokerMemberGroup": member})


def topic_list_body(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Return TopicList."""
    fields: dict[str, Any] = {"topicList": list(topics)}
    if broker_address:
        fields["brokerAddr"] = broker_address
    return orjson.dumps(fields)


def system_topics_body(table: RouteTable) -> bytes:
    """Return the names that Apache counts as system topics here: of clusters and of brokers."""
    names: dict[str, None] = {}  # ordered, without repeats
    some_address = ""
    for group in table.groups():
        names[group.cluster] = None
        names[group.name] = None
        some_address = some_address or next(iter(group.addresses.values()), "")
    return topic_list_body(names, some_address)


def cluster_topics_body(table: RouteTable, cluster: str) -> bytes:
    """Return TopicList of one cluster."""
    topics: set[str] = set()
    for group in table.groups():
        if group.cluster == cluster:
            topics |= group.topics
    return topic_list_body(sorted(topics))


def unit_topics_body(table: RouteTable, wanted: int, refused: int = 0) -> bytes:
    """Return TopicList of topics with `wanted` and without `refused` flags on some group."""
    found = [
        topic
        for topic in table.topics()
        if any(
            data.sys_flag & wanted and not data.sys_flag & refused
            for data in (table.queues(topic) or {}).values()
        )
    ]
    return topic_list_body(sorted(found))


def _broker_data(group: BrokerGroup) -> dict[str, Any]:
    data = {
        "brokerAddrs": _addresses(group),
        "brokerName": group.name,
        "cluster": group.cluster,
        "enableActingMaster": False,
    }
    # For our client, which sends to other replicas than id 0 only there; Apache's do not look.
    return data | {"raftGroup": True} if group.raft else data


def _addresses(group: BrokerGroup) -> dict[str, str]:
    return {str(number): group.addresses[number] for number in sorted(group.addresses)}
