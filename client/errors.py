"""The client's errors, and their meaning for a message.

`code` is the broker's response code, or a negative client code of RocketMQ's own clients.
`retriable`: the same call may succeed later. `outcome_unknown`: the broker may or may not have
executed the request. A send ends in exactly one of: a SendResult (stored), SendFailed (certainly
not stored), SendOutcomeUnknown (may be stored, at most once per attempt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .message import Message, SendResult

__all__ = [
    "BrokerRefused",
    "BrokerUnreachable",
    "ClientClosed",
    "ClientError",
    "InvalidMessage",
    "NameServerUnreachable",
    "NoRoute",
    "RequestTimedOut",
    "SendError",
    "SendFailed",
    "SendOutcomeUnknown",
    "SplitFailed",
    "TooManyInFlight",
    "UnsupportedCompression",
    "WriterFenced",
]

CODE_TIMEOUT = -1006
CODE_NO_ROUTE = -1005
CODE_IN_FLIGHT_LIMIT = -1007
CODE_CLOSED = -1008


class ClientError(Exception):
    """Base of the client's errors."""

    retriable = False
    outcome_unknown = False

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message


class NoRoute(ClientError):
    """No name server has a readable or writable queue of the topic."""

    retriable = True

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(CODE_NO_ROUTE, f"no route to topic {topic!r}: {reason}")
        self.topic = topic
        self.reason = reason


class NameServerUnreachable(ClientError):
    """None of the configured name servers answered."""

    retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(CODE_TIMEOUT, message)


class BrokerRefused(ClientError):
    """A broker answered with an error code and the text `remark`. `outcome_unknown` is set on the
    instance if the broker reports an unknown outcome."""

    def __init__(self, code: int, remark: str, address: str) -> None:
        super().__init__(code, f"{address} answered: {remark or 'no remark'}")
        self.outcome_unknown = remark.startswith("[OUTCOME_UNKNOWN]")
        self.remark = remark
        self.address = address


class BrokerUnreachable(ClientError):
    """No replica of the group accepted the request in time. `outcome_unknown` is set on the
    instance if a request was written and not answered."""

    retriable = True

    def __init__(self, message: str, outcome_unknown: bool = False) -> None:
        super().__init__(CODE_TIMEOUT, message)
        self.outcome_unknown = outcome_unknown


class SendError(ClientError):
    """An unacknowledged send. `attempts` counts its writes to brokers."""

    def __init__(self, code: int, message: str, attempts: int) -> None:
        super().__init__(code, f"{message}, after {attempts} attempts")
        self.attempts = attempts


class SendFailed(SendError):
    """A send that certainly no broker stored."""

    def __init__(self, code: int, message: str, attempts: int = 0, retriable: bool = True) -> None:
        super().__init__(code, message, attempts)
        self.retriable = retriable


class SendOutcomeUnknown(SendError):
    """A send with at least one attempt that may be stored; sending it again may store it twice."""

    retriable = True
    outcome_unknown = True


class SplitFailed(ClientError):
    """One batch of several failed. `results` are of earlier batches; `unsent` has its messages and
    all later messages. With `outcome_unknown`, the first `in_doubt` of `unsent` may be stored; the
    rest is not."""

    def __init__(
        self,
        cause: ClientError,
        results: Sequence[SendResult],
        unsent: Sequence[Message],
        batch_count: int,
    ) -> None:
        super().__init__(cause.code, cause.message)
        self.retriable = cause.retriable
        self.outcome_unknown = cause.outcome_unknown
        self.results = list(results)
        self.unsent = list(unsent)
        self.in_doubt = batch_count if cause.outcome_unknown else 0


class WriterFenced(BrokerRefused):
    """A different process opened the writer `name`, so this process may not write any more."""

    def __init__(self, name: str, broker: str, remark: str) -> None:
        super().__init__(CODE_CLOSED, remark, broker)
        self.name = name


class TooManyInFlight(SendFailed):
    """The producer's own limit of unacknowledged messages or bytes is reached; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(CODE_IN_FLIGHT_LIMIT, message, 0, True)


class RequestTimedOut(ClientError):
    """The request is stored but no reply arrived in time; it may have been processed."""

    retriable = True
    outcome_unknown = True

    def __init__(self, message: str) -> None:
        super().__init__(CODE_TIMEOUT, message)


class ClientClosed(ClientError):
    """The producer, consumer or admin is not started, was stopped, or was started on a different
    event loop. `outcome_unknown` is set on the instance if that ended a running call."""

    def __init__(
        self, message: str = "the client is not running", outcome_unknown: bool = False
    ) -> None:
        super().__init__(CODE_CLOSED, message)
        self.outcome_unknown = outcome_unknown


class UnsupportedCompression(ClientError):
    """A stored body is compressed with an algorithm without an installed library."""

    def __init__(self, name: str) -> None:
        super().__init__(-1, f"message body is compressed with {name}, which is not supported here")


class InvalidMessage(ClientError):
    """The message or its topic violates RocketMQ's rules; it was not sent."""

    def __init__(self, message: str) -> None:
        super().__init__(13, message)
