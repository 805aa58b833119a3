"""The broker room's errors: they say whether a retry can help and whether the effect is known."""

from __future__ import annotations

from raftmq.ops.options import ConfigError
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError

__all__ = [
    "ConditionUnmet",
    "ConfigError",
    "EngineError",
    "OutcomeUnknown",
    "Refused",
    "StateError",
    "busy",
    "not_leader",
]

ABSENT_CODES = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
NOT_LEADER = "NOT_LEADER"
UNKNOWN = "OUTCOME_UNKNOWN"


class Refused(RemotingError):
    """A request that is definitely not carried out; `code` and the text go to the requester.

    `tag`: a word for programs, such as BUSY. The remark begins with it, in brackets. `absent`: this
    replica does not have what is asked for, as with two codes always. The leader may have it: only
    who is proven to lead may answer so."""

    def __init__(
        self,
        code: int,
        words: str,
        *,
        tag: str = "",
        retriable: bool = False,
        absent: bool = False,
    ) -> None:
        self.tag = tag
        self.absent = absent or code in ABSENT_CODES
        self.remark = f"[{tag}] {words}" if tag else words
        self.retriable = retriable
        super().__init__(self.remark, code=code)


class ConditionUnmet(Refused):
    """A conditional change that was not made: the resource has another `version`; None: there is no
    such resource."""

    def __init__(self, version: str | None) -> None:
        has = "there is no such resource" if version is None else f"its version is {version}"
        super().__init__(ResponseCode.SYSTEM_ERROR, has)
        self.version = version


class OutcomeUnknown(RemotingError):
    """A change that was put into the log and may or may not be committed."""

    retriable = True
    tag = UNKNOWN

    def __init__(self, words: str) -> None:
        self.remark = f"[{UNKNOWN}] {words}"
        super().__init__(self.remark, outcome_unknown=True)


class StateError(Exception):
    """A command frame or a snapshot cannot be understood: this replica must not go on."""


class EngineError(Exception):
    """The configured replication engine cannot be used."""


def busy(words: str, *, retriable: bool = False) -> Refused:
    """Return the refusal of a request for which there is no room now."""
    return Refused(ResponseCode.SYSTEM_BUSY, words, tag="BUSY", retriable=retriable)


def not_leader(words: str = "this replica is not the leader") -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, words, tag=NOT_LEADER)


def rejected(reason: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, reason)


def forbidden(reason: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, reason)


def invalid(reason: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, reason)


def illegal(reason: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, reason)
