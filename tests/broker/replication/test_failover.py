"""Our name server, a group of three and our client: what is acknowledged is consumed, also when
the leader is killed in between."""

import asyncio
from typing import Any

from raftmq.client import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer
from raftmq.namesrv.server import NameServer, NameServerConfig
from tests.broker.cluster import Group
from tests.waiting import until


async def test_produce_and_consume_over_a_killed_leader(tmp_path):
    seen: dict[Any, Any] = {}

    def listener(messages):
        for message in messages:
            seen[message.body] = seen.get(message.body, 0) + 1

    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        async with Group(tmp_path, 3, namesrvAddr=namesrv) as group:
            name = await group.leader()
            await group.create_topic(group.brokers[name], "T")
            await until(lambda: server.table.queues("T") is not None)
            config = ConsumerConfig(
                consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=1_000
            )
            consumer = PushConsumer("cg", namesrv, listener, config=config)
            consumer.subscribe("T", "wanted")
            async with consumer, Producer("pg", namesrv) as producer:
                bodies = [b"m%d" % number for number in range(60)]
                for number, body in enumerate(bodies):
                    if number == 30:
                        await group.kill(name)
                    await producer.send(Message("T", body, tags="wanted"), timeout_ms=60_000)
                    await producer.send(Message("T", b"no", tags="other"), timeout_ms=60_000)
                await until(lambda: all(body in seen for body in bodies))
                assert b"no" not in seen
                await asyncio.sleep(0)
