"""Read yesterday's messages again, from a time, without a group's offsets."""

import asyncio
import os
import time

from raftmq import LitePullConfig, LitePullConsumer, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("Journal", b"the day before"))
        await asyncio.sleep(0.1)
        yesterday_ms = int(time.time() * 1000)
        for number in range(8):
            await producer.send(Message("Journal", b"yesterday, %d" % number))

    config = LitePullConfig(auto_commit=False)  # a replay is no progress of a group
    async with LitePullConsumer("auditor", NAMESRV, config=config) as consumer:
        queues = await consumer.fetch_queues("Journal")
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, await consumer.offset_for(queue, yesterday_ms))
        read: list[bytes] = []
        while len(read) < 8:
            read += [message.body for message in await consumer.poll(timeout_ms=5_000)]
    print(*sorted(body.decode() for body in read), sep="\n")


asyncio.run(main())
