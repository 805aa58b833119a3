"""Requests to the leaders of broker groups, with results by group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from raftmq.web.operation import OPERATOR_HEADER, Call
from raftmq.web.problem import ApiProblem, malformed, not_found, outcome_unknown, unavailable

from .broker_http import (
    VIEW_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    Answer,
    NodeSilent,
    WrongAnswer,
)
from .cluster import ClusterView
from .merging import FAILED, OK, UNKNOWN, GroupResult
from .seen import Object

NOT_LEADER = "NOT_LEADER"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
GATEWAY_TIMEOUT = 504

Query = Mapping[str, str]


def acting_for(call: Call) -> dict[str, str]:
    return {OPERATOR_HEADER: quote(call.caller.name)}


class Leaders:
    """Sends requests to the leaders of the route table. After an election the table may lag, so a
    replica that names a new leader redirects the request, once."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._nodes = cluster.nodes

    def check_group(self, group: str) -> None:
        """Raise ApiProblem (404) if the group is unknown."""
        if not self._cluster.leaders(group):
            raise not_found(f"no group {group!r} is known to this name server")

    def names(self, only: str = "") -> list[str]:
        """Return all groups, or only `only`. Raises ApiProblem (404) for an unknown group."""
        if only:
            self.check_group(only)
        return list(self._cluster.leaders(only))

    async def ask(
        self,
        group: str,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Return the leader's answer of any status. Raises ApiProblem (400, 404), NodeSilent."""
        self.check_group(group)
        address = self._cluster.leaders(group)[group]
        if not address:
            raise NodeSilent("no leader with an HTTP address is registered", sent=False)
        limit_s = timeout_s or (VIEW_TIMEOUT_S if method == "GET" else WRITE_TIMEOUT_S)
        try:
            data = None if body is None else orjson.dumps(body)
        except orjson.JSONEncodeError as error:  # an integer of more than 64 bits
            raise malformed(f"the body cannot be passed on: {error}") from error
        for last in (False, True):
            answer = await self._nodes.ask(
                address, method, path,
                query=query, body=data, headers=headers, timeout_s=limit_s,
            )  # fmt: skip
            named = _named_leader(answer)
            if last or not named or not self._is_of(group, named):
                break
            address = named
        return answer

    async def relay(
        self, group: str, method: str, path: str, kind: Any = Object, **more: Any
    ) -> tuple[Any, str]:
        """As `ask`, but return the value and its version; an empty body is {}. Raises ApiProblem
        for every failure, with the leader's problem or with the lack of a valid answer."""
        try:
            answer = await self.ask(group, method, path, **more)
            if answer.ok:
                return (answer.json(kind) if answer.body else {}), answer.version
        except NodeSilent as silent:
            raise problem_of(f"the leader of {group}", silent) from silent
        raise relayed(answer, group)

    async def answers(
        self, path: str, query: Query | None = None, only: str = "", kind: Any = Object
    ) -> tuple[dict[str, tuple[Any, str]], list[dict[str, str]]]:
        """GET from every leader. Return group → (value, version), and [{group, error}]. A leader's
        404 leaves its group out of both. Raises ApiProblem for an unknown `only`."""
        names = self.names(only)

        async def one(group: str) -> tuple[str, tuple[Any, str] | None, str]:
            try:
                answer = await self.ask(group, "GET", path, query=query)
                if answer.ok:
                    return group, (answer.json(kind), answer.version), ""
                return group, None, "" if answer.status == 404 else answer.reason()
            except NodeSilent as silent:
                return group, None, silent.reason

        result: dict[str, tuple[Any, str]] = {}
        errors = []
        for group, answer, error in await asyncio.gather(*(one(name) for name in names)):
            if error:
                errors.append({"group": group, "error": error})
            elif answer is not None:
                result[group] = answer
        return result, errors

    async def views(
        self, path: str, query: Query | None = None, only: str = "", kind: Any = Object
    ) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """Return `answers` without versions."""
        result, errors = await self.answers(path, query, only, kind)
        return {group: value for group, (value, _) in result.items()}, errors

    async def change(
        self,
        groups: Mapping[str, Mapping[str, str]],
        method: str,
        path: str,
        body: Any = None,
        query: Query | None = None,
    ) -> list[GroupResult]:
        """Make a change at several groups' leaders at once, with headers per group. Return a result
        per group, including failures."""

        async def one(group: str, headers: Mapping[str, str]) -> GroupResult:
            try:
                answer = await self.ask(
                    group, method, path, body=body, headers=headers, query=query
                )
                if answer.ok:
                    value = answer.json(Any) if answer.body else None
                    return GroupResult(group, OK, answer.status, value)
            except NodeSilent as silent:
                outcome = UNKNOWN if silent.sent else FAILED
                return GroupResult(group, outcome, 0, error=silent.reason)
            except ApiProblem as problem:
                return GroupResult(group, FAILED, problem.status, error=problem.detail)
            outcome = UNKNOWN if is_unknown(answer) else FAILED
            return GroupResult(group, outcome, answer.status, error=answer.reason())

        return list(await asyncio.gather(*(one(g, headers) for g, headers in groups.items())))

    def _is_of(self, group: str, http_address: str) -> bool:
        """Return whether a broker of the group registered this address; only these are followed."""
        known = self._cluster.known()
        return any(k.group == group and k.http_address == http_address for k in known)


def is_unknown(answer: Answer) -> bool:
    """Return whether the change may have been made."""
    return answer.status == GATEWAY_TIMEOUT or _code(answer) == OUTCOME_UNKNOWN


def problem_of(owner: str, silent: NodeSilent) -> ApiProblem:
    if isinstance(silent, WrongAnswer):
        text = f"{owner} gives a wrong answer: {silent.reason}"
        if silent.sent:
            text += "; the change may have been made: look before you repeat it"
            return ApiProblem(502, "OUTCOME_UNKNOWN", text)
        return ApiProblem(502, "WRONG_ANSWER", text)
    text = f"{owner} does not answer: {silent.reason}"
    if silent.sent:
        return outcome_unknown(f"{text}; it may have been done: look before trying again")
    return unavailable(text, "NODE_SILENT")


def relayed(answer: Answer, group: str) -> ApiProblem:
    """Return a leader's problem as ours, with its status, code and further fields."""
    fields = answer.problem() or {}
    own = {"type", "title", "status", "detail", "instance", "code"}
    more = {key: value for key, value in fields.items() if key not in own}
    code, detail = str(fields.get("code") or "UPSTREAM"), str(fields.get("detail") or "")
    status = answer.status
    if status in (401, 403):  # this name server has no right, independently of the caller
        status, code = 502, "CLUSTER_TOKEN"
        detail = f"the leader refuses this name server (httpClusterTokenFile): {detail}"
    headers = {"ETag": answer.headers["etag"]} if "etag" in answer.headers else {}
    return ApiProblem(status, code, detail, more={"group": group} | more, headers=headers)


def _named_leader(answer: Answer) -> str:
    if answer.status != 503 or _code(answer) != NOT_LEADER:
        return ""
    return answer.headers.get("x-leader-http", "")


def _code(answer: Answer) -> str:
    return str((answer.problem() or {}).get("code") or "")
