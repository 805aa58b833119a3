"""The remoting room: RocketMQ's wire protocol, and connections that speak it.

Core (pure): codes, command, codec, fastjson, fields, headers, admin_headers, registration,
address, errors, pending. Shell (asyncio): connection, server, client.
"""

from remoting.client import RemotingClient
from remoting.codes import MQ_VERSION, LanguageCode, RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import ClientConnection, Connection, ConnectionLimits, ServerConnection
from remoting.errors import (
    BodyError,
    ConnectError,
    ConnectionLost,
    HeaderError,
    RemotingError,
    RemotingProtocolError,
    SendTimeout,
    TooManyRequests,
)
from remoting.server import RemotingServer, ServerLimits

__all__ = [
    "MQ_VERSION",
    "BodyError",
    "ClientConnection",
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
    "ServerConnection",
    "ServerLimits",
    "TooManyRequests",
]
