"""Measures how many sends a second a cluster acknowledges to one producer in a closed loop."""

from __future__ import annotations

import asyncio
import time

from raftmq.client import Admin, ClientError, Message, Producer, SendResult

from ..cluster.credentials import signing

TOPIC = "ChaosCalm"
QUEUES = 8
IN_FLIGHT = 256
WARM_SHARE = 0.2  # of the time, before counting begins
BODY = bytes(128)
TIMEOUT_MS = 10_000


async def saturate(namesrv: str, seconds: float, in_flight: int = IN_FLIGHT) -> float:
    """Return acknowledged 128-byte sends a second, `in_flight` at once. Raises ClientError."""
    async with Admin(namesrv, instance_config=signing()) as admin:
        await admin.topic.create(TOPIC, QUEUES)
    async with Producer("chaos-calm", namesrv, instance_config=signing()) as producer:
        return await _Loop(producer, seconds).run(in_flight)


class _Loop:
    """Keeps a number of sends in flight until the time is over."""

    def __init__(self, producer: Producer, seconds: float) -> None:
        self._producer = producer
        self._begin_s = time.monotonic()
        self._count_from_s = self._begin_s + seconds * WARM_SHARE
        self._until_s = self._begin_s + seconds
        self._open = 0
        self._acknowledged = 0
        self._error: ClientError | None = None
        self._over = asyncio.Event()

    async def run(self, in_flight: int) -> float:
        for _ in range(in_flight):
            self._send()
        await self._over.wait()
        if self._error is not None:
            raise self._error
        return self._acknowledged / (self._until_s - self._count_from_s)

    def _send(self) -> None:
        self._open += 1
        self._producer.send_nowait(Message(TOPIC, BODY), self._decided, TIMEOUT_MS)

    def _decided(self, result: SendResult | None, error: ClientError | None) -> None:
        self._open -= 1
        now_s = time.monotonic()
        if error is not None:
            self._error = error  # no fault is active: a failed send is a finding
        elif self._count_from_s <= now_s < self._until_s:
            self._acknowledged += 1
        if now_s < self._until_s and self._error is None:
            self._send()
        elif self._open == 0:
            self._over.set()
