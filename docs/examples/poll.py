"""Poll for messages in a loop, with the group's queues distributed among consumers."""

import asyncio
import os

from raftmq import ConsumeFrom, LitePullConfig, LitePullConsumer, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 20


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for number in range(COUNT):
            await producer.send(Message("ToPrint", b"invoice %d" % number))

    first = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET, poll_size=8)
    consumer = LitePullConsumer("printer", NAMESRV, config=first)
    consumer.subscribe("ToPrint")
    printed = 0
    async with consumer:
        while printed < COUNT:
            for message in await consumer.poll(timeout_ms=5_000):
                printed += bool(message.body)
        await consumer.commit()  # all polled messages; the next poll would commit them as well
    print(printed, "printed")


asyncio.run(main())
