"""Traces a message over replicas and consumer groups.

A message is *on* a replica if the replica's log contains its range, and *durable* if the fsynced
range does. It is *consumed* by a group with an offset past the message, even if processing failed.
It is *passed* if the subscription of the group's members does not match its tag.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

CONSUMER_GROUPS_MAX = 200  # per trace
_ID_LENGTH_V4, _ID_LENGTH_V6 = 32, 56  # hex digits of offsetMsgId (address, port, offset)

Item = dict[str, Any]


def store_host(message_id: str) -> str:
    """Return host:port of the broker that stored the message; "" for an invalid offsetMsgId."""
    digits = {_ID_LENGTH_V4: 8, _ID_LENGTH_V6: 32}.get(len(message_id))
    if digits is None:
        return ""
    try:
        address = ipaddress.ip_address(bytes.fromhex(message_id[:digits]))
        port = int.from_bytes(bytes.fromhex(message_id[digits : digits + 8]), "big")
    except ValueError:
        return ""
    return f"{address}:{port}"


def name_of(item: Mapping[str, Any]) -> str:
    """Return the name of a consumer or subscription group, under either key."""
    return str(item.get("name") or item.get("groupName") or item.get("group") or "")


def end_offset(message: Mapping[str, Any]) -> int | None:
    """Return the message's end in its group's log, or None."""
    start = message.get("commitLogOffset", message.get("physicalOffset"))
    size = message.get("storeSize", message.get("size", 1))
    if type(start) is not int or type(size) is not int:
        return None
    return start + max(1, size)


def on_replica(broker: Mapping[str, Any], end: int | None) -> Item:
    """Return whether a broker (an entry of GET /cluster) has the message that ends at `end`."""
    node = broker.get("node") or {}
    log = node.get("commitLog") or {}
    result: Item = {"name": broker["name"], "address": broker["address"], "role": node.get("role")}
    reached, durable = log.get("maxOffset"), log.get("durableOffset")
    if not node or end is None or type(reached) is not int:
        return result | {"state": "unknown", "error": broker.get("error")}
    if end > reached:
        return result | {"state": "missing", "behindBytes": end - reached}
    if type(log.get("minOffset")) is int and end <= log["minOffset"]:
        return result | {"state": "deleted"}
    is_durable = type(durable) is int and durable >= end
    return result | {"state": "durable" if is_durable else "written"}


def progress_of(name: str, view: Mapping[str, Any], message: Mapping[str, Any]) -> Item | None:
    """Return a group's progress in the message's queue; None if it does not read it."""
    offset = message.get("queueOffset")
    for queue in view.get("queues") or ():
        same = queue.get("topic") == message.get("topic")
        if same and queue.get("queueId") == message.get("queueId"):
            at = queue.get("consumerOffset")
            if type(at) is not int or type(offset) is not int or at < 0:
                return {"name": name, "state": "never", "consumerOffset": None}
            ahead = max(0, offset - at)
            topic = str(message.get("topic"))
            expression = (view.get("subscriptions") or {}).get(topic)
            state = "consumed" if at > offset else "waiting"
            if not takes(view, topic, message.get("tags")):
                state = "passed"
            return {
                "name": name,
                "state": state,
                "expression": expression,
                "consumerOffset": at,
                "messagesBefore": ahead,
                "clients": len(view.get("clients") or ()),
                "lastTimeMs": queue.get("lastTimeMs"),
            }
    return None


def takes(view: Mapping[str, Any], topic: str, tag: Any) -> bool:
    """Return whether a group's subscription matches the tag, according to its view. SQL92
    expressions count as a match."""
    expression = (view.get("subscriptions") or {}).get(topic)
    kind = (view.get("expressionTypes") or {}).get(topic, "TAG")
    if not isinstance(expression, str) or kind != "TAG":
        return True
    requested = {part.strip() for part in expression.split("||")} - {""}
    return not requested or "*" in requested or tag in requested


MERGED = ("clients", "queues", "lag", "inFlight")  # of the groups' views


def merged_consumers(name: str, by_group: Mapping[str, Mapping[str, Any]]) -> Item:
    """Merge the broker groups' views of a consumer group, with distinct clients, queues with their
    broker group, and lag by topic and in total."""
    clients: dict[str, Item] = {}
    queues: list[Item] = []
    first: Item = {}
    for group in sorted(by_group):
        view = by_group[group]
        first = {k: v for k, v in view.items() if k not in MERGED} | first
        for client in view.get("clients") or ():
            clients.setdefault(str(client.get("clientId") or client.get("address")), dict(client))
        queues += [{"group": group, **queue} for queue in view.get("queues") or ()]
    lag: dict[str, int] = {}
    in_flight = 0
    for queue in queues:
        behind, popped = queue.get("lag"), queue.get("inFlight")
        topic = str(queue.get("topic"))
        lag[topic] = lag.get(topic, 0) + (behind if type(behind) is int else 0)
        in_flight += popped if type(popped) is int else 0
    return first | {
        "name": name,
        "clients": list(clients.values()),
        "queues": queues,
        "lagByTopic": lag,
        "lag": sum(lag.values()),
        "inFlight": in_flight,
    }
