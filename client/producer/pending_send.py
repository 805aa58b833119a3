"""An undecided send, and the rules by which it ends.

outcome of an attempt                 consequence
answered 0, 10, 11, 12                SendResult
answered 14, 2, 17, 16, 204, 205,
  215, 1500                           certainly not stored there: repeat elsewhere or later
answered 1                            unknown ([OUTCOME_UNKNOWN], quorum time-out): repeat
answered 1 with the field notStored   certainly not stored, and repeating would not help
answered anything else                certainly not stored, and repeating would not help
connection broke, or silence          unknown: repeat
deadline passed                       SendOutcomeUnknown if any attempt is unknown or not
                                      answered, else SendFailed

A send waits in `UnroutedSends` while a task per topic asks for the route. The sender ends overdue
sends and counts all of them, so its limits also hold for these. Pure, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from raftmq.remoting.codes import NOT_STORED, ResponseCode

from ..errors import CODE_NO_ROUTE, CODE_TIMEOUT, ClientError, SendFailed, SendOutcomeUnknown
from ..message import MessageQueue, SendResult, SendStatus
from .send_frame import OutgoingSend

if TYPE_CHECKING:
    import asyncio

SendCallback = Callable[[SendResult | None, ClientError | None], None]

ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
STORED = {int(status): status for status in SendStatus}
_NO_FIELDS: Mapping[str, str] = {}
RETRIED_ELSEWHERE = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,  # of a read-only broker
        ResponseCode.TOPIC_NOT_EXIST,  # of a broker that does not have the topic yet
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
    }
)


class Verdict(Enum):
    """The meaning of an answer for the send, and for the broker's leadership."""

    STORED = "stored"
    NOT_LEADER = "not leader"  # not stored; a different replica leads
    RETRY = "later"  # not stored; try a different group now, or this group after a pause
    UNKNOWN = "unknown"  # perhaps stored; repeat
    REFUSED = "refused"  # not stored, final


def judge(code: int, remark: str, ext: Mapping[str, str] = _NO_FIELDS) -> Verdict:
    """Judge an answered attempt by the table above."""
    if code in STORED:
        return Verdict.STORED
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        # The leader's disk is full, so a leader search would not help.
        return Verdict.RETRY if remark.startswith("[DISK_FULL]") else Verdict.NOT_LEADER
    if code == ResponseCode.GO_AWAY:
        return Verdict.NOT_LEADER
    if code == ResponseCode.SYSTEM_ERROR:
        # Access control rejects a request before its execution, and so do our brokers with this
        # field. Apache's use this code also if a message may be stored.
        refused = NOT_STORED in ext or remark.startswith(ACL_EXCEPTION)
        return Verdict.REFUSED if refused else Verdict.UNKNOWN
    if code in RETRIED_ELSEWHERE:
        return Verdict.RETRY
    return Verdict.REFUSED


def settling(future: asyncio.Future[SendResult]) -> SendCallback:
    """Return a callback that settles `future`, unless its caller was cancelled."""

    def settle(result: SendResult | None, error: ClientError | None) -> None:
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        else:
            assert error is not None
            future.set_exception(error)

    return settle


class Carrier(Protocol):
    """The channel of an attempt."""

    def forget(self, opaque: int) -> None:
        """Stop expecting an answer to `opaque`."""


@dataclass(slots=True, eq=False)
class Pending:
    """An undecided send. `channel` and `opaque` identify the current attempt, `earlier` abandoned
    unanswered attempts; their late success still counts."""

    item: OutgoingSend
    queue: MessageQueue
    fixed: bool  # the caller chose the queue, so no other group may be used
    deadline: float  # loop time, seconds
    callback: SendCallback
    attempts: int = 0
    unknown: bool = False
    done: bool = False
    code: int = CODE_TIMEOUT
    reason: str = "not sent in time"
    channel: Carrier | None = None
    opaque: int = 0
    sent_at: float = 0.0
    scout: asyncio.Future[bool] | None = None
    earlier: list[tuple[Carrier, int]] | None = None

    def failed_attempt(self, code: int, reason: str, unknown: bool) -> None:
        """Record that the current attempt ended without success."""
        if unknown or not self.unknown:  # the first attempt with an unknown outcome has the reason
            self.code, self.reason = code, reason
        self.unknown = self.unknown or unknown
        self.channel = None

    def error(self) -> SendFailed | SendOutcomeUnknown:
        if self.unknown or self.channel is not None:
            reason = self.reason if self.unknown else "not answered in time"
            return SendOutcomeUnknown(self.code, reason, self.attempts)
        return SendFailed(self.code, self.reason, self.attempts)


class UnroutedSends:
    """The unrouted sends of a producer, by topic, in the order of the calls."""

    def __init__(self) -> None:
        self._sends: dict[str, list[Pending]] = {}
        self._reasons: dict[str, str] = {}

    def add(self, topic: str, pending: Pending) -> None:
        self._sends.setdefault(topic, []).append(pending)

    def note(self, topic: str, reason: str) -> None:
        """Record why the route is unknown, for the errors of overdue sends."""
        if topic in self._sends:
            self._reasons[topic] = reason

    def latest(self, topic: str) -> float | None:
        """Return the last deadline of the topic's sends, or None."""
        return max((pending.deadline for pending in self._sends.get(topic, ())), default=None)

    def take(self, topic: str, until: float = math.inf) -> list[Pending]:
        """Remove and return the topic's sends with a deadline up to `until`."""
        sends = self._sends.pop(topic, [])
        kept = [pending for pending in sends if pending.deadline > until]
        if kept:
            self._sends[topic] = kept
        else:
            self._reasons.pop(topic, None)
        return [pending for pending in sends if pending.deadline <= until]

    def take_all(self) -> list[Pending]:
        return [pending for topic in list(self._sends) for pending in self.take(topic)]

    def overdue(self, now: float) -> list[Pending]:
        """Remove and return the overdue sends, each with its reason."""
        overdue: list[Pending] = []
        for topic in list(self._sends):
            reason = self._reasons.get(topic, "no name server answered in time")
            for pending in self.take(topic, now):
                pending.failed_attempt(CODE_NO_ROUTE, f"topic {topic!r}: {reason}", False)
                overdue.append(pending)
        return overdue
