"""Breaks that are planted into the real programs by name, and the worlds in which they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.simulator.cluster.world import Wish

KILLS = ("kill", "kill_leader", "freeze", "isolate")
CUTS = ("power_cut", "power_cut_all", "kill_leader")
SPLITS = ("isolate", "split", "cut_one_way", "freeze", "kill_leader")
DURABLE = {"durable": True}
SLOW = {"delay_ms": 8.0, "thread_ms": 5.0}
REFILLED = {"refilled": True, "segment_bytes": 192 * 1024}

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Break:
    """A break, and the worlds in which it shows. `first`: where to begin to look for it. `long`:
    many seeds do not show it, or one takes long."""

    plant: Plant
    load: tuple[str, ...] = ("log", "group")
    faults: tuple[str, ...] = KILLS
    profile: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0
    long: bool = False

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def wish(self) -> Wish:
        return Wish(self.load, self.faults, self.profile, self.plant)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put `make(what is there)` in an attribute's place."""
    with patch.object(owner, name, make(getattr(owner, name))):
        yield


def instead(owner: Any, name: str, function: Any) -> AbstractContextManager[Any]:
    return patch.object(owner, name, function)


@contextmanager
def all_of(*plants: AbstractContextManager[Any]) -> Iterator[None]:
    """Plant all of these."""
    with ExitStack() as stack:
        for plant in plants:
            stack.enter_context(plant)
        yield
