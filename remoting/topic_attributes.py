"""A topic's attributes (TopicConfig.attributes) and the type of a message.

Names, values and rules are Apache's (5.3). `message.type` is the type of a topic's messages;
RocketMQ 5 clients send no other type. The remaining attributes accept only values that brokers here
implement. BatchCQ is a form of Apache's ConsumeQueue that clients do not see; a topic with it is
stored like any other. Pure, without I/O.

    queue.type        SimpleCQ BatchCQ                             only when a topic is made
    cleanup.policy    DELETE                                       only when a topic is made
    message.type      NORMAL FIFO DELAY TRANSACTION PRIORITY MIXED UNSPECIFIED; absent: NORMAL
    reserve.time      -1: as long as the broker keeps its files
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MESSAGE_TYPE = "message.type"
NORMAL = "NORMAL"
FIFO = "FIFO"
MIXED = "MIXED"
MESSAGE_TYPES = (NORMAL, FIFO, "DELAY", "TRANSACTION", "PRIORITY", MIXED)
UNSPECIFIED = "UNSPECIFIED"  # accepted by Apache; no message has this type
TRAN_MSG = "TRAN_MSG"
LATER = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
CHANGES_MAX = 100  # per request


class AttributesRefused(ValueError):
    """An impossible change of attributes."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute's possible values. `changeable` also after the topic's creation."""

    values: tuple[str, ...]
    changeable: bool


ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(("SimpleCQ", "BatchCQ"), False),
    "cleanup.policy": Attribute(("DELETE",), False),
    MESSAGE_TYPE: Attribute((*MESSAGE_TYPES, UNSPECIFIED), True),
    "reserve.time": Attribute(("-1",), True),
}


def parse_changes(text: str) -> dict[str, str]:
    """Parse `+name=value,-name` of UPDATE_AND_CREATE_TOPIC into values by signed name, "" for a
    minus. Raises AttributesRefused."""
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if equals and not (name.startswith("+") and value):
            raise AttributesRefused(f"add/alter attribute format is wrong: {name}")
        if not equals and not name.startswith("-"):
            raise AttributesRefused(f"delete attribute format is wrong: {name}")
        if name in changes:
            raise AttributesRefused(f"key duplication: {name}")
        changes[name] = value
    return changes


def changed(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's attributes after changes by signed name. `current` None means a new topic.
    Raises AttributesRefused."""
    if len(changes) > CHANGES_MAX:
        raise AttributesRefused(f"more than {CHANGES_MAX} changes at once")
    after = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name or sign not in ("+", "-"):
            raise AttributesRefused(f"kv string format wrong: {signed}")
        if name in seen:
            raise AttributesRefused(f"alter duplication key. key: {name}")
        seen.add(name)
        _check(name, sign, value, current)
        if sign == "+":
            after[name] = value
        else:
            del after[name]
    return after


def _check(name: str, sign: str, value: str, current: Mapping[str, str] | None) -> None:
    if sign == "-" and current is None:
        raise AttributesRefused(
            f"only add attribute is supported while creating topic. key: {name}"
        )
    if sign == "-" and name not in (current or {}):
        raise AttributesRefused(f"attempt to delete a nonexistent key: {name}")
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        raise AttributesRefused(f"unsupported key: {name}")
    repeated = sign == "+" and current is not None and current.get(name) == value
    if current is not None and not attribute.changeable and not repeated:
        raise AttributesRefused(f"attempt to update an unchangeable attribute. key: {name}")
    if sign == "+" and value not in attribute.values:
        allowed = ", ".join(attribute.values)
        raise AttributesRefused(f"{name}={value}: value is not in set: [{allowed}]")


def is_ordered_topic(order: bool, message_type: str) -> bool:
    """Return whether a topic's messages are ordered by key, so that more queues would change the
    queue of a key. `order` is the topic's flag."""
    return order or message_type == FIFO


def type_of(properties: Mapping[str, str]) -> str:
    """Return the message type by its properties; by Apache's rule there is only one."""
    if properties.get(TRAN_MSG, "").lower() == "true":
        return "TRANSACTION"
    if any(name in properties for name in LATER):
        return "DELAY"
    if SHARDING_KEY in properties:
        return FIFO
    return "PRIORITY" if PRIORITY in properties else NORMAL


def type_problem(requested: str, given: str) -> str:
    """Return why a message of type `given` may not be sent to a topic of type `requested`, or
    ''."""
    if requested in (given, MIXED):
        return ""
    reason = f"the expected type is {requested}, but actual type is {given}"
    return f"TopicMessageType validate failed, {reason}"
