"""Sign every request: credentials are part of a client's instance configuration."""

import asyncio
import os

from raftmq import Credentials, InstanceConfig, Message, Producer


async def main() -> None:
    namesrv = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    credentials = Credentials("orders-service", "a-secret-of-its-own")
    config = InstanceConfig(credentials=credentials)
    async with Producer("orders-service", namesrv, instance_config=config) as producer:
        result = await producer.send(Message("Orders", b"signed"))
        print(result.status.name)


asyncio.run(main())
