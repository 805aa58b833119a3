"""Retry failed messages; they become dead letters in the end."""

import asyncio
import os

from raftmq import (
    ConsumeFrom,
    ConsumerConfig,
    FailurePolicy,
    Later,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    given_up = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> Later:
        for message in messages:
            print(message.body, "time", message.reconsume_times)
        return Later(delay_level=1)  # in a second; RECONSUME_LATER: 10 s, then longer each time

    async def dead(messages: list[MessageExt]) -> None:
        print("dead letter", messages[0].body)
        given_up.set()

    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("Hopeless", b"42"))
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, failure=FailurePolicy(max_reconsume_times=2)
    )
    consumer = PushConsumer("optimists", NAMESRV, listen, config=config)
    consumer.subscribe("Hopeless")
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    undertaker = PushConsumer("undertaker", NAMESRV, dead, config=first)
    undertaker.subscribe("%DLQ%optimists")
    async with consumer, undertaker, asyncio.timeout(60):
        await given_up.wait()


asyncio.run(main())
