"""The waiting helpers: the first true answer, and an error that says what was waited for."""

import asyncio
import time

import pytest

from tests.waiting import TRIES_MIN, retrying, until, wait_until


async def test_until_returns_the_first_true_value():
    answers = [0, "", 7]
    assert await until(lambda: answers.pop(0)) == 7
    answers = [0, "", 8]
    assert wait_until(lambda: answers.pop(0)) == 8

    async def slow():
        await asyncio.sleep(0)
        answers.append(9)
        return answers

    assert await until(slow) == [9]


async def test_until_error_names_the_condition():
    with pytest.raises(AssertionError, match=r"not within 0.01 s: .*1 > 2.*there was 5"):
        await until(lambda: 1 > 2, lambda: 5, patience_s=0.01)
    with pytest.raises(AssertionError, match=r"not within 0.01 s: .*1 > 3"):
        wait_until(lambda: 1 > 3, patience_s=0.01)


async def test_until_gives_up_a_condition_that_hangs():
    with pytest.raises(AssertionError, match="sleep"):
        await until(lambda: asyncio.sleep(60), patience_s=0.01)


async def test_until_passes_on_a_time_out_of_the_condition():
    async def out_of_time():
        raise TimeoutError("its own")

    began = time.monotonic()
    with pytest.raises(TimeoutError, match="its own"):
        await until(out_of_time)
    assert time.monotonic() - began < 60


def test_retrying_gives_up_neither_after_one_slow_try_nor_over_other_errors() -> None:
    calls: list[str] = []

    def call(*said: str) -> None:
        calls.append(said[min(len(calls), len(said) - 1)])
        raise OSError(calls[-1])

    busy = retrying(lambda error: "busy" in str(error), patience_s=0, pause_s=0)
    with pytest.raises(OSError, match="busy"):
        busy(call, "busy")
    assert calls == ["busy"] * TRIES_MIN
    calls.clear()
    with pytest.raises(OSError, match="wrong"):
        busy(call, "busy", "wrong")
    assert calls == ["busy", "wrong"]
