"""Detects consumers of a group with inconsistent subscriptions.

A broker filters for a group, and its queues are shared by its consumers. If consumers subscribe to
different topics or tags, each loses messages in the queues of the rest. Tags are compared as sets;
the group's retry topic is ignored. Pure, without I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .names import RETRY_PREFIX

TAG = "TAG"
TAGS_MAX = 100  # 10 us
Wishes = frozenset[tuple[str, str]]  # topic, normalized expression


class Difference(NamedTuple):
    """A topic in which a client's expression differs from the majority's (None: none)."""

    topic: str
    expression: str | None
    others: str | None


def wishes(subscriptions: Iterable[tuple[str, str, str]]) -> Wishes:
    """Return a client's subscriptions from (topic, expression type, expression)."""
    return frozenset(
        (topic, spelled(kind, expression))
        for topic, kind, expression in subscriptions
        if not topic.startswith(RETRY_PREFIX)
    )


def spelled(kind: str, expression: str) -> str:
    """Return an expression's normalized form; beyond TAGS_MAX tags, itself."""
    if kind not in ("", TAG):
        return f"{kind} {expression.strip()}"
    if expression == "*" or expression.count("||") > TAGS_MAX:
        return expression
    tags = {tag.strip() for tag in expression.split("||")} - {""}
    return "*" if not tags or "*" in tags else " || ".join(sorted(tags))


def differences(members: Mapping[str, Wishes]) -> dict[str, list[Difference]]:
    """Return, by client, the differences from the most common subscriptions; on a tie, from those
    of the first client by id. Clients without a subscription are not compared, because they pull
    freely."""
    members = {client: one for client, one in members.items() if one}
    counts = Counter(members.values())
    if len(counts) < 2:
        return {}
    most = max(counts.values())
    usual = dict(next(one for _, one in sorted(members.items()) if counts[one] == most))
    result = {}
    for client, one in sorted(members.items()):
        own = dict(one)
        topics = sorted(t for t in own.keys() | usual.keys() if own.get(t) != usual.get(t))
        if topics:
            result[client] = [Difference(t, own.get(t), usual.get(t)) for t in topics]
    return result
