"""Send a request and wait for the reply of a consumer."""

import asyncio
import os

from raftmq import ConsumeFrom, ConsumerConfig, Message, MessageExt, Producer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("guest", NAMESRV) as guest, Producer("kitchen", NAMESRV) as kitchen:

        async def answer(messages: list[MessageExt]) -> None:
            for question in messages:
                await kitchen.reply(question, question.body.upper())

        first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer("kitchen", NAMESRV, answer, config=first)
        consumer.subscribe("Questions")
        async with consumer:
            reply = await guest.request(Message("Questions", b"soup?"), timeout_ms=60_000)
            print(reply.body)


asyncio.run(main())
