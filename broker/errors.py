"""Errors of the broker, with the value of a retry and the certainty of the effect."""

from __future__ import annotations

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError

ABSENT_CODES = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
NOT_LEADER = "NOT_LEADER"
UNKNOWN = "OUTCOME_UNKNOWN"


class Refused(RemotingError):
    """A request that definitely had no effect; `code` and the text are sent to the requester.

    `tag` is a word for programs, such as BUSY, that starts the remark in brackets. `absent` means
    that this replica does not have the requested object, as two codes always do. Only a proven
    leader may answer so."""

    def __init__(
        self,
        code: int,
        reason: str,
        *,
        tag: str = "",
        retriable: bool = False,
        absent: bool = False,
    ) -> None:
        self.tag = tag
        self.absent = absent or code in ABSENT_CODES
        self.remark = f"[{tag}] {reason}" if tag else reason
        self.retriable = retriable
        super().__init__(self.remark, code=code)


class ConditionUnmet(Refused):
    """A conditional change was not made: the `version` differs, or None without a resource."""

    def __init__(self, version: str | None) -> None:
        has = "there is no such resource" if version is None else f"its version is {version}"
        super().__init__(ResponseCode.SYSTEM_ERROR, has)
        self.version = version


class OutcomeUnknown(RemotingError):
    """A change in the log that may or may not be committed."""

    retriable = True
    tag = UNKNOWN

    def __init__(self, reason: str) -> None:
        self.remark = f"[{UNKNOWN}] {reason}"
        super().__init__(self.remark, outcome_unknown=True)


class StateError(Exception):
    """A command frame or snapshot that cannot be decoded; this replica must stop."""


class EngineError(Exception):
    """The configured replication engine cannot be used."""


def busy(reason: str, *, retriable: bool = False) -> Refused:
    """Return the error of a request for which there is no capacity now."""
    return Refused(ResponseCode.SYSTEM_BUSY, reason, tag="BUSY", retriable=retriable)


def not_leader(reason: str = "this replica is not the leader") -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, reason, tag=NOT_LEADER)


def rejected(reason: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, reason)


def forbidden(reason: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, reason)


def invalid(reason: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, reason)


def illegal(reason: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, reason)
