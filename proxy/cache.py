"""A cache of brokers' answers about topics and consumer groups, by name.

An answer that has become old is asked for again, by one question at a time, whose caller does not
matter. Whoever wants it meanwhile waits OLD_S for the new one and then takes the old: a broker that
does not answer holds nobody up. At most KNOWN_MAX names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Generic, TypeVar

from .caller import Caller

KNOWN_S = 5.0  # so long what a broker said of a topic or a group is believed
KNOWN_MAX = 10_000
OLD_S = 0.5
AGAIN_S = 3.0  # that the question for a new answer may take

T = TypeVar("T")
Ask = Callable[[Caller], Awaitable[T | None]]
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class Remembered(Generic[T]):
    """The answers. `spawn(work, name)` runs what outlives its call; `otherwise` is what holds of a
    name that brokers do not know."""

    def __init__(self, spawn: Spawn, otherwise: T) -> None:
        self._spawn = spawn
        self._otherwise = otherwise
        self._known: dict[str, tuple[float, T]] = {}  # until when it is believed
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def get(self, name: str, caller: Caller, ask: Ask[T]) -> T:
        """Return what is known, or what `ask` returns (None: brokers know no such name). Raises
        Refusal if nothing is known."""
        now_s = asyncio.get_running_loop().time()
        if name not in self._known:
            return await self._asked(name, caller, ask)
        if self._known[name][0] <= now_s:
            if name not in self._asking:
                later = replace(caller, deadline_s=now_s + AGAIN_S)
                asking = self._spawn(self._asked(name, later, ask), "ask again")
                asking.add_done_callback(lambda _: self._asking.pop(name))
                self._asking[name] = asking
            old = self._known[name][1]
            await asyncio.wait((self._asking[name],), timeout=OLD_S)
            return self._known[name][1] if name in self._known else old
        return self._known[name][1]

    async def _asked(self, name: str, caller: Caller, ask: Ask[T]) -> T:
        value = await ask(caller)
        if value is None:
            return self._known[name][1] if name in self._known else self._otherwise
        self._known.pop(name, None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = (asyncio.get_running_loop().time() + KNOWN_S, value)
        return value
