"""Hands batches to the user's listener and deals with what fails.

Concurrent: a failed message is sent back to the broker (36), which delivers it again later through
the group's retry topic. Where the broker does not support that, or cannot be reached, and always
when orderly: the messages are kept and delivered again here after a back-off. The offset does not
pass them before they succeed; nothing is skipped, nothing is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from client.errors import ClientError
from client.instance import ClientInstance
from client.message import ConsumeResult, MessageExt
from client.processqueue import Batch
from client.retry import RetryPolicy
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendBackHeader

logger = logging.getLogger(__name__)

Listener = Callable[[list[MessageExt]], "ConsumeResult | Awaitable[ConsumeResult | None] | None"]
RETRY_PREFIX = "%RETRY%"
# One try with a short failover's patience; after that the local back-off takes over.
SEND_BACK = RetryPolicy(20, 100, 2, 20, time_ms_max=1000)
UNSUPPORTED_MEMORY_S = 60.0  # how long "not supported" is remembered per broker group


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Local redelivery waits first * 2^n, at most max; `max_reconsume_times` goes to the broker."""

    retry_pause_ms_first: int = 1000
    retry_pause_ms_max: int = 30_000
    max_reconsume_times: int = 16
    send_back: bool = True  # False: always keep and retry here, as orderly consumers do


class Deliverer:
    """Runs the listener over a batch until every message of it is dealt with."""

    def __init__(
        self, group: str, listener: Listener, instance: ClientInstance, policy: FailurePolicy
    ) -> None:
        self._group = group
        self._listener = listener
        self._instance = instance
        self._policy = policy
        self._unsupported_until: dict[str, float] = {}
        self.delivered = 0  # messages the listener succeeded with
        self.failed = 0  # messages of failed deliveries, each time

    async def deliver(self, batch: Batch) -> None:
        """Returns when all messages succeeded or were taken back by the broker."""
        messages = batch.messages
        for message in messages:
            if message.topic.startswith(RETRY_PREFIX):
                _restore_topic(message)
        failures = 0
        while True:
            if await self._listen(messages):
                self.delivered += len(messages)
                return
            self.failed += len(messages)
            if self._policy.send_back:
                messages = [m for m in messages if not await self._send_back(m)]
                if not messages:
                    return
            pause_ms = min(
                self._policy.retry_pause_ms_first * 2 ** min(failures, 16),
                self._policy.retry_pause_ms_max,
            )
            failures += 1
            await asyncio.sleep(pause_ms / 1000)
            for message in messages:
                message.reconsume_times += 1

    async def offer(self, messages: list[MessageExt]) -> bool:
        """One attempt, for an administrator who asks; counted nowhere, not sent back."""
        for message in messages:
            if message.topic.startswith(RETRY_PREFIX):
                _restore_topic(message)
        return await self._listen(messages)

    async def _listen(self, messages: list[MessageExt]) -> bool:
        """True if the listener succeeded. What it raises is its answer: again later."""
        try:
            answer = self._listener(list(messages))
            result = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            logger.warning("listener_raised count=%d", len(messages), exc_info=error)
            return False
        if result is None or result is ConsumeResult.SUCCESS:
            return True
        if result is not ConsumeResult.RECONSUME_LATER:
            logger.error("listener_returned_nonsense value=%r", result)
        return False

    async def _send_back(self, message: MessageExt) -> bool:
        """True if the broker took the message and will deliver it again."""
        now = asyncio.get_running_loop().time()
        if self._unsupported_until.get(message.broker_name, 0.0) > now:
            return False
        header = SendBackHeader(
            message.commit_log_offset,
            self._group,
            0,
            message.msg_id,
            message.topic,
            False,
            self._policy.max_reconsume_times,
        )
        try:
            response = await self._instance.invoke_leader(
                message.broker_name,
                lambda: RemotingCommand.request(
                    RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext()
                ),
                leader_only=True,
                policy=SEND_BACK,
            )
        except ClientError as error:
            logger.info("send_back_failed message=%s error=%s", message.msg_id, error)
            return False
        if response.code == ResponseCode.SUCCESS:
            return True
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._unsupported_until[message.broker_name] = now + UNSUPPORTED_MEMORY_S
        logger.info(
            "send_back_refused message=%s code=%d remark=%s",
            message.msg_id, response.code, response.remark,
        )  # fmt: skip
        return False


def _restore_topic(message: MessageExt) -> None:
    """A message of the retry topic shows the topic it was first sent to (section 9.2)."""
    origin = message.properties.get("RETRY_TOPIC")
    if origin:
        message.topic = origin
