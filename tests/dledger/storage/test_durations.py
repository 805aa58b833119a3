"""How long calls hold a message up, without the time in which a thread waited for a processor."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from raftmq.dledger.storage import durations
from raftmq.dledger.storage.durations import ASK_MS, PERIODS, SUSPECT_MS, Durations


class Thread:
    """A thread that writes: its clock, and its time on a processor as the kernel counts it."""

    def __init__(self) -> None:
        self.now = self.busy = 1_000.0
        self.asked = 0
        self.kernel_reports = True
        self.calls = Durations(lambda: self.now, self._on_processor)

    def _on_processor(self) -> float | None:
        self.asked += 1
        return self.busy if self.kernel_reports else None

    def write(self, slept: float = 0.0, busy: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            self.calls.start()
            self.now += slept + busy
            self.busy += busy
            self.calls.end()

    def rest(self, ms: float) -> None:
        self.now += ms


def test_fast_writes_read_no_kernel_times() -> None:
    thread = Thread()
    thread.write(0.1, times=5_000)
    thread.rest(500)
    assert thread.calls.period() == pytest.approx(0.1 + 0.025)
    assert thread.asked == 0


def test_slow_disk_write_counts_with_the_wait_for_the_previous_write() -> None:
    thread = Thread()
    thread.write(20)  # nobody asked the kernel when it began
    assert thread.calls.period() is None
    thread.write(20, times=49)
    assert thread.calls.period() == pytest.approx(20 + 10, rel=0.05)


def test_starved_processor_does_not_count_as_a_slow_disk() -> None:
    thread = Thread()
    thread.write(busy=500, times=200)
    assert thread.calls.period() == 0.0
    thread.write(slept=SUSPECT_MS - 1, busy=500, times=200)
    held_up = thread.calls.period()
    assert held_up is not None
    assert held_up < SUSPECT_MS


def test_single_hanging_call_counts_for_several_periods() -> None:
    """The messages that arrive meanwhile wait for it, though few calls are slow."""
    thread = Thread()
    thread.write(SUSPECT_MS)
    thread.write(400)
    seen = []
    for _ in range(PERIODS + 1):
        thread.write(0.1, times=1_000)
        seen.append(thread.calls.period())
        thread.rest(1_000)
    *hung, last = [value or 0 for value in seen]
    assert min(hung) > 10
    assert last < 0.2


def test_call_in_progress_counts() -> None:
    thread = Thread()
    thread.write(0.1)
    thread.calls.start()
    thread.rest(700)
    assert thread.calls.period() == pytest.approx(700)


def test_calls_without_kernel_times_do_not_count() -> None:
    thread = Thread()
    thread.kernel_reports = False
    thread.write(1_000, times=100)
    assert thread.calls.period() is None


@pytest.mark.parametrize("content", ["", "1 2", "a b c", "0 0 0", None])
def test_malformed_kernel_times_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "schedstat"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(durations, "SCHEDSTAT", str(file))
    monkeypatch.setattr(durations, "_own", own := threading.local())
    assert durations.on_processor_ms() is None
    if content is not None:
        os.close(own.file)


def test_fast_writes_read_kernel_times_every_two_milliseconds() -> None:
    thread = Thread()
    thread.write(SUSPECT_MS)
    thread.write(0.1, times=1_000)
    assert thread.asked <= 1_000 * 0.1 / ASK_MS + 1


def test_on_processor_time_excludes_sleep() -> None:
    def passed(act: float, *, works: bool) -> float:
        before = durations.on_processor_ms()
        assert before is not None
        end = time.perf_counter() + act
        while works and time.perf_counter() < end:
            pass
        if not works:
            time.sleep(act)
        after = durations.on_processor_ms()
        assert after is not None
        return after - before

    assert passed(0.3, works=True) > 250
    assert passed(0.3, works=False) < 250
