"""The broker room's errors: they say whether a retry can help and whether the effect is known."""

from __future__ import annotations

from raftmq.ops.options import ConfigError
from raftmq.remoting.errors import RemotingError

__all__ = ["ConfigError", "EngineError", "OutcomeUnknown", "Refused", "StateError"]

UNKNOWN_PREFIX = "[OUTCOME_UNKNOWN]"  # starts a remark; clients know it


class Refused(RemotingError):
    """A request that is definitely not carried out; `code` and the text go to the requester."""

    def __init__(self, code: int, remark: str, *, retriable: bool = False) -> None:
        super().__init__(remark, code=code)
        self.remark = remark
        self.retriable = retriable


class OutcomeUnknown(RemotingError):
    """A change that was put into the log and may or may not be committed."""

    retriable = True

    def __init__(self, remark: str) -> None:
        super().__init__(f"{UNKNOWN_PREFIX} {remark}", outcome_unknown=True)


class StateError(Exception):
    """A command frame or a snapshot makes no sense: this replica must not go on."""


class EngineError(Exception):
    """The configured replication engine cannot be used."""
