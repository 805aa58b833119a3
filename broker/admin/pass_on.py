"""Changes of definitions and accounts that reach a follower are passed on to the leader.

Apache's tools send such a change to all brokers of a cluster and stop at an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from raftmq.remoting.acl.signature import SIGNATURE
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection

from ..context import Context
from ..errors import not_leader

PASSED_ON = "passed on"  # the remark of such a change, which is not passed on again
TIMEOUT_MS = 5_000.0
Change = Callable[[Connection, RemotingCommand], Coroutine[Any, Any, RemotingCommand]]


class PassOn:
    """Wraps handlers of changes. Classic brokers handle each change themselves."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._leader = RemotingClient(tls=context.tls.client)

    async def close(self) -> None:
        await self._leader.close()

    def __call__(self, handler: Change) -> Change:
        """Return a handler that passes the change on unless this replica leads. The request keeps
        its signature. If it was admitted by its address, this node signs it."""

        async def at_leader(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            roles = self._context.roles
            if self._context.config.is_classic or roles.leading or request.remark == PASSED_ON:
                return await handler(connection, request)
            address = roles.leader_address
            if not address:
                raise not_leader()
            ext = dict(request.ext or {})
            command = RemotingCommand.request(request.code, ext, request.body)
            command.remark = PASSED_ON  # not part of the signed fields
            own = self._context.config.inner_credentials
            if SIGNATURE not in ext and own is not None:
                own.sign(command)
            answer = await self._leader.invoke(address, command, TIMEOUT_MS)
            return RemotingCommand.response_to(
                request, answer.code, answer.remark, answer.ext, answer.body
            )

        return at_leader
