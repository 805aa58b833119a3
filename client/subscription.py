"""A consumer's subscription to a topic by tags or a SQL92 expression.

The broker filters by the tag's hash. Tags may share a hash, so the client compares the strings
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.store.properties import tags_code

from .errors import BrokerRefused, ClientError

if TYPE_CHECKING:
    from .instance import ClientInstance

ALL = "*"
_TAGS = re.compile(rb"(?:^|\x02)TAGS\x01([^\x02]*)")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription. Empty `tags` mean every message; `version` is its creation time in ms."""

    topic: str
    expression: str
    expression_type: str
    tags: frozenset[str]
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return the SubscriptionData for a heartbeat."""
        return {
            "classFilterMode": False,
            "codeSet": sorted(tags_code(tag) for tag in self.tags),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }

    def selects_as(self, other: Subscription) -> bool:
        """Return whether both select the same messages by their expressions."""
        return replace(self, version=other.version) == other

    def subscribed_tags(self) -> frozenset[bytes] | None:
        """Return the tags as bytes, for comparison with records; None for all messages."""
        if not self.tags:
            return None
        return frozenset(tag.encode() for tag in self.tags)


def consumer_heartbeat(
    group: str,
    consume_type: str,
    message_model: str,
    consume_from: str,
    subscriptions: Iterable[Subscription],
) -> Mapping[str, Any]:
    data = {
        "groupName": group,
        "consumeType": consume_type,
        "messageModel": message_model,
        "consumeFromWhere": consume_from,
        "unitMode": False,
        "subscriptionDataSet": [subscription.to_json() for subscription in subscriptions],
    }
    return {"consumerDataSet": [data]}


def subscribe(
    topic: str, expression: str, version: int, expression_type: str = "TAG"
) -> Subscription:
    """Parse a subscription expression. Raises ClientError for an empty tag or unknown type."""
    if expression_type == "SQL92":
        return Subscription(topic, expression, "SQL92", frozenset(), version)
    if expression_type != "TAG":
        raise ClientError(23, f"unknown expression type {expression_type!r}")
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, "TAG", frozenset(), version)
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise ClientError(23, f"empty tag in expression {expression!r}")
    return Subscription(topic, text, "TAG", frozenset(tags), version)


async def check_in_broker(instance: ClientInstance, group: str, subscription: Subscription) -> None:
    """Let the topic's brokers check the expression (46). Raises BrokerRefused for an invalid
    expression or an unsupported type, ClientError if a broker cannot be asked."""
    route = await instance.directory.route(subscription.topic)
    body = orjson.dumps(
        {
            "clientId": instance.client_id,
            "group": group,
            "subscriptionData": subscription.to_json(),
        }
    )
    for name in sorted({queue.broker_name for queue in route.queues}):
        response = await instance.invoke_leader(
            name, lambda: RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(response.code, response.remark or "", name)


def tag_of(properties_raw: bytes) -> bytes:
    """Return the TAGS value in a stored properties string, or b""."""
    match = _TAGS.search(properties_raw)
    return match.group(1) if match else b""
