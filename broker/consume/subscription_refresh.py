"""Requests a consumer's subscriptions if its pulls have a newer version.

Java's client may skip the heartbeat that reports a new subscription version (broker.consume.pull).
That is harmless for tags. With an expression its pulls would be answered 25 until the next
heartbeat, up to 30 s later. GET_CONSUMER_RUNNING_INFO (307) returns the current subscriptions, so
the client's retry after a second is served. Limits are a request in flight per client, and
ASKED_MAX in total. Without a response nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object

from ..clients import ClientConnection, ClientTable

if TYPE_CHECKING:
    from ..clients import Member

log = logging.getLogger("raftmq.broker.subscriptions")

TIMEOUT_MS = 5_000
REQUESTS_MAX = 1_000
AGAIN_S = 3.0  # after a failure


class SubscriptionRefresh:
    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients
        self._requests: dict[tuple[str, str], asyncio.Task[None]] = {}

    @property
    def pending_count(self) -> int:
        """Requests that consumers have not answered yet, at most REQUESTS_MAX."""
        return len(self._requests)

    def ask(self, connection: ClientConnection, group: str) -> None:
        member = self._clients.consumer(connection, group)
        if member is None or self.pending_count >= REQUESTS_MAX:
            return
        key = (group, member.client_id)
        if key in self._requests:
            return
        task = asyncio.get_running_loop().create_task(self._ask(member, group))
        self._requests[key] = task
        task.add_done_callback(lambda _: self._requests.pop(key, None))

    async def stop(self) -> None:
        tasks = list(self._requests.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, member: Member, group: str) -> None:
        ext = {"consumerGroup": group, "clientId": member.client_id, "jstackEnable": "false"}
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        try:
            answer = await member.connection.invoke(request, TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingError(answer.remark or f"code {answer.code}")
            subscriptions = loads_object(answer.body).get("subscriptionSet") or []
            self._clients.set_subscriptions(group, subscriptions)
        except RemotingError as error:  # its next heartbeat reports them
            name = member.client_id
            log.info("subscription_not_sent group=%s client=%s: %s", group, name, error)
            await asyncio.sleep(AGAIN_S)
