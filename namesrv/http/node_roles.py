"""Roles required by the operations of a broker's node API.

The broker sees the cluster's token, so the name server checks its caller's role. Operations that
are not listed need admins, such as those of newer brokers. Tests compare the lists with the
brokers' declarations (`Operation.role`).
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from raftmq.web.operation import Role

VIEWERS = (
    "GET config",
    "GET connections",
    "GET consumer-groups",
    "GET consumer-groups/{}",
    "GET consumer-groups/{}/modes",
    "GET events",
    "GET faults",
    "GET health/live",
    "GET health/ready",
    "GET history",
    "GET log-levels",
    "GET members",
    "GET messages",
    "GET messages/{}",
    "GET metrics",
    "GET node",
    "GET openapi.json",
    "GET preferred-leader",
    "GET statistics",
    "GET subscription-groups",
    "GET subscription-groups/{}",
    "GET topics",
    "GET topics/{}",
    "GET topics/{}/messages",
    "GET topics/{}/queues",
    "GET topics/{}/queues/{}/messages",
    "GET topics/{}/writers",
)
OPERATORS = (
    "DELETE preferred-leader",
    "POST consumer-groups/{}/pause",
    "POST consumer-groups/{}/reset",
    "POST consumer-groups/{}/resume",
    "POST messages",
    "POST messages/resend",
    "POST messages/{}/resend",
    "POST node/transfer",
    "PUT preferred-leader",
)


def role_at(method: str, path: str) -> Role:
    """Return the role for a percent-encoded `path` without /api/v1/."""
    parts = [unquote(part).replace("/", "%2F") for part in path.split("/")]
    requested = f"{method} {'/'.join(parts)}"
    if _VIEWERS.fullmatch(requested):
        return Role.VIEWER
    return Role.OPERATOR if _OPERATORS.fullmatch(requested) else Role.ADMIN


def _any_of(operations: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(item).replace(r"\{\}", "[^/]+") for item in operations))


_VIEWERS, _OPERATORS = _any_of(VIEWERS), _any_of(OPERATORS)
