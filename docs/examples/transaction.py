"""Send a message if and only if the order is in the shop's database."""

import asyncio
import os

from raftmq import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageExt,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Till:
    """`orders` is the database."""

    def __init__(self) -> None:
        self.orders: set[str] = set()

    async def execute(self, message: Message, order: str) -> TransactionState:
        if order == "order-2":
            return TransactionState.ROLLBACK  # no money: no consumer gets it
        self.orders.add(order)
        if order == "order-3":
            return TransactionState.UNKNOWN  # for example disconnected: the broker will check
        return TransactionState.COMMIT

    async def check(self, message: MessageExt) -> TransactionState:
        known = message.keys in self.orders
        return TransactionState.COMMIT if known else TransactionState.ROLLBACK


async def main() -> None:
    heard: set[str] = set()  # a message may be delivered twice, especially by Apache's brokers
    both = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> None:
        heard.update(str(message.keys) for message in messages)
        if len(heard) == 2:
            both.set()

    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    kitchen = PushConsumer("kitchen", NAMESRV, listen, config=first)
    kitchen.subscribe("Sold")
    async with TransactionProducer("till", NAMESRV, Till()) as producer, kitchen:
        for order in ("order-1", "order-2", "order-3"):
            message = Message("Sold", order.encode(), keys=order)
            result = await producer.send_in_transaction(message, order)
            print(order, result.state.name)
        async with asyncio.timeout(120):
            await both.wait()
    print("heard of", sorted(heard))


asyncio.run(main())
