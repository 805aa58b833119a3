"""The errors between two peers.

A caller needs two properties before a retry. `retriable`: a further attempt, perhaps to a different
peer, may succeed. `outcome_unknown`: the peer may have executed the request although no answer
arrived. `code` is the ResponseCode of a server's answer if a handler raises the error. Pure,
without I/O.
"""

from .codes import ResponseCode


class RemotingError(Exception):
    """Base of this package's errors."""

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
    """The peer violated the protocol; its connection is closed."""


class HeaderError(RemotingError):
    """A request's extFields miss a field or have a wrong value. The connection stays open."""


class BodyError(RemotingError):
    """A body has the wrong form for its request code. The connection stays open."""


class ConnectError(RemotingError):
    """No connection could be made, and nothing was sent."""

    retriable = True


class ConnectionLost(RemotingError):
    """The connection ended first. `outcome_unknown` if the request was passed to the transport."""

    retriable = True


class SendTimeout(RemotingError):
    """No answer in time. `outcome_unknown` if the request was passed to the transport."""

    retriable = True


class TooManyRequests(RemotingError):
    """A limit of outstanding requests or unsent bytes is reached, and nothing was sent."""

    retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ResponseCode.SYSTEM_BUSY)
