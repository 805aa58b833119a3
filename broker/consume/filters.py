"""Subscriptions and filters of consumer groups.

For tags the broker compares hashes only; the client compares the strings. `None` as a set of codes
matches every message. SQL92 expressions are evaluated by the broker alone.

A pop retry topic is `%RETRY%group_topic`, as in Apache's brokers. So group `a` with topic `b_c`
shares a retry topic with group `a_b` and topic `c`, and with the ordinary retries of group `a_b_c`.
Each pop retry names its group in ORIGIN_GROUP, and groups skip the retries of other groups
(`own_retries`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import orjson

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import BodyError
from raftmq.remoting.names import DERIVED_TOPIC_LENGTH_MAX as TOPIC_LENGTH_MAX
from raftmq.remoting.names import RETRY_PREFIX
from raftmq.remoting.pop_headers import FIRST_POP_TIME, ORIGIN_GROUP
from raftmq.store.properties import (
    PROPERTIES_SIZE_BYTES_MAX,
    TAGS,
    java_string_hash,
    joined,
    tags_code,
)

from ..errors import Refused, rejected
from .sql92 import Expression, Sql92Error, compile_expression
from .sql92.tokens import LENGTH_MAX

TAG = "TAG"
SQL92 = "SQL92"
TAGS_MAX = 1_000  # per subscription
# Estimated memory per tags code, and per character of JSON or of an expression.
CODE_BYTES = 80
PARSED = 4
COMPILED = 16
RETRY_TOPIC = "RETRY_TOPIC"  # the property with a retried message's original topic
Codes = frozenset[int] | None
RECORD_WORK = 8  # to find the properties of a message, as Matcher.work counts
NOTED_BYTES_MAX = 600  # properties added to a pop retry: group, topic and a time


@dataclass(slots=True)
class Work:
    """The evaluation left for filters in this turn of the loop, in units of Matcher.work."""

    left: int


class Matcher(Protocol):
    """Selects messages by their properties."""

    @property
    def evaluates(self) -> bool:
        """True if it evaluates a consumer's expression, which costs memory and work."""
        ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...

    def work(self, properties: Mapping[str, str]) -> int:
        """Return the maximal cost of `matches`, in about microseconds."""
        ...


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects messages by tags code, or by the matcher."""

    codes: Codes = None
    matcher: Matcher | None = None

    @property
    def evaluates(self) -> bool:
        return self.matcher is not None and self.matcher.evaluates


@dataclass(frozen=True)
class Subscription:
    """A consumer group's interest in a topic. SQL92 expressions are compiled by the first pull,
    because a heartbeat may contain many."""

    topic: str
    expression: str
    expression_type: str
    codes: Codes
    version: int
    fields: dict[str, Any] = field(default_factory=dict, compare=False)  # as sent by the client
    kept_bytes: int = field(default=0, compare=False)  # estimated memory

    @property
    def matcher(self) -> Expression | None:
        """The compiled expression. None for tags, or if there is a `problem`."""
        return self._compiled[0]

    @property
    def problem(self) -> str:
        """The compile error, returned to the consumer's pulls."""
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[Expression | None, str]:
        if self.expression_type == TAG:
            return None, ""
        try:
            return parse_expression(self.expression_type, self.expression), ""
        except Refused as refused:
            return None, str(refused)


def parse_tags(expression: str) -> Codes:
    """Return the tags codes of an expression such as `A || B`, or None for `*` or "". Raises
    BodyError for too many."""
    if not expression or expression.strip() == "*":
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    named = [tag for tag in tags if tag]
    if len(named) > TAGS_MAX:
        raise BodyError(f"a subscription of {len(named)} tags; at most {TAGS_MAX}")
    return frozenset(java_string_hash(tag) for tag in named) if named else None


def is_tag(expression_type: str | None) -> bool:
    return expression_type in (None, "", TAG)


def unsupported(expression_type: str) -> Refused:
    """Return the error if enablePropertyFilter is off."""
    return rejected(
        f"The broker does not support consumer to filter message by {expression_type}"
        " (enablePropertyFilter=false)"
    )


def parse_expression(expression_type: str, text: str) -> Expression:
    """Parse a SQL92 expression. Raises Refused (SUBSCRIPTION_PARSE_FAILED) with the position."""
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


def filter_of(kind: str | None, expression: str, *, sql_enabled: bool) -> Filter:
    """Return the filter of an expression in a request. Raises Refused, BodyError."""
    if is_tag(kind):
        return Filter(parse_tags(expression))
    if not sql_enabled:
        raise unsupported(str(kind))
    return Filter(matcher=parse_expression(str(kind), expression))


def subscription_from_json(fields: Any) -> Subscription:
    """Parse a SubscriptionData bean. Raises BodyError.

    Some clients send no codeSet; it is computed from the expression. The Go client writes its
    numbers as strings.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("topic"), str):
        raise BodyError("a subscription without a topic")
    if len(fields["topic"]) > TOPIC_LENGTH_MAX:
        raise BodyError(f"a subscription's topic has more than {TOPIC_LENGTH_MAX} characters")
    expression = str(fields.get("subString") or "")
    expression_type = str(fields.get("expressionType") or TAG)
    codes: Codes = None
    if expression_type == TAG:
        codes = parse_tags(expression)
        code_set = fields.get("codeSet")
        if codes is not None and isinstance(code_set, list) and code_set:
            if len(code_set) > TAGS_MAX or not all(type(code) in (int, str) for code in code_set):
                raise BodyError("codeSet is not a list of numbers")
            try:
                codes = frozenset(int(code) for code in code_set)
            except ValueError:
                raise BodyError("codeSet is not a list of numbers") from None
    version = fields.get("subVersion")
    return Subscription(
        fields["topic"],
        expression,
        expression_type,
        codes,
        version if type(version) is int else 0,
        fields,
        _kept_bytes(fields, codes, "" if expression_type == TAG else expression[:LENGTH_MAX]),
    )


def _kept_bytes(fields: dict[str, Any], codes: Codes, compiled: str) -> int:
    size = PARSED * len(orjson.dumps(fields)) + CODE_BYTES * len(codes or ())
    return size + COMPILED * len(compiled)


@dataclass(frozen=True, slots=True)
class RetryMatcher:
    """Applies a group's expression for the original topic to its retries (filterSupportRetry).
    `subscription(topic)` returns the group's subscription."""

    subscription: Callable[[str], Subscription | None]
    evaluates = True

    def matches(self, properties: Mapping[str, str]) -> bool:
        matcher = self._matcher(properties)
        return matcher is None or matcher.matches(properties)

    def work(self, properties: Mapping[str, str]) -> int:
        matcher = self._matcher(properties)
        return 0 if matcher is None else matcher.work(properties)

    def _matcher(self, properties: Mapping[str, str]) -> Matcher | None:
        subscription = self.subscription(properties.get(RETRY_TOPIC, ""))
        return None if subscription is None else subscription.matcher


def own_retries(message_filter: Filter, topic: str, group: str) -> Filter:
    """Return the filter of a read of `topic` by `group`, without retries of other groups."""
    name = topic.removeprefix(RETRY_PREFIX)
    if name == topic or "_" not in name:
        return message_filter
    if name == group or name.startswith(f"{group}_"):
        return Filter(message_filter.codes, OwnRetries(group, name == group, message_filter))
    return message_filter


@dataclass(frozen=True, slots=True)
class OwnRetries:
    """Matches the group's own retries that also match `message_filter`. `ordinary` is True for the
    group's retry topic, False for its pop retry topics."""

    group: str
    ordinary: bool
    message_filter: Filter

    @property
    def evaluates(self) -> bool:
        return self.message_filter.evaluates

    def matches(self, properties: Mapping[str, str]) -> bool:
        if not self._is_own(properties):
            return False
        codes, matcher = self.message_filter.codes, self.message_filter.matcher
        if codes is not None and tags_code(properties.get(TAGS)) not in codes:
            return False
        return matcher is None or matcher.matches(properties)

    def work(self, properties: Mapping[str, str]) -> int:
        matcher = self.message_filter.matcher
        return 0 if matcher is None else matcher.work(properties)

    def _is_own(self, properties: Mapping[str, str]) -> bool:
        origin = properties.get(ORIGIN_GROUP)
        if self.ordinary:  # a returned dead letter of another group is no pop retry
            return origin is None or self.group != f"{origin}_{properties.get(RETRY_TOPIC)}"
        if origin is None:  # Apache's first brokers did not record it, or it did not fit
            full = PROPERTIES_SIZE_BYTES_MAX - NOTED_BYTES_MAX
            return FIRST_POP_TIME in properties or len(joined(properties)) > full
        return origin == self.group
