"""bench.proxies.lanes: sends take turns, no more than are wanted at a time, and failures count."""

from __future__ import annotations

import threading
import time

import pytest

from bench.proxies.lanes import timed


def test_sends_take_turns_and_are_never_more_than_wanted_at_a_time() -> None:
    lock = threading.Lock()
    counts = [0, 0]
    under_way: set[int] = set()
    most = 0

    def send(which: int) -> None:
        nonlocal most
        me = threading.get_ident()
        with lock:
            counts[which] += 1
            under_way.add(me)
            most = max(most, len(under_way))
        time.sleep(0.001)
        with lock:
            under_way.remove(me)

    found = timed([lambda: send(0), lambda: send(1)], 3, 0.1)
    assert 1 <= most <= 3
    assert abs(counts[0] - counts[1]) <= 3
    assert found.result.messages == len(found.result.latencies_ns) == sum(counts)
    assert found.result.seconds >= 0.1
    assert found.result.refused == 0


def test_failed_sends_are_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    def send() -> None:
        time.sleep(0.001)
        raise ValueError("no route")

    found = timed([send], 1, 0.05)
    assert found.result.messages == 0
    assert found.result.refused > 0
    assert "ValueError: no route" in capsys.readouterr().err
