"""Blocking clients for scripts, and for listeners that block."""

import os
import threading

from raftmq import (
    BlockingConsumer,
    BlockingProducer,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageExt,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 3

seen: list[bytes] = []
enough = threading.Event()


def listen(messages: list[MessageExt]) -> None:
    seen.extend(message.body for message in messages)  # in one of eight threads
    if len(seen) >= COUNT:
        enough.set()


with BlockingProducer("mail", NAMESRV) as producer:
    for number in range(COUNT):
        producer.send(Message("Letters", b"letter %d" % number))

first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = BlockingConsumer("postman", NAMESRV, listen, config=first)
consumer.subscribe("Letters")
with consumer:
    print("all of them" if enough.wait(timeout=60) else "not yet", sorted(seen))
