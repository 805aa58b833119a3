"""The remoting room: RocketMQ's wire protocol, and connections that speak it.

Core (pure): codes, command, codec, fastjson, fields, headers, admin_headers, registration, address,
errors, pending. Shell (asyncio): connection, server, client.
"""

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import MQ_VERSION, LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, ConnectionLimits
from raftmq.remoting.errors import (
    BodyError,
    ConnectError,
    ConnectionLost,
    HeaderError,
    RemotingError,
    RemotingProtocolError,
    SendTimeout,
    TooManyRequests,
)
from raftmq.remoting.server import RemotingServer, ServerLimits

__all__ = [
    "MQ_VERSION",
    "BodyError",
    "ConnectError",
    "Connection",
    "ConnectionLimits",
    "ConnectionLost",
    "HeaderError",
    "LanguageCode",
    "RemotingClient",
    "RemotingCommand",
    "RemotingError",
    "RemotingProtocolError",
    "RemotingServer",
    "RequestCode",
    "ResponseCode",
    "SendTimeout",
    "ServerLimits",
    "TooManyRequests",
]
