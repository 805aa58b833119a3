"""Send over TLS as configured in the file RAFTMQ_TLS_CONFIG_FILE; without it, in the clear."""

import asyncio
import os

from raftmq import InstanceConfig, Message, Producer, client_tls_of


async def main() -> None:
    namesrv = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    config = InstanceConfig(tls=client_tls_of(os.environ))
    async with Producer("orders-service", namesrv, instance_config=config) as producer:
        result = await producer.send(Message("Orders", b"nobody else reads this"))
        print(result.status.name)


asyncio.run(main())
