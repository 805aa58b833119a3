"""Sends messages that a consumer could not process back to the broker.

CONSUMER_SEND_MSG_BACK (36) is tried first, because the broker has the message and needs only its
offset. If that fails, the full message is sent to the group's retry topic. After a lost answer both
may take effect, and the message is delivered twice, as at-least-once allows.
"""

from __future__ import annotations

import asyncio
import logging
import time

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendBackHeader, SendHeader

from ..errors import ClientError
from ..instance import ClientInstance
from ..message import RETRY_PREFIX, MessageExt, properties_text
from ..producer.pending_send import STORED
from ..retry import RetryPolicy

logger = logging.getLogger(__name__)

# Long enough for a failover; then the message is kept here for a while.
PATIENCE = RetryPolicy(20, 100, 2, 20, time_ms_max=1000)
UNSUPPORTED_MEMORY_S = 60.0  # how long "not supported" is remembered per broker group
DELAY_LEVEL_FIRST = 3  # of a message's first redelivery, plus 1 for each further redelivery


class SendBack:
    """Sends a consumer group's messages back."""

    def __init__(self, group: str, instance: ClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._unsupported_until: dict[str, float] = {}

    async def send(self, message: MessageExt, delay_level: int, reconsume_times_max: int) -> bool:
        """Send a message back; return whether the broker has it. It is redelivered after
        `delay_level` (0 for the broker's choice), or becomes a dead letter with `delay_level` < 0
        or after `reconsume_times_max`."""
        if await self._ask_back(message, delay_level, reconsume_times_max):
            return True
        return await self._send_full(message, delay_level, reconsume_times_max)

    async def _ask_back(self, message: MessageExt, delay_level: int, times_max: int) -> bool:
        now = asyncio.get_running_loop().time()
        if self._unsupported_until.get(message.broker_name, 0.0) > now:
            return False
        header = SendBackHeader(
            message.commit_log_offset,
            self._group,
            delay_level,
            message.properties.get("ORIGIN_MESSAGE_ID") or message.msg_id,
            message.topic,
            False,
            times_max,
        )
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        response = await self._ask(message, RemotingCommand.request(code, header.to_ext()))
        if response is None:
            return False
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._unsupported_until[message.broker_name] = now + UNSUPPORTED_MEMORY_S
        return response.code == ResponseCode.SUCCESS

    async def _send_full(self, message: MessageExt, delay_level: int, times_max: int) -> bool:
        times = message.reconsume_times + 1
        if delay_level < 0:
            times = max(times, times_max + 1)  # over the limit, so a dead letter
        properties = dict(message.properties)
        properties.pop("TRAN_MSG", None)
        properties["RETRY_TOPIC"] = message.topic
        properties["ORIGIN_MESSAGE_ID"] = properties.get("ORIGIN_MESSAGE_ID") or message.msg_id
        properties["RECONSUME_TIME"] = str(times)
        properties["MAX_RECONSUME_TIMES"] = str(times_max)
        properties.pop("DELAY", None)
        if delay_level >= 0:
            properties["DELAY"] = str(delay_level or DELAY_LEVEL_FIRST + message.reconsume_times)
        header = SendHeader(
            self._group,
            RETRY_PREFIX + self._group,
            "TBW102",
            4,
            -1,  # the broker chooses a queue
            0,
            int(time.time() * 1000),
            message.flag,
            properties_text(properties),
            times,
            False,
            times_max,
        )
        code = RequestCode.SEND_MESSAGE_V2
        command = RemotingCommand.request(code, header.to_ext(code), message.body)
        response = await self._ask(message, command)
        return response is not None and response.code in STORED

    async def _ask(self, message: MessageExt, command: RemotingCommand) -> RemotingCommand | None:
        """Return the leader's answer, or None if there is none now."""
        ext, body = dict(command.ext or {}), command.body
        try:
            response = await self._instance.invoke_leader(
                message.broker_name,
                lambda: RemotingCommand.request(command.code, dict(ext), body),
                leader_only=True,
                policy=PATIENCE,
            )
        except ClientError as error:
            logger.info("send_back_failed message=%s error=%s", message.msg_id, error)
            return None
        if response.code not in STORED:
            logger.info(
                "send_back_refused message=%s request=%d code=%d remark=%s",
                message.msg_id, command.code, response.code, response.remark,
            )  # fmt: skip
        return response
