"""Handle the three outcomes of a send."""

import asyncio
import os

from raftmq import Message, Producer, SendFailed, SendOutcomeUnknown

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def pay(producer: Producer, order: str) -> str:
    try:
        result = await producer.send(Message("Payments", order.encode(), keys=order))
    except SendFailed as error:
        # No broker has it or ever will: repeat it, or report the failure.
        return f"{order}: not sent ({error})"
    except SendOutcomeUnknown as error:
        # An attempt may have been stored, so a repetition may be a duplicate: look it up by
        # its key first, or let the consumer detect orders that it has processed.
        return f"{order}: perhaps sent ({error})"
    return f"{order}: stored at {result.queue_offset} of queue {result.queue.queue_id}"


async def main() -> None:
    async with Producer("till", NAMESRV) as producer:
        for line in await asyncio.gather(*(pay(producer, f"order-{n}") for n in range(3))):
            print(line)


asyncio.run(main())
