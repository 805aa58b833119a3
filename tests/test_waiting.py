"""The waiting helpers: the first true answer, and an error that says what was waited for."""

import asyncio
import time

import pytest

from tests.waiting import until, wait_until


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
