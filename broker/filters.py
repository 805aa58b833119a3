"""Tag subscriptions: which tags codes a consumer wants. Pure.

The broker compares hashes only (remoting-protocol section 10); the client checks the strings.
`None` as a set of codes means every message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remoting.errors import BodyError
from store.properties import java_string_hash

TAG = "TAG"
TAGS_MAX = 1_000  # in one subscription
Codes = frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer group's interest in one topic."""

    topic: str
    expression: str
    expression_type: str
    codes: Codes
    version: int
    fields: dict[str, Any] = field(default_factory=dict, compare=False)  # as the client wrote it


def parse_tags(expression: str) -> Codes:
    """`*` or nothing: all; `A || B`: those. Raises BodyError when there are too many."""
    if not expression or expression.strip() == "*":
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    wanted = [tag for tag in tags if tag]
    if len(wanted) > TAGS_MAX:
        raise BodyError(f"a subscription of {len(wanted)} tags; at most {TAGS_MAX}")
    return frozenset(java_string_hash(tag) for tag in wanted) if wanted else None


def subscription_from_json(fields: Any) -> Subscription:
    """Read a SubscriptionData bean (remoting-protocol 5.1). Raises BodyError.

    An empty codeSet beside a real expression (some clients send none) is computed from it.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("topic"), str):
        raise BodyError("a subscription without a topic")
    expression = str(fields.get("subString") or "")
    expression_type = str(fields.get("expressionType") or TAG)
    codes: Codes = None
    if expression_type == TAG:
        codes = parse_tags(expression)
        told = fields.get("codeSet")
        if codes is not None and isinstance(told, list) and told:
            if len(told) > TAGS_MAX or not all(type(code) is int for code in told):
                raise BodyError("codeSet is not a list of numbers")
            codes = frozenset(told)
    version = fields.get("subVersion")
    return Subscription(
        fields["topic"],
        expression,
        expression_type,
        codes,
        version if type(version) is int else 0,
        fields,
    )
