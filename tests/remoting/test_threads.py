"""A task that waits for a thread stays until the thread has ended, even when it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from raftmq.remoting.threads import in_thread_to_its_end

HANG_S = 60  # only a hang takes so long


async def test_in_thread_returns_the_result_or_raises() -> None:
    assert await in_thread_to_its_end(int, "21", base=16) == 33
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread_to_its_end(int, "x")


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_caller_waits_until_its_thread_has_ended(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(HANG_S)
        if fails:
            raise OSError("no room, says the test")

    lock = asyncio.Lock()

    async def locked() -> None:
        async with lock:
            await in_thread_to_its_end(work)

    task = asyncio.create_task(locked())
    assert await asyncio.to_thread(started.wait, HANG_S)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lock.locked() and not task.done()
    with caplog.at_level(logging.ERROR):
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not lock.locked()
    assert ("no room, says the test" in caplog.text) is fails
