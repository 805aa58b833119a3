"""gRPC status codes of failed calls and of brokers' answers.

A failed call has a `Status` in its answer, and gRPC's own status is OK, as clients expect.
"""

from __future__ import annotations

from raftmq.client.errors import (
    CODE_IN_FLIGHT_LIMIT,
    CODE_NO_ROUTE,
    BrokerRefused,
    ClientError,
    NameServerUnreachable,
    NoRoute,
)
from raftmq.client.message import SendStatus
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand

from .protocol.messaging_pb2 import Code, Status

MESSAGE_CHARS_MAX = 1_000
ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
UNKNOWN = "[OUTCOME_UNKNOWN]"

_BY_CODE = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
}
# A stored message that missed its broker's replication mode.
BY_SEND_STATUS = {
    SendStatus.OK: Code.OK,
    SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


class StatusError(Exception):
    """The status of a call that cannot be carried out."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{Code.Name(code)}: {message}")
        self.code = code
        self.message = message

    @property
    def status(self) -> Status:
        return status_of(self.code, self.message)


def status_of(code: Code, message: str = "") -> Status:
    """Return an answer's status; the text defaults to the code's name."""
    return Status(code=code, message=(message or Code.Name(code))[:MESSAGE_CHARS_MAX])


def status_error_for(response: RemotingCommand) -> StatusError:
    """Return the error for a broker's answer that is not SUCCESS."""
    return _refused(response.code, response.remark or "")


def status_error_of(error: ClientError) -> StatusError:
    if isinstance(error, BrokerRefused):
        return _refused(error.code, error.remark)
    if isinstance(error, NoRoute):
        # The form of Java's exceptions, which clients' tests expect.
        text = f"CODE: {ResponseCode.TOPIC_NOT_EXIST:d}  DESC: {error.reason}"
        return StatusError(Code.TOPIC_NOT_FOUND, text)
    if isinstance(error, NameServerUnreachable):
        return StatusError(Code.PROXY_TIMEOUT, error.message)
    if error.outcome_unknown:
        return StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, error.message)
    if error.code == CODE_IN_FLIGHT_LIMIT:
        return StatusError(Code.TOO_MANY_REQUESTS, error.message)
    if error.code < 0 or error.code == CODE_NO_ROUTE:  # no broker was reached in time
        return StatusError(Code.PROXY_TIMEOUT, error.message)
    return _refused(error.code, error.message)


def _refused(code: int, remark: str) -> StatusError:
    if remark.startswith(ACL_EXCEPTION):
        return StatusError(Code.FORBIDDEN, remark)
    if remark.startswith(UNKNOWN):
        return StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, remark)
    result = _BY_CODE.get(ResponseCode(code)) if code in set(ResponseCode) else None
    return StatusError(
        result or Code.INTERNAL_SERVER_ERROR, remark or f"the broker answered {code}"
    )
