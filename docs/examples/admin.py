"""Create a topic, and read offsets and messages, by program."""

import asyncio
import os

from raftmq import Admin, Message, MessageQueue, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Admin(NAMESRV) as admin, Producer("desk", NAMESRV) as producer:
        await admin.topic.create("Invoices", queues=2)
        queue = MessageQueue("Invoices", "broker-a", 0)
        sent = await producer.send(Message("Invoices", b"7.50", keys="i-1"), queue=queue)

        print("ends at", await admin.offset.max(queue))
        message = await admin.message.view(sent.offset_msg_id)
        print("found", message.body, message.keys)
        for name, group in (await admin.cluster.info()).brokers.items():
            print(name, "has", len(group.addresses), "brokers")


asyncio.run(main())
