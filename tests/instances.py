"""Objects that the product makes for itself, for tests of what it does with them.

So a test reaches a part by its class, not through private members of the object that has it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def instances_of(monkeypatch: pytest.MonkeyPatch, kind: type[T]) -> list[T]:
    """Return the list of the objects that are made of this class from now on."""
    made: list[T] = []
    initialize: Any = kind.__init__

    def recorded(self: T, *arguments: Any, **options: Any) -> None:
        made.append(self)
        initialize(self, *arguments, **options)

    monkeypatch.setattr(kind, "__init__", recorded)
    return made


P = TypeVar("P", bound=asyncio.Protocol)


def transports_of(
    monkeypatch: pytest.MonkeyPatch, kind: type[P], wrapped: Callable[[Any], Any] = lambda one: one
) -> dict[P, Any]:
    """Return the transports that protocols of this class get from now on, each as `wrapped`."""
    transports: dict[P, Any] = {}
    connection_made: Any = kind.connection_made

    def recorded(self: P, transport: asyncio.BaseTransport) -> None:
        transports[self] = wrapped(transport)
        connection_made(self, transports[self])

    monkeypatch.setattr(kind, "connection_made", recorded)
    return transports
