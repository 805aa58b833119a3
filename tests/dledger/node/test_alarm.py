"""An alarm rings when it was set to, once, and never after it was stopped."""

from __future__ import annotations

import asyncio
import math

from raftmq.dledger.node.alarm import SOON_MS, Alarm
from tests.waiting import until

LONG_MS = 10_000_000


async def test_it_rings_soon_after_its_start_and_once_each_time_it_is_set() -> None:
    rings: list[int] = []
    alarm = Alarm()
    alarm.start(lambda: rings.append(1))
    for _ in range(3):
        await until(rings.copy)
        assert rings == [1] and alarm.due_s == math.inf
        rings.clear()
        alarm.set(0)
    alarm.stop()


async def test_soon_is_earlier_than_set_but_never_later() -> None:
    alarm = Alarm()
    alarm.start(lambda: None)
    first = alarm.due_s
    alarm.soon()
    assert alarm.due_s == first, "it was to ring soon"
    alarm.set(LONG_MS)
    far = alarm.due_s
    alarm.soon()
    assert alarm.due_s < far - 1
    alarm.stop()


async def test_what_is_due_at_once_comes_after_another_look_at_what_arrived() -> None:
    alarm = Alarm()
    alarm.start(lambda: None)
    now_s = asyncio.get_running_loop().time()
    for in_ms in (0, -50, 0.2):
        alarm.set(in_ms)
        assert alarm.due_s >= now_s + SOON_MS / 1000
    alarm.stop()


async def test_it_does_not_ring_before_its_start_or_after_its_stop() -> None:
    rings: list[int] = []
    alarm = Alarm()
    alarm.set(0)
    alarm.soon()
    assert alarm.due_s == math.inf
    alarm.start(lambda: rings.append(1))
    alarm.stop()
    alarm.set(0)
    alarm.soon()
    await asyncio.sleep(0.01)
    assert not rings and alarm.due_s == math.inf


async def test_now_is_behind_what_was_read_and_before_anything_else_is() -> None:
    reported: list[str] = []
    alarm = Alarm()
    alarm.start(lambda: reported.append("ring"))
    alarm.set(LONG_MS)
    loop = asyncio.get_running_loop()
    loop.call_soon(reported.append, "read before")
    alarm.now()
    alarm.now()
    alarm.soon()
    loop.call_soon(reported.append, "read afterwards")
    await asyncio.sleep(0)
    assert reported == ["read before", "ring", "read afterwards"]
    alarm.now()
    alarm.stop()
    await asyncio.sleep(0)
    assert len(reported) == 3


async def test_it_may_be_set_while_it_rings() -> None:
    rings: list[int] = []
    alarm = Alarm()

    def ring() -> None:
        rings.append(1)
        alarm.set(0)

    alarm.start(ring)
    await until(lambda: len(rings) >= 3)
    alarm.stop()
