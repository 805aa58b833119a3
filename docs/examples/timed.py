"""Deliver messages at a chosen time, and recall a message before it."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from raftmq import ConsumeFrom, ConsumerConfig, Message, MessageExt, Producer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    rung: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(messages: list[MessageExt]) -> None:
        for message in messages:
            rung.put_nowait(message.body)

    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("bells", NAMESRV, listen, config=first)
    consumer.subscribe("Bells")
    async with Producer("tower", NAMESRV) as producer, consumer:
        false = await producer.send(Message("Bells", b"false", delay_time=timedelta(hours=1)))
        await producer.recall("Bells", false.recall_handle)
        await producer.send(Message("Bells", b"soon", delay_time=timedelta(seconds=1)))
        at = datetime.now(UTC) + timedelta(seconds=3)
        await producer.send(Message("Bells", b"late", deliver_time=at))
        async with asyncio.timeout(60):
            print((await rung.get()).decode())
            print((await rung.get()).decode())
    print("on time" if datetime.now(UTC) >= at else "too early")


asyncio.run(main())
