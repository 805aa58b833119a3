"""The configuration of subscription groups, and their replicated table.

The snapshot is Apache's subscriptionGroup.json with its Raft index. Unknown fields of newer clients
are kept, so that a group reads back as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..errors import StateError
from .topics import DERIVED_TOPIC_LENGTH_MAX, RETRY_PREFIX
from .versioned import VersionedTable

GROUP_LENGTH_MAX = DERIVED_TOPIC_LENGTH_MAX - len(RETRY_PREFIX)  # with space for the retry prefix
EXTRA_FIELDS_MAX = 32  # per group
_CHARSET = re.compile(r"[%|a-zA-Z0-9_-]+")
_KNOWN = {
    "groupName",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "consumeMessageOrderly",
    "retryQueueNums",
    "retryMaxTimes",
    "brokerId",
    "whichBrokerWhenConsumeSlowly",
    "notifyConsumerIdsChangedEnable",
}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A consumer group's configuration."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = 1
    retry_times_max: int = 16
    broker_id: int = 0
    slow_broker_id: int = 1  # whichBrokerWhenConsumeSlowly
    notify_enable: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return Apache's SubscriptionGroupConfig bean."""
        return {
            **self.extra,
            "groupName": self.name,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "retryQueueNums": self.retry_queue_count,
            "retryMaxTimes": self.retry_times_max,
            "brokerId": self.broker_id,
            "whichBrokerWhenConsumeSlowly": self.slow_broker_id,
            "notifyConsumerIdsChangedEnable": self.notify_enable,
        }


def group_from_json(value: Mapping[str, Any]) -> SubscriptionGroup:
    """Read Apache's bean; raises StateError."""
    try:
        group = SubscriptionGroup(
            name=str(value["groupName"]),
            consume_enable=bool(value.get("consumeEnable", True)),
            consume_from_min_enable=bool(value.get("consumeFromMinEnable", True)),
            consume_broadcast_enable=bool(value.get("consumeBroadcastEnable", True)),
            consume_message_orderly=bool(value.get("consumeMessageOrderly", False)),
            retry_queue_count=int(value.get("retryQueueNums", 1)),
            retry_times_max=int(value.get("retryMaxTimes", 16)),
            broker_id=int(value.get("brokerId", 0)),
            slow_broker_id=int(value.get("whichBrokerWhenConsumeSlowly", 1)),
            notify_enable=bool(value.get("notifyConsumerIdsChangedEnable", True)),
            extra={key: part for key, part in value.items() if key not in _KNOWN},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"not a subscription group: {value!r}: {error!r}") from error
    problem = group_problem(group)
    if problem:
        raise StateError(problem)
    return group


def group_problem(group: SubscriptionGroup) -> str:
    """Return why this configuration is invalid, or ''."""
    if len(group.extra) > EXTRA_FIELDS_MAX:
        return f"group {group.name}: too many fields"
    try:
        orjson.dumps(group.to_json())
    except orjson.JSONEncodeError as error:  # for example a number of more than 64 bits
        return f"group {group.name}: {error}"
    return group_name_problem(group.name)


def group_name_problem(name: str) -> str:
    """Return why `name` is no valid group name, or ''."""
    if not name:
        return "the group name is empty"
    if len(name) > GROUP_LENGTH_MAX:
        return f"the group name is {len(name)} characters long, the longest is {GROUP_LENGTH_MAX}"
    if not _CHARSET.fullmatch(name):
        return f"the group name {name!r} has characters outside [%|a-zA-Z0-9_-]"
    return ""


class GroupTable(VersionedTable[SubscriptionGroup]):
    """Name → SubscriptionGroup, in JSON Apache's SubscriptionGroupWrapper (subscriptionGroup.json
    and the answer to 201)."""

    def __init__(self) -> None:
        super().__init__("subscriptionGroupTable", group_from_json, {"forbiddenTable": {}})
