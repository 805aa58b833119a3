"""The workloads of a run and their default options.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTES_MIN = 0.05  # of load
WINDOW_MAX = 16_384  # well below the producer's own bound on sends in flight
DESCRIPTIONS = {
    "log": "ordered sends at a constant rate, one group consumes",
    "ordered": "many keys, several producers, consumers that promise order",
    "group": "consumers that leave and come back, offsets committed and read",
    "metadata": "topics and groups created, changed and read back",
    "idempotent": "idempotent sends: stored once, over retries",
    "transactions": "committed, rolled back, or decided when a broker asks",
    "delayed": "messages that come after their delay, never before",
    "retries": "consumers that fail: comes again, in the end a dead letter",
    "pop": "messages popped and acknowledged, or not: done with once, none early",
    "locks": "orderly consumers that take their time, leave and come back",
}


@dataclass(frozen=True, slots=True)
class MessagesConfig:
    """A workload of messages. `rate_per_s` of all producers together, 0: a closed loop."""

    name: str
    topic: str
    group: str
    queues: int = 8  # in each broker group
    producers: int = 2
    consumers: int = 2
    rate_per_s: float = 4000.0
    window: int = 256  # per producer
    keys: int = 1000  # order keys per producer
    body_bytes: int = 128
    send_timeout_ms: int = 10_000
    orderly: bool = False
    once: bool = False  # producers send idempotently


LOG = MessagesConfig("log", "Chaos", "chaos-consumers")
ORDERED = MessagesConfig(
    "ordered", "ChaosOrdered", "chaos-ordered", producers=4, rate_per_s=1000.0, keys=2500,
    orderly=True,
)  # fmt: skip
ONCE = MessagesConfig(
    "idempotent", "ChaosOnce", "chaos-once", rate_per_s=200.0, keys=100, once=True
)
GROUP = MessagesConfig(
    "group", "ChaosGroup", "chaos-group", producers=1, consumers=3, rate_per_s=200.0, keys=100
)
