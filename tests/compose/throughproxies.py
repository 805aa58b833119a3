"""Sends by one gRPC proxy and receives by another: run where the published ports are.

python -m tests.compose.throughproxies TOPIC PORT PORT
"""

import asyncio
import sys
from types import SimpleNamespace

from raftmq.proxy.protocol import messaging_pb2 as pb
from tests.proxy.world import Caller

COUNT = 8
WITHIN_S = 60.0


async def main(topic: str, ports: list[int]) -> None:
    one, other = (SimpleNamespace(port=port) for port in ports)
    async with (
        asyncio.timeout(WITHIN_S),
        Caller(one) as producer,
        Caller(other, client_id="c2") as consumer,
    ):
        names = {"topic": pb.Resource(name=topic), "group": pb.Resource(name="cg")}
        assigned = await consumer.ok("QueryAssignment", endpoints=consumer.endpoints, **names)
        queues = [each.message_queue for each in assigned.assignments]
        for queue in queues:
            await consumer.receive(topic, queue=queue)  # the group begins here
        for number in range(COUNT):
            entry = await producer.send(topic, b"%d" % number)
            assert entry.status.code == pb.Code.OK, entry
        bodies: set[bytes] = set()
        while len(bodies) < COUNT:
            for queue in queues:
                result = await consumer.receive(topic, queue=queue, poll_ms=1000)
                for message in [] if isinstance(result, pb.Status) else result:
                    assert await consumer.ack(message) == pb.Code.OK
                    bodies.add(message.body)
        assert bodies == {b"%d" % i for i in range(COUNT)}
    print(f"received {COUNT} of {COUNT} from {len(queues)} broker groups")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
