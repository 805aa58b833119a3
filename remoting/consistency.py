"""Finds the consumers of a group whose subscriptions differ from the others'. Pure.

A broker filters for a group, and its queues are shared out among its consumers. So where two of
them subscribe to different topics or tags, each loses messages that the other one's queues have.
Tags count, not how they are written; a group's retries are its own and not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .names import RETRY_PREFIX

TAG = "TAG"
TAGS_MAX = 100  # 10 us
Wishes = frozenset[tuple[str, str]]  # topic, expression in one spelling


class Difference(NamedTuple):
    """A topic in which a client subscribes to another expression than most. None: not at all."""

    topic: str
    expression: str | None
    others: str | None


def wishes(subscriptions: Iterable[tuple[str, str, str]]) -> Wishes:
    """Return a client's wishes from (topic, expression type, expression)."""
    return frozenset(
        (topic, spelled(kind, expression))
        for topic, kind, expression in subscriptions
        if not topic.startswith(RETRY_PREFIX)
    )


def spelled(kind: str, expression: str) -> str:
    """Return an expression as all clients would write it that wish the same; one of more than
    TAGS_MAX tags as it is written."""
    if kind not in ("", TAG):
        return f"{kind} {expression.strip()}"
    if expression == "*" or expression.count("||") > TAGS_MAX:
        return expression
    tags = {tag.strip() for tag in expression.split("||")} - {""}
    return "*" if not tags or "*" in tags else " || ".join(sorted(tags))


def differences(members: Mapping[str, Wishes]) -> dict[str, list[Difference]]:
    """Return, by client, where it differs from the wishes that most clients have; if there are
    several, from those of the first client by its id that has such. Clients without any
    subscription are not compared: they pull whatever they like."""
    members = {client: one for client, one in members.items() if one}
    counts = Counter(members.values())
    if len(counts) < 2:
        return {}
    most = max(counts.values())
    usual = dict(next(one for _, one in sorted(members.items()) if counts[one] == most))
    found = {}
    for client, one in sorted(members.items()):
        own = dict(one)
        topics = sorted(t for t in own.keys() | usual.keys() if own.get(t) != usual.get(t))
        if topics:
            found[client] = [Difference(t, own.get(t), usual.get(t)) for t in topics]
    return found
