"""A loop whose clock goes on with what it does and with what it waits for."""

from __future__ import annotations

import asyncio
import time

from tests.steadyloop import STEP_S, SteadyClock, SteadyLoop


def test_steady_clock_ignores_the_excess_of_a_wait() -> None:
    real_s = [100.0]
    clock = SteadyClock(lambda: real_s[0])
    real_s[0] += 3_600
    assert clock.now_s() == 100 + STEP_S, "an hour at once; the rest is not made up for"
    real_s[0] += 3_600
    clock.waited(2.0)
    assert clock.now_s() == 102 + STEP_S
    real_s[0] += 0.5
    clock.waited(2.0)
    assert clock.now_s() == 102.5 + STEP_S, "something came before"
    real_s[0] += 60
    clock.waited(None)
    assert clock.now_s() == 162.5 + STEP_S


def test_steady_loop_does_not_time_out_while_the_process_is_paused() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        began_s, real_s = loop.time(), time.monotonic()
        answer: asyncio.Future[str] = loop.create_future()
        loop.call_later(0.2, answer.set_result, "in time")
        loop.call_soon(time.sleep, 1.0)
        async with asyncio.timeout(0.9):
            assert await answer == "in time"
        assert time.monotonic() - real_s >= 1.1
        assert 0.2 <= loop.time() - began_s < 1.0

    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        runner.run(work())
