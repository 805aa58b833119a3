"""Filter by an expression over properties; the broker evaluates it."""

import asyncio
import os

from raftmq import ConsumeFrom, ConsumerConfig, Message, MessageExt, Producer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    bodies: list[bytes] = []
    all_of_them = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if b"the end" in bodies:
            all_of_them.set()

    async with Producer("shop", NAMESRV) as producer:
        sent = await producer.send(
            Message("Prices", b"tea", properties={"price": "3", "place": "inside"})
        )
        for body, price in ((b"cake", "7"), (b"water", "1"), (b"the end", "100")):
            properties = {"price": price, "place": "inside"}
            await producer.send(Message("Prices", body, properties=properties), queue=sent.queue)

    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("dear", NAMESRV, listen, config=first)
    consumer.subscribe("Prices", "price BETWEEN 5 AND 100 AND place = 'inside'", "SQL92")
    async with consumer, asyncio.timeout(30):
        await all_of_them.wait()
    print(bodies)


asyncio.run(main())
