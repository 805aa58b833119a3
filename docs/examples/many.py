"""Many sends in flight, a batch, and a send without an answer."""

import asyncio
import os

from raftmq import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("meters", NAMESRV) as producer:
        # Each send gets its own answer; the broker commits sends that arrive together.
        sends = [producer.send(Message("Readings", b"%d" % n)) for n in range(1000)]
        results = await asyncio.gather(*sends)
        print(len(results), "acknowledged")

        # A single request to a single queue, all or none.
        batch = await producer.send_batch([Message("Readings", b"a"), Message("Readings", b"b")])
        print("batch", batch.status, batch.queue_offset)

        # One-way: no answer reports whether it was stored.
        await producer.send_oneway(Message("Readings", b"c"))


asyncio.run(main())
