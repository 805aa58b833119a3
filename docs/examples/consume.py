"""Print the drinks among all orders until Ctrl-C."""

import asyncio
import os
import signal

from raftmq import ConsumeFrom, ConsumerConfig, MessageExt, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def listen(messages: list[MessageExt]) -> None:
    for message in messages:
        print(message.queue_id, message.queue_offset, message.keys, message.body, flush=True)


async def main() -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("bar", NAMESRV, listen, config=first)
    consumer.subscribe("Orders", "drinks || cakes")
    async with consumer:
        await ended.wait()


asyncio.run(main())
