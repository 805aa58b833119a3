"""A measured client, which bench.cost runs in a checkout.

It prints a line of JSON with CPU microseconds per message, and messages per second.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from raftmq import client

TOPIC = "Bench"
BODY = b"x" * 128
TIMEOUT_S = 600


class Timer:
    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def figures(self, count: int) -> dict[str, float]:
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.perf_counter() - self._wall_s
        return {"client": cpu_s / count * 1e6, "rate": count / wall_s}


async def produce(namesrv: str, count: int, in_flight: int) -> dict[str, float]:
    """Make `count` sends, `in_flight` at a time, after as many that are not measured."""
    async with client.Producer("bench", namesrv) as producer:
        await producer.send(client.Message(TOPIC, BODY))

        async def run() -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sent = answered = 0

            def send_one() -> None:
                nonlocal sent
                sent += 1
                producer.send_nowait(client.Message(TOPIC, BODY), on_answer)

            def on_answer(result: object, error: BaseException | None) -> None:
                nonlocal answered
                answered += 1
                if error is not None and not done.done():
                    done.set_exception(error)
                elif sent < count:
                    send_one()
                elif answered == count and not done.done():
                    done.set_result(None)

            for _ in range(in_flight):
                send_one()
            await done

        await run()
        timer = Timer()
        await run()
        return timer.figures(count)


async def consume(namesrv: str, count: int, _: int) -> dict[str, float]:
    """Consume `count` messages that are there already, measured from the first delivery on."""
    seen = 0
    timer: Timer | None = None
    done: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()

    def listener(messages: list[Any]) -> None:
        nonlocal seen, timer
        timer = timer or Timer()
        seen += len(messages)
        if seen >= count and not done.done():
            done.set_result(timer.figures(seen))

    pulling = client.PullConfig(consume_batch_size=32)
    config = client.ConsumerConfig(consume_from=client.ConsumeFrom.FIRST_OFFSET, pull=pulling)
    consumer = client.PushConsumer(f"bench-{time.time_ns()}", namesrv, listener, config=config)
    consumer.subscribe(TOPIC)
    async with consumer:
        return await asyncio.wait_for(done, TIMEOUT_S)


if __name__ == "__main__":
    act = {"produce": produce, "consume": consume}[sys.argv[1]]
    print(json.dumps(uvloop.run(act(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
