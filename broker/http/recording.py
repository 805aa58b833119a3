"""Operations of the HTTP API whose doing is recorded (broker.admin.operator_log)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from raftmq.web.operation import OPERATOR_HEADER, Call, Operation, Role

from ..admin.operator_log import Deed, OperatorLog, detail_of
from ..config import shown_changes

# These concern this process alone and must be possible whatever the group can store.
OWN = frozenset(
    {"changeConfig", "setLogLevel", "injectFault", "healFaults", "stopNode", "transferLeadership"}
)
SECRETS = ("secretKey", "body", "bodyBase64")
NAME_LENGTH_MAX = 128


def recorded(operations: Iterable[Operation], log: OperatorLog) -> list[Operation]:
    """Return the operations; those that change something record that."""
    return [_recorded(one, log) if _changes(one) else one for one in operations]


def _changes(operation: Operation) -> bool:
    return operation.method != "GET" and (operation.role or Role.VIEWER) > Role.VIEWER


def _recorded(operation: Operation, log: OperatorLog) -> Operation:
    handler = operation.handler

    async def first(call: Call) -> Any:
        if getattr(call.body, "preview", False):
            return await handler(call)
        return await log.around(_deed(operation, call), lambda: handler(call))

    async def afterwards(call: Call) -> Any:
        return await log.afterwards(_deed(operation, call), lambda: handler(call))

    return replace(operation, handler=afterwards if operation.name in OWN else first)


def _deed(operation: Operation, call: Call) -> Deed:
    """Describe a call. Only an admin's token, as a name server's, may say for whom it acts."""
    told = call.request.headers.get(OPERATOR_HEADER, "")
    by = unquote(told)[:NAME_LENGTH_MAX] if told and call.caller.role is Role.ADMIN else ""
    target = ", ".join(str(part) for part in msgspec.to_builtins(call.parameters).values())
    target = target or str(getattr(call.body, "topic", ""))
    return Deed(
        operation.name,
        target,
        by or call.caller.name,
        call.caller.name if by else "",
        _detail(operation, call.body),
    )


def _detail(operation: Operation, body: Any) -> str:
    """Return what is asked for, as JSON, without secrets and bodies of messages."""
    if body is None:
        return ""
    value = msgspec.to_builtins(body)
    assert isinstance(value, dict), operation.name
    return detail_of(shown_changes(value) if operation.name == "changeConfig" else value, SECRETS)
