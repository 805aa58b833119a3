"""Commands for consumer groups and clients.

updateSubGroup, deleteSubGroup, setConsumeMode, consumerProgress, consumerStatus,
consumerConnection, producerConnection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from raftmq.client.admin import Admin
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.message import MessageQueue
from raftmq.ops.strict_json import loads
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.consistency import Wishes, differences, wishes
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX

from .command import (
    Arguments,
    CommandError,
    Done,
    Fields,
    Kind,
    Section,
    Table,
    show_time,
)
from .commands import GROUP_SETTINGS
from .targets import no_leader, writable

ABSENT = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)  # without clients

# Fields of Apache's SubscriptionGroupConfig. Texts are parsed, further values are passed on.
RENAMED = {"notifyConsumerIdsChanged": "notifyConsumerIdsChangedEnable"}  # flag → field
DEFAULTS = {"consumeBroadcastEnable": False, "consumeFromMinEnable": False}  # of Apache's tool


async def update_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name = arguments.text("groupName")
    bean: dict[str, Any] = {"groupName": name, **DEFAULTS}
    for flag in GROUP_SETTINGS:
        if flag.kind is not Kind.TEXT and arguments.given(flag.long):
            read = arguments.integer if flag.kind is Kind.INTEGER else arguments.boolean
            bean[RENAMED.get(flag.long, flag.long)] = read(flag.long)
    if arguments.text("groupRetryPolicy"):
        try:
            bean["groupRetryPolicy"] = loads(arguments.text("groupRetryPolicy"))
        except orjson.JSONDecodeError as error:
            raise CommandError(f"--groupRetryPolicy is no JSON: {error}", usage=True) from error
    if arguments.text("attributes"):
        bean["attributes"] = _attributes(arguments.text("attributes"))
    addresses = await writable(admin, arguments)
    await at_each(addresses, lambda address: admin.group.put(address, bean))
    return [Done(f"group {name} is as wanted at {', '.join(addresses)}", {"group": name})]


def _attributes(text: str) -> dict[str, str]:
    """Parse `+a=b,-c`; the keys keep their signs, as brokers expect. Raises CommandError."""
    result = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key[:1] not in ("+", "-"):
            raise CommandError(f"--attributes: {part!r} begins with neither + nor -", usage=True)
        result[key] = value
    return result


async def delete_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name, offsets = arguments.text("groupName"), bool(arguments.boolean("removeOffset"))
    addresses = await writable(admin, arguments)
    exists = [name in await admin.group.configs(address) for address in addresses]
    if not offsets and not any(exists):  # a deleted group may have left offsets
        raise CommandError(f"there is no group {name} at {', '.join(addresses)}")

    async def delete(address: str) -> None:
        await admin.group.delete(address, name, offsets=offsets)
        if arguments.text("clusterName"):
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                await admin.topic.delete(address, prefix + name)

    await at_each(addresses, delete)
    if arguments.text("clusterName"):
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            await admin.name_server.forget_topic(prefix + name, arguments.text("clusterName"))
    return [Done(f"group {name} deleted at {', '.join(addresses)}", {"group": name})]


async def set_mode(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    group, topic = arguments.text("groupName"), arguments.text("topicName")
    mode, share = arguments.text("mode"), arguments.integer("popShareQueueNum") or 0
    addresses = await writable(admin, arguments)
    change = admin.group.set_mode
    await at_each(addresses, lambda address: change(address, group, topic, mode, share=share))
    done = f"group {group} gets {topic} by {mode} at {', '.join(addresses)}"
    return [Done(done, {"group": group, "topic": topic, "mode": mode, "popShareQueueNum": share})]


async def progress(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    group = arguments.text("groupName")
    if group:
        return await _progress_of(admin, arguments, group)
    rows, complete = [], True
    for name in groups_with_retries(await admin.cluster.topics()):
        row, entire = await _summary(admin, name)
        rows.append(row)
        complete = complete and entire
    columns = ("group", "count", "version", "type", "model", "tps", "diff")
    return [Table(rows, columns=columns, complete=complete)]


def groups_with_retries(topics: Iterable[str]) -> list[str]:
    """Return the groups of retry topics. A pop consumer group has a retry topic per topic
    (`pop_retry_topic`), which is not the group's name."""
    known = set(topics)
    names = {topic.removeprefix(RETRY_PREFIX) for topic in known if topic.startswith(RETRY_PREFIX)}
    of_pops = {
        name
        for name in names
        for at, letter in enumerate(name)
        if letter == "_" and name[:at] in names and name[at + 1 :] in known
    }
    return sorted(names - of_pops)


async def _summary(admin: Admin, group: str) -> tuple[dict[str, Any], bool]:
    """Return a group's row, and whether all brokers answered."""
    connection = await _connection(admin, group)
    members = connection.get("connectionSet") or []
    row = {
        "group": group,
        "count": len(members),
        "version": max((int(member.get("version", 0)) for member in members), default=""),
        "type": connection.get("consumeType", ""),
        "model": connection.get("messageModel", ""),
    }
    try:
        stats = await admin.group.stats(group)
    except ClientError as error:
        return row | {"tps": None, "diff": error.message}, isinstance(error, BrokerRefused)
    if stats.headless:
        return row | {"tps": None, "diff": no_leader(stats.headless)}, False
    diff = sum(queue.behind for queue in stats.queues.values())
    return row | {"tps": stats.tps, "diff": diff}, True


async def _progress_of(admin: Admin, arguments: Arguments, group: str) -> Sequence[Section]:
    topic = arguments.text("topicName")
    stats = await admin.group.stats(group, topic)
    clients: Mapping[MessageQueue, str] = {}
    with_clients = bool(arguments.boolean("showClientIP"))
    if with_clients:
        clients = await _who_has(admin, group)
    rows = []
    for queue, at in sorted(stats.queues.items()):
        row: dict[str, Any] = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "brokerOffset": at.broker_offset,
            "consumerOffset": at.consumer_offset,
        }
        if with_clients:
            row["client"] = clients.get(queue, "")
        row |= {
            "diff": at.behind,
            "inflight": at.pull_offset - at.consumer_offset,
            "lastTime": show_time(at.last_ms),
        }
        rows.append(row)
    for name in stats.headless:
        row = {"topic": topic, "broker": name, "queue": None}
        row |= {"brokerOffset": None, "consumerOffset": None}
        if with_clients:
            row["client"] = ""
        rows.append(row | {"diff": no_leader([name]), "inflight": None, "lastTime": ""})
    totals: dict[str, Any] = {
        "consumeTps": stats.tps,
        "diffTotal": sum(at.behind for at in stats.queues.values()),
        "inflightTotal": sum(at.pull_offset - at.consumer_offset for at in stats.queues.values()),
    }
    if stats.headless:  # a partial total would mislead
        totals = dict.fromkeys(totals)
    return [Table(rows, "queues", complete=not stats.headless), Fields(totals, "total")]


async def _who_has(admin: Admin, group: str) -> dict[MessageQueue, str]:
    result = {}
    for address in (await admin.cluster.leaders()).values():
        connection = await _if_any(admin.group.connection(address, group))
        for member in connection.get("connectionSet") or []:
            info = await admin.group.running_info(address, group, str(member["clientId"]))
            for queue in info.get("mqTable") or {}:
                if isinstance(queue, MessageQueue):
                    result[queue] = str(member.get("clientAddr", "")).rpartition(":")[0]
    return result


async def _if_any(connections: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return a group's connections at a broker, or an empty answer."""
    try:
        return await connections
    except BrokerRefused as error:
        if error.code not in ABSENT:
            raise
        return {}


async def _connection(admin: Admin, group: str, address: str = "") -> dict[str, Any]:
    """Return the group's connections (203) at the first broker that has any, or an empty answer."""
    for candidate in [address] if address else (await admin.cluster.leaders()).values():
        connection = await _if_any(admin.group.connection(candidate, group))
        if connection:
            return connection
    return {}


async def consumer_connection(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    group = arguments.text("consumerGroup")
    connection = await _connection(admin, group, arguments.text("brokerAddr"))
    if not connection:
        raise CommandError(f"no consumer of group {group} is connected")
    subscriptions = [
        {"topic": topic, "expression": data.get("subString", "")}
        for topic, data in sorted((connection.get("subscriptionTable") or {}).items())
    ]
    names = ("consumeType", "messageModel", "consumeFromWhere")
    about = {name: connection.get(name, "") for name in names}
    return [
        Table(_members(connection), "clients"),
        Table(subscriptions, "subscriptions"),
        Fields(about, "group"),
    ]


def _members(connection: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "clientId": member.get("clientId", ""),
                "address": member.get("clientAddr", ""),
                "language": member.get("language", ""),
                "version": member.get("version", 0),
            }
            for member in connection.get("connectionSet") or []
        ),
        key=lambda row: str(row["clientId"]),
    )


async def producer_connection(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    group, topic = arguments.text("producerGroup"), arguments.text("topic")
    rows: dict[str, dict[str, Any]] = {}
    for address in (await admin.cluster.leaders_of(topic)).values():
        connection = await _if_any(admin.broker.producer_connection(address, group))
        rows |= {str(row["clientId"]): row for row in _members(connection)}
    if not rows:
        raise CommandError(f"no producer of group {group} is connected")
    return [Table(list(rows.values()))]


async def consumer_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    group, requested = arguments.text("consumerGroup"), arguments.text("clientId")
    address = arguments.text("brokerAddr")
    stack = arguments.on("jstack")
    addresses = [address] if address else list((await admin.cluster.leaders()).values())
    infos: dict[str, dict[str, Any]] = {}
    members: dict[str, dict[str, Any]] = {}
    for candidate in addresses:
        connection = await _if_any(admin.group.connection(candidate, group))
        for row in _members(connection):
            client_id = str(row["clientId"])
            if requested in ("", client_id) and client_id not in infos:
                members[client_id] = row
                infos[client_id] = await admin.group.running_info(
                    candidate, group, client_id, stack=stack
                )
    if not infos:
        missing = f"client {requested} of group" if requested else "consumer of group"
        raise CommandError(f"no {missing} {group} is connected")
    sections: list[Section] = [Table([members[c] for c in sorted(members)], "clients")]
    for client_id in sorted(infos):
        sections += _running(client_id, infos[client_id], alone=len(infos) == 1)
    differing = differences({client: _wishes(info) for client, info in infos.items()})
    sections.append(Fields({"same": not differing}, "subscriptions"))
    if differing:
        rows = [
            {"clientId": client, **item._asdict()}
            for client, result in differing.items()
            for item in result
        ]
        sections.append(Table(rows, "differences"))
    return sections


def _running(client_id: str, info: Mapping[str, Any], *, alone: bool) -> list[Section]:
    prefix = "" if alone else f"{client_id} "
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "commitOffset": state.get("commitOffset", 0),
            "cached": state.get("cachedMsgCount", 0),
            "locked": bool(state.get("locked")),
            "dropped": bool(state.get("droped")),
            "lastPull": show_time(int(state.get("lastPullTimestamp") or 0)),
            "lastConsume": show_time(int(state.get("lastConsumeTimestamp") or 0)),
        }
        for queue, state in sorted((info.get("mqTable") or {}).items())
    ]
    sections: list[Section] = [
        Fields(dict(sorted((info.get("properties") or {}).items())), f"{prefix}properties"),
        Table(queues, f"{prefix}queues"),
    ]
    if info.get("jstack"):
        sections.append(Fields({"jstack": info["jstack"]}, f"{prefix}stack"))
    return sections


def _wishes(info: Mapping[str, Any]) -> Wishes:
    """Return subscriptions in comparable form; different ones in a group lose messages."""
    return wishes(
        (str(item.get("topic")), str(item.get("expressionType") or ""), str(item.get("subString")))
        for item in info.get("subscriptionSet") or []
    )
