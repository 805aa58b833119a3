"""A load of blocking sends, from as many threads as there are sends in flight.

RocketMQ 5's clients are used as applications use them: a thread sends, waits and sends again. This
runs in the process of the client, whatever packages that has, and so needs none.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.wire import LoadResult


@dataclass(frozen=True, slots=True)
class Timed:
    """A load's result, and the CPU time of its client for all of it, in microseconds."""

    result: LoadResult
    client_us: float


@dataclass(slots=True)
class _Lane:
    """One thread that sends, and how its sends ended."""

    latencies_ns: array[int] = field(default_factory=lambda: array("q"))
    failed: int = 0

    def run(self, sends: Sequence[Callable[[], object]], end_s: float, turn: int) -> None:
        while time.perf_counter() < end_s:
            begun_ns = time.perf_counter_ns()
            try:
                sends[turn % len(sends)]()
                self.latencies_ns.append(time.perf_counter_ns() - begun_ns)
            except Exception as error:  # whatever a client raises: counted, and the load goes on
                self.failed += 1
                print(f"a send failed: {type(error).__name__}: {error}", file=sys.stderr)
            turn += 1


def timed(sends: Sequence[Callable[[], object]], in_flight: int, seconds: float) -> Timed:
    """Send for `seconds`, `in_flight` at a time, each thread by all of `sends` in turn. A send that
    raises is counted as refused."""
    lanes = [_Lane() for _ in range(in_flight)]
    client_s, begun_s = time.process_time(), time.perf_counter()
    threads = [
        threading.Thread(target=lane.run, args=(sends, begun_s + seconds, number))
        for number, lane in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, client_s = time.perf_counter() - begun_s, time.process_time() - client_s
    latencies = array("q", [ns for lane in lanes for ns in lane.latencies_ns])
    refused = sum(lane.failed for lane in lanes)
    return Timed(LoadResult(len(latencies), took_s, latencies, refused), client_s * 1e6)
