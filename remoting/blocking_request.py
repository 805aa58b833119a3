"""A single request over a blocking socket, for commands and cheap health checks.

It needs no event loop and keeps no connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from .acl.signature import Credentials
from .address import parse_address
from .codec import FrameReader, decode_command, encode_command
from .codes import ResponseCode
from .command import RemotingCommand
from .errors import (
    ConnectError,
    ConnectionLost,
    RemotingError,
    RemotingProtocolError,
    SendTimeout,
)
from .tls import tls_reason

RECEIVE_BYTES = 64 * 1024
# In an answer's ext, one warning per line of a server that works.
WARNINGS = "warnings"


def ask(
    address: str,
    command: RemotingCommand,
    timeout_s: float,
    credentials: Credentials | None = None,
    *,
    context: ssl.SSLContext | None = None,
) -> RemotingCommand:
    """Send a request to `host:port` and return the answer. It is signed with `credentials`, over
    TLS with `context`. Raises ConnectError, ConnectionLost, SendTimeout, RemotingProtocolError."""
    host, port = parse_address(address)
    reader = FrameReader()
    if credentials is not None:
        credentials.sign(command)
    try:
        with _connected(host, port, timeout_s, context) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(encode_command(command))
            while (frame := reader.next_frame()) is None:
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionLost(f"{address} closed the connection", outcome_unknown=True)
                reader.receive_data(data)
    except TimeoutError as error:
        raise SendTimeout(f"{address} did not answer in time", outcome_unknown=True) from error
    except (BrokenPipeError, ConnectionResetError) as error:  # ConnectionRefusedError is below
        raise ConnectionLost(f"{address}: {error}", outcome_unknown=True) from error
    except ssl.SSLError as error:
        raise ConnectError(f"{address}: {tls_reason(error)}") from error
    except OSError as error:
        raise ConnectError(f"{address}: {error}") from error
    answer = decode_command(frame)
    if answer.opaque != command.opaque:
        raise RemotingProtocolError(f"{address} answered another request")
    return answer


def _connected(
    host: str, port: int, timeout_s: float, context: ssl.SSLContext | None
) -> socket.socket:
    """Connect, with TLS if there is a context. Raises OSError."""
    plain = socket.create_connection((host, port), timeout_s)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise


def complaint(
    address: str,
    code: int,
    timeout_s: float,
    judge: Callable[[RemotingCommand], str],
    credentials: Credentials | None = None,
    *,
    context: Callable[[], ssl.SSLContext | None] = lambda: None,
) -> str:
    """Return why the server at `host:port` is unhealthy, or "": it does not answer request `code`,
    rejects it, or `judge` returns a complaint. `context()` returns the TLS context and may raise
    TlsError."""
    try:
        request = RemotingCommand.request(code)
        answer = ask(address, request, timeout_s, credentials, context=context())
        if answer.code != ResponseCode.SUCCESS:
            return f"answers {answer.code}: {answer.remark}"
        return judge(answer)
    except RemotingError as error:
        return str(error)
