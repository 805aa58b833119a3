"""The three ways in which a send ends, and what a program may do then."""

import asyncio
import os

from raftmq import Message, Producer, SendFailed, SendOutcomeUnknown

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def pay(producer: Producer, order: str) -> str:
    try:
        result = await producer.send(Message("Payments", order.encode(), keys=order))
    except SendFailed as error:
        # No broker has it and none ever will: do it again, or tell the customer.
        return f"{order}: not sent ({error})"
    except SendOutcomeUnknown as error:
        # Some attempt may have been stored. Sent again, it may be there twice: look it up by
        # its key first, or have the consumer notice that it knows this order already.
        return f"{order}: perhaps sent ({error})"
    return f"{order}: stored at {result.queue_offset} of queue {result.queue.queue_id}"


async def main() -> None:
    async with Producer("till", NAMESRV) as producer:
        for line in await asyncio.gather(*(pay(producer, f"order-{n}") for n in range(3))):
            print(line)


asyncio.run(main())
