"""Subscriptions: which messages of a topic a consumer group wants. Pure.

By tags the broker compares hashes only (remoting-protocol section 10); the client checks the
strings. `None` as a set of codes means every message. By SQL92 (section 11) it is the broker that
decides, by the message's properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from raftmq.broker.consuming.sql92 import Expression, Sql92Error, compile_expression
from raftmq.broker.errors import Refused
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import BodyError
from raftmq.store.properties import java_string_hash

TAG = "TAG"
SQL92 = "SQL92"
TAGS_MAX = 1_000  # in one subscription
RETRY_TOPIC = "RETRY_TOPIC"  # the property that names a retried message's own topic
Codes = frozenset[int] | None


class Matcher(Protocol):
    """Says by its properties whether a message is wanted."""

    def matches(self, properties: Mapping[str, str]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """What a pull wants: messages with one of these codes, or those that the matcher takes."""

    codes: Codes = None
    matcher: Matcher | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer group's interest in one topic. `problem`: why its expression cannot be used;
    a consumer learns of that when it pulls."""

    topic: str
    expression: str
    expression_type: str
    codes: Codes
    version: int
    fields: dict[str, Any] = field(default_factory=dict, compare=False)  # as the client wrote it
    matcher: Expression | None = field(default=None, compare=False)
    problem: str = ""


def parse_tags(expression: str) -> Codes:
    """`*` or nothing: all; `A || B`: those. Raises BodyError when there are too many."""
    if not expression or expression.strip() == "*":
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    wanted = [tag for tag in tags if tag]
    if len(wanted) > TAGS_MAX:
        raise BodyError(f"a subscription of {len(wanted)} tags; at most {TAGS_MAX}")
    return frozenset(java_string_hash(tag) for tag in wanted) if wanted else None


def is_tag(expression_type: str | None) -> bool:
    return expression_type in (None, "", TAG)


def unsupported(expression_type: str) -> Refused:
    """Of a broker whose enablePropertyFilter is off."""
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}"
        " (enablePropertyFilter=false)",
    )


def parse_expression(expression_type: str, text: str) -> Expression:
    """Of another type than TAG. Raises Refused (SUBSCRIPTION_PARSE_FAILED), which says where."""
    if expression_type != SQL92:
        reason = f"there is no expression type {expression_type}"
    else:
        try:
            return compile_expression(text)
        except Sql92Error as error:
            reason = str(error)
    raise Refused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"parse the consumer's subscription failed: {reason}",
    )


def subscription_from_json(fields: Any) -> Subscription:
    """Read a SubscriptionData bean (remoting-protocol 5.1). Raises BodyError.

    An empty codeSet beside a real expression (some clients send none) is computed from it. The Go
    client writes its numbers as strings.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("topic"), str):
        raise BodyError("a subscription without a topic")
    expression = str(fields.get("subString") or "")
    expression_type = str(fields.get("expressionType") or TAG)
    codes: Codes = None
    matcher, problem = None, ""
    if expression_type == TAG:
        codes = parse_tags(expression)
        told = fields.get("codeSet")
        if codes is not None and isinstance(told, list) and told:
            if len(told) > TAGS_MAX or not all(type(code) in (int, str) for code in told):
                raise BodyError("codeSet is not a list of numbers")
            try:
                codes = frozenset(int(code) for code in told)
            except ValueError:
                raise BodyError("codeSet is not a list of numbers") from None
    else:
        try:
            matcher = parse_expression(expression_type, expression)
        except Refused as refused:
            problem = str(refused)
    version = fields.get("subVersion")
    return Subscription(
        fields["topic"],
        expression,
        expression_type,
        codes,
        version if type(version) is int else 0,
        fields,
        matcher,
        problem,
    )


@dataclass(frozen=True, slots=True)
class RetryMatcher:
    """Of a group's retries those that its expression for their own topic takes
    (filterSupportRetry). `subscription(topic)` is the group's."""

    subscription: Callable[[str], Subscription | None]

    def matches(self, properties: Mapping[str, str]) -> bool:
        subscription = self.subscription(properties.get(RETRY_TOPIC, ""))
        if subscription is None or subscription.matcher is None:
            return True
        return subscription.matcher.matches(properties)
