"""Deliver every message to every consumer, with offsets in a file."""

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from raftmq import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageExt,
    MessageModel,
    OffsetFile,
    Producer,
    PushConsumer,
)

NAMESRV = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main(namesrv: str) -> None:
    heard: dict[str, set[bytes]] = {"kitchen": set(), "counter": set()}
    everything = asyncio.Event()

    def radio(name: str, directory: str) -> PushConsumer:
        async def listen(messages: list[MessageExt]) -> None:
            heard[name] |= {message.body for message in messages}
            if all(len(bodies) == 3 for bodies in heard.values()):
                everything.set()

        config = ConsumerConfig(
            message_model=MessageModel.BROADCASTING,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            offset_storage=OffsetFile(Path(directory) / name / "offsets.json"),
        )
        consumer = PushConsumer("radios", namesrv, listen, config=config)
        consumer.subscribe("News")
        return consumer

    async with Producer("station", namesrv) as producer:
        for body in (b"one", b"two", b"three"):
            await producer.send(Message("News", body))
    with TemporaryDirectory() as directory:
        async with radio("kitchen", directory), radio("counter", directory), asyncio.timeout(30):
            await everything.wait()
    print(*(f"{name}: {len(bodies)}" for name, bodies in heard.items()))


asyncio.run(main(NAMESRV))
