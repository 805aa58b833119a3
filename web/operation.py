"""The declaration of an API operation: route, role, input and answer.

`web.app` makes the route with its checks from it, and `web.openapi` the OpenAPI document. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raftmq.ops.versions import Condition

from .schema import Input, Nothing

if TYPE_CHECKING:
    from aiohttp import web

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
# The user that a name server acts for, percent-encoded; only accepted with an admin's token.
OPERATOR_HEADER = "X-Operator"
READ_LIMIT_MS = 10_000
WRITE_LIMIT_MS = 30_000  # longer than a command may wait in the log


class Role(enum.IntEnum):
    """A caller's role, which includes the rights of lower roles."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, with its name in the tokens file."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request. `parameters`, `query` and `body` have the operation's types (Any here);
    `condition` is set if the operation is conditional."""

    request: web.Request
    caller: Caller
    parameters: Any
    query: Any
    body: Any
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with more than a value. `version` is the resource's version, for the ETag."""

    value: Any = None
    status: int = 200
    version: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of an operation. A handler returns a View or a JSON value, a Reply, or a
    StreamResponse; it raises ApiProblem. `role` is None if no token is needed. `problems` has
    statuses besides those that follow from the other fields."""

    method: str
    path: str
    name: str  # operationId
    summary: str
    handler: Handler
    role: Role | None = Role.VIEWER
    parameters: type[Input] = Nothing  # of the path
    query: type[Input] = Nothing
    body: Any = None  # a type, or None for no body
    body_schema: Any = None  # the type for the document, if other code checks the body
    answer: Any = None  # a type, or None for status 204 or text of a different media type
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses of success, with the same type of answer
    conditional: bool = False  # requires If-Match or If-None-Match
    problems: tuple[int, ...] = ()
    media: str = JSON

    @property
    def limit_ms(self) -> int | None:
        """Return the time limit; None for an event stream."""
        if self.media == EVENT_STREAM:
            return None
        return READ_LIMIT_MS if self.method == "GET" else WRITE_LIMIT_MS
