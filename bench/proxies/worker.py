"""RocketMQ 5's Python client in a process of its own, with the packages that the interop tests
install for it: a producer for each proxy.

Reads a load per line from its standard input, `[in_flight, seconds]` as JSON, and answers each with
a line. An empty line says that the producers have started.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from rocketmq import ClientConfiguration, Credentials, Message, Producer

from bench.proxies.lanes import timed

TIMEOUT_S = 10  # of a call


def main() -> None:
    topic, size_bytes, *endpoints = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    body = b"x" * int(size_bytes)
    producers = []
    for one in endpoints:
        config = ClientConfiguration(one, Credentials("", ""), "", TIMEOUT_S)
        producers.append(Producer(config, [topic]))
        producers[-1].startup()
    print(file=answers, flush=True)

    def send(producer: Producer) -> None:
        message = Message()
        message.topic, message.body = topic, body
        producer.send(message)

    sends = [partial(send, producer) for producer in producers]
    for line in sys.stdin:
        in_flight, seconds = json.loads(line)
        found = timed(sends, in_flight, seconds)
        answer = {
            "seconds": found.result.seconds,
            "latencies_ns": list(found.result.latencies_ns),
            "refused": found.result.refused,
            "client_us": found.client_us,
        }
        print(json.dumps(answer), file=answers, flush=True)
    for producer in producers:
        producer.shutdown()


if __name__ == "__main__":
    main()
