"""Compress large bodies; consumers decompress them automatically."""

import asyncio
import os
import sys

from raftmq import Compression, CompressionType, Message, Producer, PullConsumer, SendConfig

NAMESRV = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main(namesrv: str) -> None:
    body = b"a line of a log, much like the last one\n" * 5000
    for kind in CompressionType:
        config = SendConfig(compression=Compression(kind, from_bytes=4096))
        async with Producer("archive", namesrv, config=config) as producer:
            sent = await producer.send(Message("Logs", body))
        async with PullConsumer("readers", namesrv) as consumer:
            result = await consumer.pull(sent.queue, sent.queue_offset, 1)
        (message,) = result.messages
        small = message.store_size_bytes < len(body) // 50
        print(kind.name, message.body == body, "small" if small else message.store_size_bytes)


asyncio.run(main(NAMESRV))
