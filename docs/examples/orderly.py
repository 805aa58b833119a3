"""Consume the steps of each order in turn; an orderly consumer holds its queues' locks."""

import asyncio
import os

from raftmq import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ("created", "paid", "packed", "shipped")


async def main() -> None:
    done: list[str] = []
    shipped = asyncio.Event()

    async def work(messages: list[MessageExt]) -> None:
        for message in messages:  # of a single queue, without a second batch until this returns
            done.append(message.body.decode())
        if STEPS[-1] in done:
            shipped.set()

    async with Producer("shop", NAMESRV) as producer:
        queue: MessageQueue | None = None  # the queues in turn, then the same queue for the key
        for step in STEPS:
            queue = (await producer.send(Message("Parcels", step.encode()), queue=queue)).queue

    config = ConsumerConfig(orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("packers", NAMESRV, work, config=config)
    consumer.subscribe("Parcels")
    async with consumer, asyncio.timeout(30):
        await shipped.wait()
    print(" ".join(done))


asyncio.run(main())
