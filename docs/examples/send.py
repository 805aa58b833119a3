"""Send one message and print where it is."""

import asyncio
import os

from raftmq import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        coffee = Message("Orders", b"one coffee", tags="drinks", keys="order-1")
        result = await producer.send(coffee)
        print(result.status, result.queue, result.queue_offset)


asyncio.run(main())
