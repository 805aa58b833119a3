"""Error answers, as `application/problem+json` (RFC 9457).

    {"type":"about:blank","title":"Conflict","status":409,"detail":…,"instance":path,"code":…}

`code` is for programs, and its meaning never changes; `detail` is for people. Handlers raise
`ApiProblem`, and the application turns it into the answer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"
LEADER_HEADER = "X-Leader-Http"


class ApiProblem(Exception):
    """An error answer. `more` are further fields of the body."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.more = dict(more or {})
        self.headers = dict(headers or {})

    def to_json(self, instance: str) -> dict[str, Any]:
        """Return the body; `instance` is the request's path."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            **self.more,
        }


def malformed(detail: str) -> ApiProblem:
    """Make a 400 for a request that cannot be parsed."""
    return ApiProblem(400, "MALFORMED", detail)


def unauthorized(detail: str) -> ApiProblem:
    """Make a 401 for a missing or unknown token."""
    return ApiProblem(
        401, "UNAUTHORIZED", detail, headers={"WWW-Authenticate": 'Bearer realm="raftmq"'}
    )


def forbidden(detail: str) -> ApiProblem:
    """Make a 403 for a caller without the required role."""
    return ApiProblem(403, "FORBIDDEN", detail)


def not_found(detail: str) -> ApiProblem:
    """Make a 404 for a missing resource."""
    return ApiProblem(404, "NOT_FOUND", detail)


def conflict(detail: str, code: str = "CONFLICT") -> ApiProblem:
    """Make a 409 for a request that does not fit the present state."""
    return ApiProblem(409, code, detail)


def stale(detail: str) -> ApiProblem:
    """Make a 412 for a version that does not meet If-Match or If-None-Match."""
    return ApiProblem(412, "VERSION_MISMATCH", detail)


def too_large(detail: str) -> ApiProblem:
    """Make a 413 for a body above the limit."""
    return ApiProblem(413, "TOO_LARGE", detail)


def packed() -> ApiProblem:
    """Make a 415 for a compressed body."""
    reason = "send the body as it is, without Content-Encoding"
    return ApiProblem(
        415, "UNSUPPORTED_MEDIA_TYPE", reason, headers={"Accept-Encoding": "identity"}
    )


def invalid(errors: Sequence[tuple[str, str]]) -> ApiProblem:
    """Make a 422. `errors` are (field of the request, problem)."""
    listed = [{"field": field, "message": message} for field, message in errors]
    detail = "; ".join(f"{field}: {message}" if field else message for field, message in errors)
    return ApiProblem(422, "INVALID", detail, more={"errors": listed})


def version_required() -> ApiProblem:
    """Make a 428 for a change without If-Match or If-None-Match."""
    return ApiProblem(
        428, "IF_MATCH_REQUIRED", "say If-Match: <ETag> (or *), or If-None-Match: * to create"
    )


def busy(detail: str) -> ApiProblem:
    """Make a 503 for a limit that is reached now; the caller should retry in a second."""
    return ApiProblem(503, "BUSY", detail, headers={"Retry-After": "1"})


def unavailable(detail: str, code: str = "UNAVAILABLE") -> ApiProblem:
    """Make a 503 for a request that this process cannot serve now; nothing was changed."""
    return ApiProblem(503, code, detail)


def not_leader(leader_http: str, detail: str = "this replica is not the leader") -> ApiProblem:
    """Make a 503. `leader_http` is host:port of the leader's HTTP API, or "" if unknown."""
    headers = {LEADER_HEADER: leader_http} if leader_http else {}
    more = {"leaderHttpAddress": leader_http or None}
    return ApiProblem(503, "NOT_LEADER", detail, more=more, headers=headers)


def outcome_unknown(detail: str) -> ApiProblem:
    """Make a 504 for a change that may have happened, or may still; check before a retry."""
    return ApiProblem(504, "OUTCOME_UNKNOWN", detail)


def timed_out(detail: str) -> ApiProblem:
    """Make a 504 for an operation without an answer within its time limit."""
    return ApiProblem(504, "TIMEOUT", detail)
