"""A member's work by the clock: what is done when, and when it looks at the clock next."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.ready_loop import Life
from raftmq.dledger.node.ticker import (
    CHECKS_PER_STEP,
    HEALING_MS,
    HOUSEKEEPING_MS,
    LATE,
    OVERDUE_MS,
    Chores,
)

STEP_MS = 75.0


class CoreClock:
    """Stands where the test's clock does."""

    step_ms_max = STEP_MS

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms

    def __call__(self) -> float:
        return self._clock_ms()

    turn = __call__


class HandAlarm:
    """Rings when the test does, and notes what it is set to."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] | None = None
        self.set_ms = math.inf

    def start(self, ring: Callable[[], None]) -> None:
        self.ring = ring

    def stop(self) -> None:
        self.ring = None

    def set(self, in_ms: float) -> None:
        self.set_ms = in_ms


class World:
    """Chores whose parts note what is done, at a time that the test sets."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.now_ms = 1_000.0
        self.life = Life(running=True)
        self.fails = self.damaged = False
        self.alarm = HandAlarm()
        note = self.note
        self.core = SimpleNamespace(
            node_id="n0",
            membership=SimpleNamespace(voters=()),
            timer=SimpleNamespace(back_off=SimpleNamespace(factor=1), contact_ms=-math.inf),
            next_deadline_ms=3_000.0,
            tick=note("core"),
        )
        self.log = SimpleNamespace(
            wants_next_segment=False, commitlog=SimpleNamespace(prepare_next=self.prepare)
        )
        pump = SimpleNamespace(
            life=self.life,
            core=self.core,
            core_ms=CoreClock(lambda: self.now_ms),
            alarm=self.alarm,
            log=self.log,
            links=None,
            disk=SimpleNamespace(
                poll=note("disk"),
                is_full=False,
                read_again=note("trial"),
            ),
            proposer=SimpleNamespace(expire=note("expire")),
            drive=lambda act: act(),
        )
        self.flusher = SimpleNamespace(
            tick=note("flush"), stalled_ms=lambda now_ms: 0.0, due_ms=math.inf
        )
        self.healer = SimpleNamespace(tick=note("heal"), has_work=lambda now_ms: self.damaged)
        self.installer = SimpleNamespace(tick=note("install"), is_busy=False)
        roster = SimpleNamespace(save=note("roster"), poll=note("look where peers are"))
        self.pool = ThreadPoolExecutor(1)
        made = cast(Any, Chores)  # of parts that only look like the real ones
        rollback = SimpleNamespace(tick=note("notes"))
        parts = (pump, self.flusher, self.healer, self.installer, roster, rollback)
        peer_info = SimpleNamespace(tick=note("peer info"))
        paces = SimpleNamespace(poll=note("paces"))
        standstill = SimpleNamespace(poll=note("standstill"))
        later = (peer_info, paces, standstill)
        self.chores: Chores = made(*parts, *later, self.pool, lambda: self.now_ms)
        self.chores.start()

    def note(self, what: str) -> Callable[..., None]:
        return lambda *_, **__: self.done.append(what)

    def prepare(self) -> None:
        self.done.append("prepare")
        if self.fails:
            raise OSError("no space")

    def poll(self, ms: float) -> list[str]:
        """Return what is done this much later."""
        self.now_ms += ms
        self.done.clear()
        assert self.alarm.ring is not None
        self.alarm.ring()
        return list(self.done)


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.pool.shutdown()


def test_ticker_runs_each_task_when_it_is_due(world: World) -> None:
    always, healing = ["flush", "disk"], ["heal", "install"]
    keeping = [
        "expire",
        "roster",
        "look where peers are",
        "trial",
        "notes",
        "peer info",
        "paces",
        "standstill",
    ]
    assert world.poll(0) == always + healing + keeping
    assert world.poll(HOUSEKEEPING_MS - 1) == always
    assert world.poll(1) == always + healing + keeping
    world.damaged = True
    assert world.poll(0) == always
    assert world.poll(HEALING_MS - 1) == always
    assert world.poll(1) == always + healing
    assert world.poll(HEALING_MS - 1) == always
    world.damaged = False
    assert world.poll(HOUSEKEEPING_MS) == always + healing + keeping
    assert world.poll(1_000) == [*always, "core", *healing, *keeping]


@pytest.mark.parametrize(
    ("core_ms", "expected_ms"),
    [
        (math.inf, STEP_MS * CHECKS_PER_STEP),
        (STEP_MS + 1, STEP_MS * CHECKS_PER_STEP),  # the stall-aware clock would lose the rest
        (STEP_MS, STEP_MS),
        (3.5, 3.5),
        (0, OVERDUE_MS),  # it can do nothing yet
        (-1_000, OVERDUE_MS),
    ],
)
def test_ticker_wakes_at_the_core_deadline_at_most_one_clock_step_later(
    world: World, core_ms: float, expected_ms: float
) -> None:
    world.core.next_deadline_ms = world.now_ms + core_ms
    world.poll(0)
    assert world.alarm.set_ms == expected_ms


def test_follower_ticker_sleeps_until_a_heartbeat_is_late(
    world: World,
) -> None:
    world.core.timer.contact_ms = world.now_ms
    world.poll(0)
    assert world.alarm.set_ms == STEP_MS * LATE
    world.poll(50)
    assert world.alarm.set_ms == STEP_MS * LATE - 50
    world.poll(STEP_MS * LATE - 50)
    assert world.alarm.set_ms == STEP_MS * CHECKS_PER_STEP
    world.core.next_deadline_ms = world.now_ms + 9
    world.poll(0)
    assert world.alarm.set_ms == 9


def test_ticker_wakes_early_enough_for_flush_repair_and_housekeeping(world: World) -> None:
    def rest_ms(later_ms: float) -> float:
        world.poll(later_ms)
        return world.alarm.set_ms

    at_rest_ms = STEP_MS * CHECKS_PER_STEP
    assert rest_ms(0) == at_rest_ms
    assert rest_ms(HOUSEKEEPING_MS - 20) == at_rest_ms, "housekeeping has time"
    world.flusher.due_ms = world.now_ms + 7
    assert rest_ms(0) == 7
    world.flusher.due_ms = math.inf  # a sync is in flight
    assert rest_ms(0) == at_rest_ms
    world.core.next_deadline_ms = math.inf
    for damaged, busy in ((True, False), (False, True)):
        world.damaged, world.installer.is_busy = damaged, busy
        assert rest_ms(HEALING_MS) == HEALING_MS
        assert rest_ms(30) == HEALING_MS - 30
    world.damaged = world.installer.is_busy = False
    assert rest_ms(HEALING_MS - 30) == at_rest_ms


async def test_ticker_retries_a_segment_preparation_that_failed(world: World) -> None:
    world.log.wants_next_segment = world.fails = True
    for _ in range(2):
        world.poll(HOUSEKEEPING_MS)
        await world.chores.stop()
        assert world.done.count("prepare") == 1
        await asyncio.sleep(0)  # its callback


def test_ticker_does_nothing_after_the_member_has_ended(world: World) -> None:
    world.life.running = False
    assert world.poll(1_000) == []
    assert world.alarm.set_ms == math.inf
    world.chores.cancel()
    assert world.alarm.ring is None
