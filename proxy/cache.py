"""A cache of brokers' answers about topics and consumer groups.

A single refresh at a time replaces an expired answer. Callers wait at most OLD_S for the refresh
and then use the expired answer, so a silent broker delays nobody. The cache holds at most KNOWN_MAX
names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Generic, TypeVar

from .caller import Caller

KNOWN_S = 5.0  # lifetime of an answer
KNOWN_MAX = 10_000
OLD_S = 0.5
AGAIN_S = 3.0  # limit of a refresh

T = TypeVar("T")
Ask = Callable[[Caller], Awaitable[T | None]]
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class AnswerCache(Generic[T]):
    """Caches answers by name. `spawn(work, name)` starts tasks that outlive their call. `otherwise`
    is the answer for a name that brokers do not have."""

    def __init__(self, spawn: Spawn, otherwise: T) -> None:
        self._spawn = spawn
        self._otherwise = otherwise
        self._known: dict[str, tuple[float, T]] = {}  # each with its expiry time
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def get(self, name: str, caller: Caller, ask: Ask[T]) -> T:
        """Return the cached answer or the result of `ask`, which returns None for a missing name.
        Raises StatusError if there is neither."""
        now_s = asyncio.get_running_loop().time()
        if name not in self._known:
            return await self._refresh(name, caller, ask)
        if self._known[name][0] <= now_s:
            if name not in self._asking:
                later = replace(caller, deadline_s=now_s + AGAIN_S)
                asking = self._spawn(self._refresh(name, later, ask), "ask again")
                asking.add_done_callback(lambda _: self._asking.pop(name))
                self._asking[name] = asking
            old = self._known[name][1]
            await asyncio.wait((self._asking[name],), timeout=OLD_S)
            return self._known[name][1] if name in self._known else old
        return self._known[name][1]

    def expire(self, name: str) -> None:
        """Let the next call ask again."""
        if name in self._known:
            self._known[name] = (0.0, self._known[name][1])

    async def _refresh(self, name: str, caller: Caller, ask: Ask[T]) -> T:
        value = await ask(caller)
        if value is None:
            return self._known[name][1] if name in self._known else self._otherwise
        self._known.pop(name, None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = (asyncio.get_running_loop().time() + KNOWN_S, value)
        return value
