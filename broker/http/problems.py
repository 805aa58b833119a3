"""The errors of the rooms below, as problems of the HTTP API."""

from __future__ import annotations

from collections.abc import Callable

from raftmq.dledger.raft.errors import Busy, ChangeRefused, NotLeader, RaftError, UnknownTarget
from raftmq.dledger.raft.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.web.problem import (
    ApiProblem,
    busy,
    conflict,
    invalid,
    not_found,
    not_leader,
    outcome_unknown,
    unavailable,
)
from raftmq.web.versions import unmet

from ..errors import ConditionUnmet, OutcomeUnknown, Refused, StateError

ABSENT_CODES = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
UNAVAILABLE_TAGS = ("DISK_FULL", "DISK_ERROR")  # docs/errors.md


def translator(leader_http: Callable[[], str]) -> Callable[[Exception], ApiProblem | None]:
    """Return a function from an exception to its problem; None: it is none of ours. `leader_http`:
    where the leader's node API is, "" if that is not known."""

    def translate(error: Exception) -> ApiProblem | None:
        match error:
            case ConditionUnmet():
                return unmet(error.version)
            case CommandOutcomeUnknown() | OutcomeUnknown():
                return outcome_unknown(str(error))
            case NotLeader():
                return not_leader(leader_http())
            case Busy():
                return busy(str(error))
            case ChangeRefused() | UnknownTarget():
                return conflict(str(error), "REFUSED")
            case RaftError():
                return unavailable(str(error))
            case StateError():
                return invalid([("", str(error))])
            case Refused(tag="NOT_LEADER"):
                return not_leader(leader_http(), error.remark)
            case Refused(tag="BUSY"):
                return busy(error.remark)
            case Refused() if error.tag in UNAVAILABLE_TAGS:
                return unavailable(error.remark, error.tag)
            case RemotingError() if error.code in ABSENT_CODES:
                return not_found(str(error))
            case RemotingError(code=ResponseCode.SERVICE_NOT_AVAILABLE):
                return unavailable(str(error))
            case RemotingError():
                return conflict(str(error) or f"refused with code {error.code}", "REFUSED")
        return None

    return translate
