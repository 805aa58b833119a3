"""Commands for topics.

topicList, topicStatus, topicRoute, topicClusterList, updateTopic, updateTopicPerm, deleteTopic,
emptyTopic, writers, deleteWriter, statsAll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.client.admin import Admin, headless, leaders_in
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused, NoRoute
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.definitions import PERM_TEXT
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX

from .command import (
    Arguments,
    CommandError,
    Done,
    Section,
    Table,
    show_time,
)
from .targets import leaders, leaders_of, no_leader, writable

UNIT_FLAG, UNIT_SUB_FLAG = 1, 2  # of topicSysFlag


async def topic_list(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topics = sorted(await admin.cluster.topics())
    if not arguments.on("clusterModel"):
        return [Table([{"topic": topic} for topic in topics], columns=("topic",))]
    rows, complete = [], True
    for topic in topics:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        try:
            brokers = await admin.cluster.groups_of(topic)
        except NoRoute:  # deleted in between, or a name server's own topic
            continue
        groups: set[str] = set()
        for leader in leaders_in(brokers).values():
            groups |= set(await admin.topic.groups(leader, topic))
        named = sorted(groups)
        if without := headless(brokers):
            named.append(no_leader(without))
            complete = False
        for cluster in sorted({broker.cluster for broker in brokers.values()}):
            rows += [
                {"cluster": cluster, "topic": topic, "group": group} for group in named or [""]
            ]
    return [Table(rows, columns=("cluster", "topic", "group"), complete=complete)]


async def topic_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic = arguments.text("topic")
    result = await admin.topic.offsets(topic)
    rows: list[dict[str, Any]] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "minOffset": offset.min_offset,
            "maxOffset": offset.max_offset,
            "lastUpdated": show_time(offset.last_update_ms),
        }
        for queue, offset in sorted(result.items())
    ]
    without = headless(await admin.cluster.groups_of(topic))
    rows += [
        {"broker": name, "queue": None, "minOffset": None, "maxOffset": no_leader([name]),
         "lastUpdated": ""}
        for name in without
    ]  # fmt: skip
    return [Table(rows, complete=not without)]


async def topic_route(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    route = await admin.cluster.route(arguments.text("topic"))
    brokers = {broker.broker_name: broker for broker in route.brokers}
    queues: list[dict[str, Any]] = []
    for data in sorted(route.queues, key=lambda q: q.broker_name):
        broker = brokers.get(data.broker_name)
        queues.append(
            {
                "cluster": broker.cluster if broker else "",
                "broker": data.broker_name,
                "readQueues": data.read_count,
                "writeQueues": data.write_count,
                "perm": PERM_TEXT.get(data.perm & 6, str(data.perm)),
            }
        )
    if arguments.on("list"):
        return [Table(queues)]
    addresses = [
        {"broker": name, "id": broker_id, "address": address}
        for name, broker in sorted(brokers.items())
        for broker_id, address in sorted(broker.addresses.items())
    ]
    return [Table(queues, "queues"), Table(addresses, "brokers")]


async def topic_cluster_list(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    route = await admin.cluster.route(arguments.text("topic"))
    clusters = sorted({broker.cluster for broker in route.brokers})
    return [Table([{"cluster": cluster} for cluster in clusters])]


async def update_topic(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic = arguments.text("topic")
    order = bool(arguments.boolean("order"))
    read, write = arguments.integer("readQueueNums"), arguments.integer("writeQueueNums")
    flag = UNIT_FLAG * bool(arguments.boolean("unit"))
    flag |= UNIT_SUB_FLAG * bool(arguments.boolean("hasUnitSub"))
    perm = arguments.integer("perm")
    header = TopicHeader(
        topic,
        8 if read is None else read,
        8 if write is None else write,
        6 if perm is None else perm,
        sys_flag=flag,
        order=order,
        attributes=arguments.text("attributes"),
        keep_messages=arguments.on("keepMessages") or None,
    )
    addresses = await writable(admin, arguments)
    await at_each(addresses, lambda address: admin.topic.put(address, header))
    if order and arguments.text("clusterName"):
        names = [r.broker_name for r in await leaders(admin, arguments.text("clusterName"))]
        counts = dict.fromkeys(names, header.write_queue_count)
        await admin.name_server.put_order(topic, counts)
    values = {"topic": topic, "brokers": addresses, "readQueues": header.read_queue_count}
    values |= {"writeQueues": header.write_queue_count, "perm": header.perm, "order": order}
    return [Done(f"topic {topic} is as wanted at {', '.join(addresses)}", values)]


async def update_perm(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, perm = arguments.text("topic"), arguments.integer("perm")
    assert perm is not None  # required
    addresses = await writable(admin, arguments)

    async def change(address: str) -> dict[str, Any]:
        bean = await admin.topic.config(address, topic)
        before = int(bean.get("perm", 6))
        await admin.topic.put(address, TopicHeader.of_bean(topic, bean, perm))
        return {"address": address, "from": before, "to": perm}

    return [Table(list((await at_each(addresses, change)).values()))]


async def delete_topic(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, cluster = arguments.text("topic"), arguments.text("clusterName")
    addresses = [replica.address for replica in await leaders(admin, cluster)]
    if not await _is_anywhere(admin, topic, addresses):
        raise CommandError(f"cluster {cluster} has no topic {topic}")
    await at_each(addresses, lambda address: admin.topic.delete(address, topic))
    await admin.name_server.forget_topic(topic, cluster)
    await admin.name_server.delete_order(topic)
    values = {"topic": topic, "brokers": addresses}
    return [Done(f"topic {topic} deleted from cluster {cluster}", values)]


async def empty_topic(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, cluster = arguments.text("topic"), arguments.text("clusterName")
    addresses = [replica.address for replica in await leaders(admin, cluster)]
    if not await _is_anywhere(admin, topic, addresses):
        raise CommandError(f"cluster {cluster} has no topic {topic}")
    emptied = await at_each(addresses, lambda address: admin.topic.empty(address, topic))
    return [Table([{"address": address, **had} for address, had in emptied.items()])]


async def _is_anywhere(admin: Admin, topic: str, addresses: Sequence[str]) -> bool:
    """Return whether a broker or a name server may have the topic."""
    for address in addresses:
        try:
            await admin.topic.config(address, topic)
        except BrokerRefused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                continue
        return True  # also for Apache's 4.x brokers, which reject the request
    return topic in await admin.cluster.topics()


async def writers(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic = arguments.text("topic")
    rows = [
        {
            "broker": result["broker"],
            "writer": result["writer"],
            "epoch": result["epoch"],
            "lastTime": show_time(result["lastTimeMs"]),
            "queue": queue,
            "batch": batch,
            "sequence": sequence,
        }
        for result in await admin.topic.writers(topic)
        for queue, (batch, sequence) in (result["watermarks"] or {"": ("", "")}).items()
    ]
    without = headless(await admin.cluster.groups_of(topic))
    rows += [
        {"broker": name, "writer": "", "epoch": None, "lastTime": no_leader([name]),
         "queue": "", "batch": "", "sequence": ""}
        for name in without
    ]  # fmt: skip
    columns = ("broker", "writer", "epoch", "lastTime")
    return [Table(rows, columns=columns, complete=not without)]


async def delete_writer(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, writer = arguments.text("topic"), arguments.text("writer")
    await leaders_of(admin, topic)  # either all broker groups delete it or none
    if not any(result["writer"] == writer for result in await admin.topic.writers(topic)):
        raise CommandError(f"topic {topic} has no writer {writer}")
    await admin.topic.delete_writer(topic, writer)
    values = {"topic": topic, "writer": writer}
    return [Done(f"writer {writer} of topic {topic} deleted", values)]


async def stats_all(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    only, active = arguments.text("topic"), arguments.on("activeTopic")
    rows, complete = [], True
    for topic in sorted(await admin.cluster.topics()):
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or only not in ("", topic):
            continue
        try:
            broker_groups = await admin.cluster.groups_of(topic)
        except NoRoute:
            continue
        addresses = list(leaders_in(broker_groups).values())
        without = headless(broker_groups)
        complete = complete and not without
        came, came_day, groups = 0.0, 0, set[str]()
        for address in addresses:
            stats = await admin.broker.stats(address, "TOPIC_PUT_NUMS", topic)
            if stats is not None:
                came, came_day = came + stats.minute.tps, came_day + stats.day.total
            groups |= set(await admin.topic.groups(address, topic))
        for group in sorted(groups) or [""]:
            row = {"topic": topic, "group": group, "inTps": came, "in24h": came_day}
            row |= await _taken(admin, addresses, topic, group)
            if without:
                row["behind"] = no_leader(without)
            if not active or without or came_day or row["out24h"]:
                rows.append(row)
    if only and not rows and not active:
        raise CommandError(f"there is no topic {only!r}")
    columns = ("topic", "group", "inTps", "in24h", "behind", "outTps", "out24h")
    return [Table(rows, columns=columns, complete=complete)]


async def _taken(admin: Admin, addresses: Sequence[str], topic: str, group: str) -> dict[str, Any]:
    if not group:
        return {"behind": None, "outTps": None, "out24h": None}
    behind: int | None = None
    try:
        stats = await admin.group.stats(group, topic)
        behind = sum(progress.behind for progress in stats.queues.values())
    except BrokerRefused:  # a deleted group's remaining offsets
        pass
    tps, day = 0.0, 0
    for address in addresses:
        result = await admin.broker.stats(address, "GROUP_GET_NUMS", f"{topic}@{group}")
        if result is not None:
            tps, day = tps + result.minute.tps, day + result.day.total
    return {"behind": behind, "outTps": tps, "out24h": day}
