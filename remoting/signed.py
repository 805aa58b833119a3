"""A dialled connection whose requests are signed. Shell.

Encoded frames (`write`, `request_nowait`) have to be signed by the caller (client.signedframe).
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import ClientConnection, ConnectionLimits, Handler, RawHandler


class SignedConnection(ClientConnection):
    """Signs what `invoke` and `invoke_oneway` send, just before it is encoded."""

    def __init__(
        self,
        credentials: Credentials,
        address: str,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits | None = None,
        on_raw: RawHandler | None = None,
    ) -> None:
        super().__init__(address, handlers, limits, on_raw)
        self._credentials = credentials

    async def invoke(self, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        self._credentials.sign(command)
        return await super().invoke(command, timeout_ms)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self._credentials.sign(command)
        super().invoke_oneway(command)
