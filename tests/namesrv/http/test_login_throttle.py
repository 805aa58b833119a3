"""Who has a provider asked, and when."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from raftmq.namesrv.http import login_throttle as exchanges
from raftmq.namesrv.http.login_throttle import EXCHANGES_MAX, WAITING_MAX, Exchanges, NoExchange


class Crowd:
    """Logins that each take their exchange until they are told to end."""

    def __init__(self) -> None:
        self.exchanges = Exchanges(600)
        self.entered: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def comes(self, state: str, address: str) -> None:
        self.ends[state] = asyncio.Event()
        self.tasks[state] = asyncio.create_task(self._login(state, address))
        for _ in range(3):
            await asyncio.sleep(0)

    async def ends_one(self, state: str) -> None:
        self.ends[state].set()
        await self.tasks[state]
        for _ in range(3):
            await asyncio.sleep(0)

    async def _login(self, state: str, address: str) -> None:
        async with self.exchanges.one(state, address):
            self.entered.append(state)
            await self.ends[state].wait()


async def test_logins_of_one_address_do_not_block_another() -> None:
    crowd = Crowd()
    for number in range(EXCHANGES_MAX + WAITING_MAX):
        await crowd.comes(f"s{number}", "10.0.0.1")
    assert len(crowd.entered) == EXCHANGES_MAX
    with pytest.raises(NoExchange, match="wait already") as refused:
        async with crowd.exchanges.one("more", "10.0.0.1"):
            pass
    assert refused.value.for_now
    await crowd.comes("honest", "10.0.0.2")
    await crowd.ends_one("s3")
    assert crowd.entered[-1] == "honest"  # before those that came earlier
    await crowd.ends_one("honest")
    assert crowd.entered[-1] == f"s{EXCHANGES_MAX}"
    crowd.tasks[f"s{EXCHANGES_MAX + 1}"].cancel()  # that browser has gone
    await crowd.ends_one("s4")
    assert crowd.entered[-1] == f"s{EXCHANGES_MAX + 2}"
    for event in crowd.ends.values():
        event.set()
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)
    assert len(crowd.entered) == EXCHANGES_MAX + WAITING_MAX
    for number in range(EXCHANGES_MAX):  # all places are free again
        await crowd.comes(f"t{number}", "10.0.0.1")
    assert crowd.entered[-EXCHANGES_MAX:] == [f"t{number}" for number in range(EXCHANGES_MAX)]
    for task in crowd.tasks.values():
        task.cancel()


async def test_login_has_one_token_exchange_unless_none_was_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanges, "WAIT_S", 0.01)
    result = Exchanges(600)
    async with AsyncExitStack() as held:
        for number in range(EXCHANGES_MAX):
            await held.enter_async_context(result.one(f"s{number}", "10.0.0.1"))
        with pytest.raises(NoExchange, match="no room") as refused:
            await held.enter_async_context(result.one("last", "10.0.0.2"))
        assert refused.value.for_now
    async with result.one("last", "10.0.0.2"):
        pass
    for state in ("last", "s0"):
        with pytest.raises(NoExchange, match="has had") as refused:
            async with result.one(state, "10.0.0.2"):
                pass
        assert not refused.value.for_now


async def test_remembered_login_states_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "USED_MAX", 3)
    result = Exchanges(600)
    for state in "abcd":
        async with result.one(state, "10.0.0.1"):
            pass
    with pytest.raises(NoExchange):
        async with result.one("d", "10.0.0.1"):
            pass
    async with result.one("a", "10.0.0.1"):
        pass
    over = Exchanges(0)  # the login itself is over then, and refused before
    for _ in range(2):
        async with over.one("a", "10.0.0.1"):
            pass
