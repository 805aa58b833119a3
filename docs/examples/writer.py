"""Write daily totals into a topic, each once over any number of restarts."""

import asyncio
import os

from raftmq import Admin, ExactlyOnceWriter, Message

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOTALS = {20261121: ["apples 7", "pears 3"], 20261122: ["apples 2"]}  # day → results


async def main() -> None:
    async with Admin(NAMESRV) as admin:
        await admin.topic.create("Totals", queues=1)
    async with ExactlyOnceWriter("totals", "Totals", NAMESRV) as writer:
        queue = writer.queues[0]
        for day, lines in TOTALS.items():
            messages = [Message("Totals", line.encode(), keys=str(day)) for line in lines]
            if await writer.write(queue, batch=day, sequence=0, messages=messages):
                print(f"{day}: {len(messages)} messages")
            else:
                print(f"{day}: was written before")


asyncio.run(main())
