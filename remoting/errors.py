"""The errors between two peers. Pure.

Every error says two things that a caller must know before it tries again: `retriable`: another
attempt (perhaps elsewhere) may succeed; `outcome_unknown`: the peer may have carried the request
out although no answer came. `code` is the ResponseCode with which a server answers if a handler
raises the error.
"""

from .codes import ResponseCode


class RemotingError(Exception):
    """Base of this room's errors."""

    retriable = False

    def __init__(
        self,
        message: str,
        *,
        code: int = ResponseCode.SYSTEM_ERROR,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = int(code)
        self.outcome_unknown = outcome_unknown


class RemotingProtocolError(RemotingError):
    """The peer broke the protocol; its connection is closed."""


class HeaderError(RemotingError):
    """A request's extFields lack a field or hold a wrong value; answered, connection stays open."""


class BodyError(RemotingError):
    """A body does not have its request code's form; answered, connection stays open."""


class ConnectError(RemotingError):
    """No connection could be made: nothing was sent."""

    retriable = True


class ConnectionLost(RemotingError):
    """The connection ended first. `outcome_unknown` if the request was handed to the transport."""

    retriable = True


class SendTimeout(RemotingError):
    """No answer in time. `outcome_unknown` if the request was handed to the transport."""

    retriable = True


class TooManyRequests(RemotingError):
    """A bound on outstanding requests or unsent bytes is reached: nothing was sent."""

    retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ResponseCode.SYSTEM_BUSY)
