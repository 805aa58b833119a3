"""Delay a message by a level; levels 1, 2, 3, … are 1 s, 5 s, 10 s, … (18 is 2 h)."""

import asyncio
import os
import time

from raftmq import ConsumeFrom, ConsumerConfig, Message, MessageExt, Producer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def listen(messages: list[MessageExt]) -> None:
        if not arrived.done():
            arrived.set_result(time.monotonic())

    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("alarm", NAMESRV, listen, config=first)
    consumer.subscribe("Reminders")
    async with Producer("clock", NAMESRV) as producer, consumer:
        sent = time.monotonic()
        await producer.send(Message("Reminders", b"tea is ready", delay_level=1))
        async with asyncio.timeout(60):
            seconds = await arrived - sent
    print("tea is ready" if seconds > 0.9 else "too early")


asyncio.run(main())
