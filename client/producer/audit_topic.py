"""Writes a producer's acknowledgements into a topic, for `mqaudit watch`.

A message of the audit topic is a JSON object with a list for each column of COLUMNS, and an entry
of each list for each acknowledged message. A message is written for ROWS_MAX acknowledgements,
after FLUSH_S, and at the producer's end. A process that is killed loses the last FLUSH_S.

Acknowledgements that cannot be written are counted and logged; they never delay a send. Delayed and
transactional messages are not written, because their place in the topic is not known yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Sequence

import orjson

from ..errors import ClientError
from ..log_rate_limit import LogRateLimit
from ..message import Message, SendResult, SendStatus
from .pending_send import SendCallback

logger = logging.getLogger(__name__)

COLUMNS = ("msg_id", "topic", "broker", "queue_id", "queue_offset", "body_crc", "time_ms")
ROWS_MAX = 1_000  # 12 KB when compressed
FLUSH_S = 1.0
IN_FLIGHT_MAX = 64  # messages of the audit topic
TIMEOUT_MS = 30_000  # of a write: longer than a failover
FINISH_S = 3.0  # as long as a send

SendNowait = Callable[[Message, SendCallback, int], object]


class AuditTopic:
    """Collects acknowledgements. `send` starts a send of the producer."""

    def __init__(self, topic: str, send: SendNowait) -> None:
        self.lost = 0  # acknowledgements that are not, or perhaps not, in the topic
        self._topic = topic
        self._send = send
        self._rows: list[tuple[object, ...]] = []
        self._in_flight = 0
        self._written = asyncio.Event()
        self._log_limit = LogRateLimit()

    def noting(self, message: Message, callback: SendCallback) -> SendCallback:
        """Return a callback that records the acknowledgement before it calls `callback`. Messages
        of the audit topic itself are not recorded."""
        if message.topic == self._topic:
            return callback

        def settle(result: SendResult | None, error: ClientError | None) -> None:
            if result is not None:
                self.note(result, (message,))
            callback(result, error)

        return settle

    def note(self, result: SendResult, messages: Sequence[Message]) -> None:
        """Record an acknowledged send."""
        if result.status is not SendStatus.OK:
            return  # stored, and not yet as the group promises
        queue, offset, time_ms = result.queue, result.queue_offset, int(time.time() * 1000)
        for number, (msg_id, message) in enumerate(
            zip(result.msg_id.split(","), messages, strict=True)
        ):
            if not message.is_later:
                crc = zlib.crc32(message.body)
                self._rows.append((msg_id, *queue, offset + number, crc, time_ms))
        if len(self._rows) >= ROWS_MAX:
            self.flush()

    async def flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    async def finish(self) -> None:
        """Write the rest. Wait for all writes, for FINISH_S at most."""
        self.flush()
        try:
            async with asyncio.timeout(FINISH_S):
                while self._in_flight:
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            pass  # the engine's end fails these writes, which counts them

    def flush(self) -> None:
        """Start to write what is collected."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        count = len(rows)
        if self._in_flight >= IN_FLIGHT_MAX:
            self._lose(count, f"{self._in_flight} writes are in flight")
            return

        def settle(result: SendResult | None, error: ClientError | None) -> None:
            self._in_flight -= 1
            self._written.set()
            if error is not None:
                self._lose(count, str(error))

        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        self._in_flight += 1
        try:
            self._send(Message(self._topic, orjson.dumps(columns)), settle, TIMEOUT_MS)
        except ClientError as error:
            settle(None, error)

    def _lose(self, count: int, reason: str) -> None:
        self.lost += count
        if (suppressed := self._log_limit.due("lost")) is not None:
            logger.warning(
                "acknowledgements_not_written topic=%s count=%d lost=%d suppressed=%d: %s",
                *(self._topic, count, self.lost, suppressed, reason),
            )
