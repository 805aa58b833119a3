"""What a member does by the clock, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from raftmq.dledger.chores import HEALING_MS, HOUSEKEEPING_MS, TICK_MS, Chores
from raftmq.dledger.pump import Life


class World:
    """Chores whose parts note what is done, at a time that the test sets."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.now_ms = 1_000.0
        self.life = Life(running=True)
        self.fails = False
        note = self.note
        core = SimpleNamespace(
            node_id="n0",
            membership=SimpleNamespace(voters=()),
            timer=SimpleNamespace(back_off=SimpleNamespace(factor=1)),
            next_deadline_ms=2_000.0,
            tick=note("core"),
        )
        self.log = SimpleNamespace(
            wants_next_segment=False, commitlog=SimpleNamespace(prepare_next=self.prepare)
        )
        pump = SimpleNamespace(
            life=self.life,
            core=core,
            core_ms=SimpleNamespace(turn=lambda: self.now_ms),
            log=self.log,
            disk=SimpleNamespace(
                look=note("disk"),
                health=SimpleNamespace(is_full=False),
                trial=SimpleNamespace(try_again=note("trial")),
            ),
            proposer=SimpleNamespace(expire=note("expire")),
            drive=self.drive,
        )
        flusher = SimpleNamespace(tick=note("flush"), stalled_ms=lambda now_ms: 0.0)
        healer = SimpleNamespace(tick=note("heal"))
        installer = SimpleNamespace(tick=note("install"))
        roster = SimpleNamespace(save=note("roster"))
        enforcement = SimpleNamespace(look=note("enforce"))
        self.pool = ThreadPoolExecutor(1)
        self.ticked = asyncio.Event()
        made = cast(Any, Chores)  # of parts that only look like the real ones
        parts = (pump, flusher, healer, installer, roster, enforcement)
        self.chores: Chores = made(*parts, self.pool, lambda: self.now_ms)

    def note(self, what: str) -> Callable[..., None]:
        return lambda *_, **__: self.done.append(what)

    def prepare(self) -> None:
        self.done.append("prepare")
        if self.fails:
            raise OSError("no space")

    def drive(self, act: Callable[[], None]) -> None:
        act()
        self.chores.cancel()  # one tick, however late this test goes on
        self.ticked.set()

    async def tick(self, ms: float) -> list[str]:
        """What one tick does, this much later."""
        self.now_ms += ms
        self.done.clear()
        self.ticked.clear()
        self.chores.start()
        await self.ticked.wait()
        await self.chores.stop()
        return list(self.done)


async def test_each_chore_is_done_when_it_is_due() -> None:
    world = World()
    always, healing = ["flush", "disk"], ["heal", "install"]
    keeping = ["expire", "roster", "enforce", "trial"]
    assert await world.tick(0) == always + healing + keeping
    assert await world.tick(HEALING_MS) == always + healing
    assert await world.tick(HEALING_MS - 1) == always
    assert await world.tick(HOUSEKEEPING_MS) == always + healing + keeping
    assert await world.tick(1_000) == [*always, "core", *healing, *keeping]
    world.pool.shutdown()


async def test_a_segment_that_cannot_be_prepared_is_asked_for_again() -> None:
    world = World()
    world.log.wants_next_segment = world.fails = True
    assert (await world.tick(0)).count("prepare") == 1
    assert (await world.tick(HOUSEKEEPING_MS)).count("prepare") == 1
    world.pool.shutdown()


async def test_nothing_is_done_any_more_once_the_member_has_ended() -> None:
    world = World()
    world.chores.start()
    world.life.running = False
    await asyncio.sleep(TICK_MS / 1000 * 3)
    assert world.done == []
    world.pool.shutdown()
