"""bench.group and the cost of a process."""

from __future__ import annotations

import os
import threading
import time

from bench.group import cpu_us


def test_cpu_time_of_ended_threads_counts() -> None:
    spent: list[float] = []

    def work() -> None:
        started = time.thread_time()
        while time.thread_time() - started < 0.05:
            pass
        spent.append(time.thread_time() - started)

    before = cpu_us(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert cpu_us(os.getpid()) - before >= spent[0] * 1e6
