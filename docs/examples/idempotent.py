"""Send once over a crash, by a unique key that the program chooses."""

import asyncio
import os

from raftmq import Message, Producer, SendConfig

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
KEY = "till-7-receipt-4711"  # from the program's own database, equal after a crash


async def main() -> None:
    async with Producer("till", NAMESRV, config=SendConfig(idempotent=True)) as producer:
        first = await producer.send(Message("Receipts", b"42 EUR", unique_key=KEY))
        again = await producer.send(Message("Receipts", b"42 EUR", unique_key=KEY))
    where = (first.queue, first.queue_offset), (again.queue, again.queue_offset)
    print("stored once" if where[0] == where[1] else "stored twice")


asyncio.run(main())
