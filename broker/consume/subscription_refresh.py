"""Asks a consumer for its subscriptions when its pulls show that the broker's copy is old.

Java's client may leave out the heartbeat that reports a subscription's new version
(broker.consume.pull). For tags that does no harm. For an expression its pulls are answered 25
until the next heartbeat, up to 30 s later, unless the broker asks: GET_CONSUMER_RUNNING_INFO (307),
which administrators use, returns the current subscriptions, and the pull that the client repeats
after a second is served. One question to a client at a time, ASKED_MAX in all; a client that does
not answer is treated as before.
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
ASKED_MAX = 1_000
AGAIN_S = 3.0  # a client that did not answer is not asked again before


class SubscriptionQuestions:
    """Asks consumers for their subscriptions; one per broker."""

    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients
        self._asked: dict[tuple[str, str], asyncio.Task[None]] = {}

    def ask(self, connection: ClientConnection, group: str) -> None:
        """Ask this connection's consumer: it has a newer subscription than it reported."""
        member = self._clients.consumer(connection, group)
        if member is None or len(self._asked) >= ASKED_MAX:
            return
        key = (group, member.client_id)
        if key in self._asked:
            return
        task = asyncio.get_running_loop().create_task(self._ask(member, group))
        self._asked[key] = task
        task.add_done_callback(lambda _: self._asked.pop(key, None))

    async def stop(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, member: Member, group: str) -> None:
        ext = {"consumerGroup": group, "clientId": member.client_id, "jstackEnable": "false"}
        question = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        try:
            answer = await member.connection.invoke(question, TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingError(answer.remark or f"code {answer.code}")
            subscriptions = loads_object(answer.body).get("subscriptionSet") or []
            self._clients.subscriptions_told(group, subscriptions)
        except RemotingError as error:  # its next heartbeat will tell
            name = member.client_id
            log.info("subscription_not_told group=%s client=%s: %s", group, name, error)
            await asyncio.sleep(AGAIN_S)
