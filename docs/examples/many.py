"""Many messages: many sends in flight, one batch, and one that nobody answers."""

import asyncio
import os

from raftmq import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("meters", NAMESRV) as producer:
        # Each has an answer of its own; the broker commits as many as arrive together at once.
        sends = [producer.send(Message("Readings", b"%d" % n)) for n in range(1000)]
        results = await asyncio.gather(*sends)
        print(len(results), "acknowledged")

        # One frame on the wire, one queue, all or none.
        batch = await producer.send_batch([Message("Readings", b"a"), Message("Readings", b"b")])
        print("batch", batch.status, batch.queue_offset)

        # Sent and forgotten: nobody will say whether it was stored.
        await producer.send_oneway(Message("Readings", b"c"))


asyncio.run(main())
