"""Kinds of topics, which are own, retry, dead and system."""

from __future__ import annotations

from collections.abc import Set

from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS


def kind_of(topic: str, reserved: Set[str] = frozenset()) -> str:
    """Return a topic's kind. `reserved` has the names of brokers and clusters, which are topics at
    Apache's brokers."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead"
    is_system = topic in SYSTEM_TOPICS or topic in reserved
    if is_system or topic.endswith("_REPLY_TOPIC") or topic.lower().startswith("rmq_sys_"):
        return "system"
    return "own"
