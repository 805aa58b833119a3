"""Forwards /api/v1/brokers/{group}/{broker}/… to a broker's node API.

`broker` is a broker id (0 for the current leader), an address, or a replica's name. The caller's
role is checked by the broker's rules. The broker never sees the caller's token, but the cluster's
if `cluster_token` permits; an account's secret needs the same permission. Query, body, conditional
headers, answers and events pass unchanged.

The broker sees the cluster's token, so the name server checks its caller's role by VIEWERS and
OPERATORS. Operations that are not listed need admins, such as those of newer brokers. Tests compare
the lists with the brokers' declarations (`Operation.role`).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from aiohttp import ClientError, web

from raftmq.web.app import RawRoute, read_body
from raftmq.web.operation import EVENT_STREAM, JSON, OPERATOR_HEADER, Caller, Role
from raftmq.web.problem import MEDIA_TYPE as PROBLEM
from raftmq.web.problem import ApiProblem, not_found, unavailable

from .broker_fanout import problem_of, relayed
from .broker_http import METRICS, WRITE_TIMEOUT_S, NodeSilent, WrongAnswer
from .cluster import ClusterView
from .directory import Known

PATTERN = "/api/v1/brokers/{group}/{broker}/{tail:.+}"
REQUEST_HEADERS = ("Content-Type", "If-Match", "If-None-Match", "Accept")
ANSWER_HEADERS = ("content-type", "etag", "x-leader-http", "retry-after", "allow")
CHECKED_BYTES_MAX = 1 << 20  # larger JSON is not decoded
OUTSIDE = {"health/live", "health/ready", "metrics"}  # paths without /api/v1
EVENTS = "events"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Proxy:
    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def routes(self) -> list[RawRoute]:
        return [
            RawRoute(
                method, PATTERN, self.handle, role_of, lambda request: _tail(request) == EVENTS
            )
            for method in METHODS
        ]

    async def handle(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        known = await self._known(request)
        tail = _tail(request)
        path = f"/{tail}" if tail in OUTSIDE else f"/api/v1/{tail}"
        if tail == EVENTS:
            return await self._events(request, known, path)
        body = await read_body(request) if request.can_read_body else None
        if _has_secret(request.method, tail, body):
            self._check_secret_is_safe(known)
        headers = {h: request.headers[h] for h in REQUEST_HEADERS if h in request.headers}
        headers[OPERATOR_HEADER] = quote(caller.name)
        try:
            answer = await self._cluster.nodes.ask(
                known.http_address, request.method, path, query=dict(request.query), body=body,
                headers=headers, timeout_s=WRITE_TIMEOUT_S,
            )  # fmt: skip
            if answer.body and not (tail in OUTSIDE and answer.media_type in METRICS):
                # A browser would show a broker's page with this server's origin.
                if answer.media_type not in (JSON, PROBLEM):
                    if not answer.ok:
                        raise relayed(answer, known.group)
                    raise WrongAnswer("its answer is no JSON", sent=answer.changes)
                if len(answer.body) <= CHECKED_BYTES_MAX:
                    answer.json(Any)
        except NodeSilent as silent:
            raise problem_of(f"{known.address} of {known.group}", silent) from silent
        passed = {h: answer.headers[h] for h in ANSWER_HEADERS if h in answer.headers}
        passed.setdefault("content-type", JSON)
        # The broker rejects this name server's token, independently of the caller
        if answer.status == 401:
            raise ApiProblem(502, "CLUSTER_TOKEN", "the broker refuses this name server's token")
        guards = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return web.Response(status=answer.status, body=answer.body, headers=passed | guards)

    def _check_secret_is_safe(self, known: Known) -> None:
        why = self._cluster.nodes.distrusted(known.http_address) if known.http_address else ""
        if why:
            text = f"{known.address} of {known.group} is not sent a secret: {why}"
            raise unavailable(text, "DISTRUST")

    async def _known(self, request: web.Request) -> Known:
        group, broker = request.match_info["group"], request.match_info["broker"]
        known = self._cluster.find(group, broker)
        if known is None:  # replicas report their names in their views
            await self._cluster.refresh()
            known = self._cluster.find(group, broker)
        if known is None:
            raise not_found(f"no broker {broker!r} of group {group!r} is known")
        return known

    async def _events(self, request: web.Request, known: Known, path: str) -> web.StreamResponse:
        headers = {"Accept": EVENT_STREAM}
        last = request.headers.get("Last-Event-ID") or request.query.get("lastEventId")
        if last:
            headers["Last-Event-ID"] = last
        response = web.StreamResponse(
            headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"}
        )
        if not known.http_address:
            raise unavailable(f"{known.address} has told no HTTP address", "NODE_SILENT")
        try:
            async with self._cluster.nodes.stream(known.http_address, path, headers) as stream:
                if stream.status != 200:
                    raise unavailable(f"{known.address} answers {stream.status}", "NODE_SILENT")
                await response.prepare(request)
                async for part in stream.content.iter_any():
                    await response.write(part)
        except (ClientError, TimeoutError) as error:
            if not response.prepared:
                raise unavailable(f"{known.address}: {error}", "NODE_SILENT") from error
        return response  # the broker's stream ended, and readers reconnect


def role_of(request: web.Request) -> Role:
    """Return the required role, by the broker's rules."""
    return role_at(request.method, _tail(request))


def _has_secret(method: str, tail: str, body: bytes | None) -> bool:
    is_account = method == "PUT" and unquote(tail).startswith("accounts/")
    return is_account and b"secretKey" in (body or b"")


def _tail(request: web.Request) -> str:
    """Return the percent-encoded path after the broker."""
    return request.rel_url.raw_path.split("/", 6)[6]


VIEWERS = (
    "GET config",
    "GET connections",
    "GET consumer-groups",
    "GET consumer-groups/{}",
    "GET consumer-groups/{}/modes",
    "GET drain",
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
