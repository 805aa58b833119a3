"""The exceptions that the client raises. All of them are `ClientError`s."""

from raftmq.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NameServerUnreachable,
    NoRoute,
    RequestTimedOut,
    SendError,
    SendFailed,
    SendOutcomeUnknown,
    SplitFailed,
    TooManyInFlight,
    UnsupportedCompression,
)

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
]
