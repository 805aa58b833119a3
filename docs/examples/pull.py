"""Read a queue from an offset, in a program that keeps its own offsets."""

import asyncio
import os

from raftmq import Message, Producer, PullConsumer, PullStatus

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        sent = await producer.send(Message("Ledger", b"entry 0"))
        for number in range(1, 5):
            await producer.send(Message("Ledger", b"entry %d" % number), queue=sent.queue)

    async with PullConsumer("auditor", NAMESRV) as consumer:
        offset = await consumer.min_offset(sent.queue)
        while True:
            result = await consumer.pull(sent.queue, offset, count_max=2)
            if result.status is not PullStatus.FOUND:
                break  # end of the queue
            print(offset, [message.body for message in result.messages])
            offset = result.next_offset


asyncio.run(main())
