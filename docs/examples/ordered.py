"""Send the messages of a key to the same queue, so that they stay in order."""

import asyncio
import os
from collections.abc import Sequence
from zlib import crc32

from raftmq import Message, MessageQueue, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def by_customer(queues: Sequence[MessageQueue], message: Message, customer: str) -> MessageQueue:
    return queues[crc32(customer.encode()) % len(queues)]


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for customer in ("ada", "grace"):
            for step in ("created", "paid", "shipped"):
                message = Message("Steps", step.encode(), keys=customer)
                result = await producer.send(message, selector=by_customer, arg=customer)
                print(customer, step, result.queue.queue_id, result.queue_offset)


asyncio.run(main())
