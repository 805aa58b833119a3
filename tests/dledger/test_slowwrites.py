"""Writes are slow if the writer slept in them, much and often; not if it waited for a processor."""

from __future__ import annotations

import time

import pytest

from raftmq.dledger import slowwrites
from raftmq.dledger.slowwrites import COUNT_MIN, REST_MS, SLOW_MS, WINDOW_MS, SlowWrites


class Thread:
    """A thread that writes: what the clock and the kernel say of it, in ms."""

    def __init__(self) -> None:
        self.now = self.busy = 1_000.0
        self.asked = 0
        self.kernel_tells = True
        self.watch = SlowWrites(lambda: self.now, self._on_processor)

    def _on_processor(self) -> float | None:
        self.asked += 1
        return self.busy if self.kernel_tells else None

    def write(self, slept: float = 0.0, busy: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            self.watch.begin()
            self.now += slept + busy
            self.busy += busy
            self.watch.end()

    def rest(self, ms: float) -> None:
        self.now += ms


def test_fast_writes_ask_the_kernel_nothing() -> None:
    thread = Thread()
    thread.write(SLOW_MS - 1, times=10_000)
    assert not thread.watch.are_slow
    assert thread.asked == 0


def test_a_disk_that_lets_each_write_wait_is_slow() -> None:
    thread = Thread()
    thread.write(100)  # the first is not counted: nobody looked when it began
    thread.write(100, times=29)
    assert not thread.watch.are_slow
    thread.write(100)
    assert thread.watch.are_slow


def test_a_starved_machine_is_no_slow_disk() -> None:
    thread = Thread()
    thread.write(busy=500, times=200)
    assert not thread.watch.are_slow
    thread.write(slept=SLOW_MS - 1, busy=500, times=200)
    assert not thread.watch.are_slow


def test_one_that_hangs_is_not_enough() -> None:
    thread = Thread()
    thread.write(100)
    thread.write(WINDOW_MS - 1, times=COUNT_MIN - 2)
    assert not thread.watch.are_slow


def test_now_and_then_is_not_enough() -> None:
    thread = Thread()
    for _ in range(1000):
        thread.write(100)
        thread.rest(400)  # a fifth
    assert not thread.watch.are_slow
    assert len(thread.watch._slept) <= WINDOW_MS / 500


def test_it_stays_slow_for_a_while_and_then_is_not() -> None:
    thread = Thread()
    thread.write(100, times=40)
    thread.rest(REST_MS - 1)
    assert thread.watch.are_slow
    thread.rest(1)
    assert not thread.watch.are_slow
    thread.write(100)
    thread.write(100, times=29)
    assert not thread.watch.are_slow, "what was before is forgotten"


def test_a_disk_that_goes_on_being_slow_goes_on_counting_as_slow() -> None:
    thread = Thread()
    thread.write(100, times=int(2 * REST_MS / 100))
    assert thread.watch.are_slow


def test_where_the_kernel_does_not_tell_nothing_is_slow() -> None:
    thread = Thread()
    thread.kernel_tells = False
    thread.write(1_000, times=100)
    assert not thread.watch.are_slow


@pytest.mark.parametrize("content", ["", "1 2", "a b c", "0 0 0"])
def test_a_kernel_that_tells_something_else(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    file = tmp_path / "schedstat"  # type: ignore[operator]
    file.write_text(content)
    monkeypatch.setattr(slowwrites, "SCHEDSTAT", str(file))
    assert slowwrites.on_processor_ms() is None
    monkeypatch.setattr(slowwrites, "SCHEDSTAT", str(tmp_path))
    assert slowwrites.on_processor_ms() is None


def test_the_kernel_tells_sleep_from_work() -> None:
    def passed(act: float, *, works: bool) -> float:
        before = slowwrites.on_processor_ms()
        assert before is not None
        end = time.perf_counter() + act
        while works and time.perf_counter() < end:
            pass
        if not works:
            time.sleep(act)
        after = slowwrites.on_processor_ms()
        assert after is not None
        return after - before

    assert passed(0.3, works=True) > 250
    assert passed(0.3, works=False) < 250
