"""An alarm rings when it was set to, once, and never after it was stopped."""

from __future__ import annotations

import asyncio
import math

from raftmq.dledger.node.alarm import SOON_MS, Alarm
from tests.waiting import until

LONG_MS = 10_000_000


async def test_alarm_rings_once_per_setting() -> None:
    rings: list[int] = []
    alarm = Alarm()
    alarm.start(lambda: rings.append(1))
    for _ in range(3):
        await until(rings.copy)
        assert rings == [1] and alarm.due_s == math.inf
        rings.clear()
        alarm.set(0)
    alarm.stop()


async def test_alarm_soon_shortens_the_delay_and_never_extends_it() -> None:
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


async def test_alarm_due_at_once_waits_for_another_read_of_sockets() -> None:
    alarm = Alarm()
    alarm.start(lambda: None)
    now_s = asyncio.get_running_loop().time()
    for in_ms in (0, -50, 0.2):
        alarm.set(in_ms)
        assert alarm.due_s >= now_s + SOON_MS / 1000
    alarm.stop()


async def test_stopped_or_unstarted_alarm_does_not_ring() -> None:
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


async def test_alarm_now_rings_after_pending_reads_and_before_later_callbacks() -> None:
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


async def test_alarm_can_be_set_from_its_callback() -> None:
    rings: list[int] = []
    alarm = Alarm()

    def ring() -> None:
        rings.append(1)
        alarm.set(0)

    alarm.start(ring)
    await until(lambda: len(rings) >= 3)
    alarm.stop()
