"""`async with` and `with` for clients, made of their own `start` and `stop`.

A client class takes them over by two lines: `__aenter__ = entered` and `__aexit__ = left`, or, if
its calls block, `__enter__ = entered_blocking` and `__exit__ = left_blocking`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar


class LifeCycle(Protocol):
    """A client that belongs to an event loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class BlockingLifeCycle(Protocol):
    """A client whose calls block."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


C = TypeVar("C", bound=LifeCycle)
B = TypeVar("B", bound=BlockingLifeCycle)


async def entered(client: C) -> C:
    await client.start()
    return client


async def left(
    client: LifeCycle,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    await client.stop()


def entered_blocking(client: B) -> B:
    client.start()
    return client


def left_blocking(
    client: BlockingLifeCycle,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    client.stop()
