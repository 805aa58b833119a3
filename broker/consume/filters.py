"""Subscriptions: which messages of a topic a consumer group wants. Pure.

For tags the broker compares hashes only; the client checks the strings. `None` as a set of codes
means every message. For SQL92 expressions the broker decides alone, by the message's properties.

A pop retry topic is `%RETRY%group_topic`, as in Apache's brokers. So group `a` with topic `b_c` has
the same one as group `a_b` with topic `c`, and group `a_b_c` has it for its ordinary retries. Each
retry of a pop says in ORIGIN_GROUP which group it is for; a group passes over those of the others
(`own_retries`). Its progress is its own, so it hides nothing from them.
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

from ..errors import Refused
from .sql92 import Expression, Sql92Error, compile_expression
from .sql92.tokens import LENGTH_MAX

TAG = "TAG"
SQL92 = "SQL92"
TAGS_MAX = 1_000  # in one subscription
# Memory by what a peer sent: of a tags code, and of a character of JSON, or of an expression.
CODE_BYTES = 80
PARSED = 4
COMPILED = 16
RETRY_TOPIC = "RETRY_TOPIC"  # the property that names a retried message's original topic
Codes = frozenset[int] | None
RECORD_WORK = 8  # to find the properties of one message, as Matcher.work counts
NOTED_BYTES_MAX = 600  # what a pop's retry gets in addition: group, topic and a time


class Work:
    """How much evaluation filters may still do (`left`, in the units of Matcher.work) before the
    event loop serves somebody else."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Matcher(Protocol):
    """Decides by a message's properties whether it is wanted."""

    @property
    def evaluates(self) -> bool:
        """Whether it evaluates an expression that a consumer wrote: that takes memory and work."""
        ...

    def matches(self, properties: Mapping[str, str]) -> bool: ...

    def work(self, properties: Mapping[str, str]) -> int:
        """Return what that takes at most, in microseconds or so."""
        ...


@dataclass(frozen=True, slots=True)
class Filter:
    """The messages a pull wants: those with one of these codes, or those that the matcher takes."""

    codes: Codes = None
    matcher: Matcher | None = None

    @property
    def evaluates(self) -> bool:
        return self.matcher is not None and self.matcher.evaluates


@dataclass(frozen=True)
class Subscription:
    """One consumer group's interest in one topic. An expression of another type than TAG is
    compiled when a pull first needs it: one heartbeat may bring many, from many clients."""

    topic: str
    expression: str
    expression_type: str
    codes: Codes
    version: int
    fields: dict[str, Any] = field(default_factory=dict, compare=False)  # as the client wrote it
    kept_bytes: int = field(default=0, compare=False)  # roughly, of memory

    @property
    def matcher(self) -> Expression | None:
        """The compiled expression; None for tags, and if there is a `problem`."""
        return self._compiled[0]

    @property
    def problem(self) -> str:
        """Why the expression cannot be used; a consumer is told when it pulls."""
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
    """Return the tags codes of an expression: None (all) for `*` or nothing, the codes of A and B
    for `A || B`. Raises BodyError when there are too many."""
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
    """Return the refusal of a broker whose enablePropertyFilter is off."""
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}"
        " (enablePropertyFilter=false)",
    )


def parse_expression(expression_type: str, text: str) -> Expression:
    """Parse an expression of another type than TAG. Raises Refused (SUBSCRIPTION_PARSE_FAILED),
    which says where."""
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
    """Read a SubscriptionData bean. Raises BodyError.

    An empty codeSet beside a real expression (some clients send none) is computed from it. The Go
    client writes its numbers as strings.
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
    """Matches those of a group's retries that its expression for their original topic takes
    (filterSupportRetry). `subscription(topic)` returns the group's subscription."""

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
    """Return the filter of a read of `topic` by `group`, which leaves out other groups' retries."""
    name = topic.removeprefix(RETRY_PREFIX)
    if name == topic or "_" not in name:
        return message_filter
    if name == group or name.startswith(f"{group}_"):
        return Filter(message_filter.codes, OwnRetries(group, name == group, message_filter))
    return message_filter


@dataclass(frozen=True, slots=True)
class OwnRetries:
    """Matches the group's own retries that `message_filter` takes, too. `ordinary`: the topic is the
    group's own, not one of its pop retry topics."""

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
        if self.ordinary:  # another group's dead letter, given back, is no retry of a pop
            return origin is None or self.group != f"{origin}_{properties.get(RETRY_TOPIC)}"
        if origin is None:  # Apache's first brokers did not note it; or there was no room
            full = PROPERTIES_SIZE_BYTES_MAX - NOTED_BYTES_MAX
            return FIRST_POP_TIME in properties or len(joined(properties)) > full
        return origin == self.group
