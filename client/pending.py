"""A send that is not decided yet, and the rules of how it ends. Pure.

attempt's fate                        afterwards
answered 0, 10, 11, 12                SendResult
answered 14, 2, 17, 16, 204, 205,
  215, 1500                           certainly not stored there: again elsewhere or later
answered 1                            unknown ([OUTCOME_UNKNOWN], quorum time-out): again
answered anything else                certainly not stored, and again would not help
connection broke, or silence          unknown: again
out of time                           SendOutcomeUnknown if any attempt is unknown or not
                                      answered, else SendFailed
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from raftmq.client.errors import (
    CODE_TIMEOUT,
    ClientError,
    SendFailed,
    SendOutcomeUnknown,
)
from raftmq.client.message import MessageQueue, SendResult, SendStatus
from raftmq.client.sendframe import OutgoingSend

if TYPE_CHECKING:
    import asyncio

    from raftmq.client.channel import Channel

SendCallback = Callable[[SendResult | None, ClientError | None], None]

SYSTEM_ERROR = 1
ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
SYSTEM_BUSY = 2
SERVICE_NOT_AVAILABLE = 14
GO_AWAY = 1500
STORED = {int(status): status for status in SendStatus}
# 16 NO_PERMISSION is what a read-only broker says, 17 a broker that has not got the topic yet.
RETRIED_ELSEWHERE = frozenset({SYSTEM_BUSY, 16, 17, 204, 205, 215})


class Verdict(Enum):
    """What one answer means for the send and for the belief in the leader."""

    STORED = "stored"
    NOT_LEADER = "not leader"  # not stored; somebody else leads
    LATER = "later"  # not stored; another group now, or this one after a pause
    UNKNOWN = "unknown"  # perhaps stored; again
    REFUSED = "refused"  # not stored, final


def judge(code: int, remark: str) -> Verdict:
    """The table above, for an answered attempt."""
    if code in STORED:
        return Verdict.STORED
    if code == SERVICE_NOT_AVAILABLE:
        # A full disk is the leader's own trouble: looking for another leader would not help.
        return Verdict.LATER if remark.startswith("[DISK_FULL]") else Verdict.NOT_LEADER
    if code == GO_AWAY:
        return Verdict.NOT_LEADER
    if code == SYSTEM_ERROR:
        # Access control refuses before anything is done with the request.
        return Verdict.REFUSED if remark.startswith(ACL_EXCEPTION) else Verdict.UNKNOWN
    if code in RETRIED_ELSEWHERE:
        return Verdict.LATER
    return Verdict.REFUSED


class Pending:
    """One undecided send. `channel` and `opaque` name the current attempt; `earlier` the ones that
    were given up without an answer, whose late success still counts."""

    __slots__ = (
        "attempts",
        "callback",
        "channel",
        "code",
        "deadline",
        "done",
        "earlier",
        "fixed",
        "item",
        "opaque",
        "queue",
        "reason",
        "scout",
        "sent_at",
        "unknown",
    )

    def __init__(
        self,
        item: OutgoingSend,
        queue: MessageQueue,
        fixed: bool,
        deadline: float,
        callback: SendCallback,
    ) -> None:
        self.item = item
        self.queue = queue
        self.fixed = fixed  # the caller chose the queue: no other group will do
        self.deadline = deadline  # loop time, seconds
        self.callback = callback
        self.attempts = 0
        self.unknown = False
        self.done = False
        self.code = CODE_TIMEOUT
        self.reason = "not sent in time"
        self.channel: Channel | None = None
        self.opaque = 0
        self.sent_at = 0.0
        self.scout: asyncio.Future[bool] | None = None
        self.earlier: list[tuple[Channel, int]] | None = None

    def failed_attempt(self, code: int, reason: str, unknown: bool) -> None:
        """The current attempt is over without success."""
        self.code = code
        self.reason = reason
        self.unknown = self.unknown or unknown
        self.channel = None

    def error(self) -> SendFailed | SendOutcomeUnknown:
        """The error to end with now."""
        if self.unknown or self.channel is not None:
            reason = self.reason if self.unknown else "not answered in time"
            return SendOutcomeUnknown(self.code, reason, self.attempts)
        return SendFailed(self.code, self.reason, self.attempts)
