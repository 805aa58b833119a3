"""Fixtures of the pairs; each schedule runs on stock pysyncobj and on our core."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pysyncobj.syncobj
import pytest

from tests.chaos.pysyncobj.worlds import CoreWorld, StockWorld, World


class MakeWorld(Protocol):
    def __call__(self, names: str = "abc", **stock_options: Any) -> World:
        """A world of these voters; options are SyncObjConf's and for stock only."""
        ...


def start(make: MakeWorld, names: str = "abc", **stock_options: Any) -> World:
    """The first node leads, all are up to date, and a write is acknowledged, so that a world
    without acknowledgements also fails."""
    world = make(names, **stock_options)
    leader, *others = world.names
    assert world.elect(leader, *others)
    world.beat(leader, *others)
    world.write(leader, "first")
    world.beat(leader, *others)
    assert world.acked == ["first"]
    return world


@pytest.fixture(params=["stock loses", "ours does not"])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeWorld]:
    """`make()` builds the world of this run. The clock of the package is put back behind it."""
    real_clock = pysyncobj.syncobj.monotonicTime
    made: list[World] = []

    def build(names: str = "abc", **stock_options: Any) -> World:
        if request.param == "stock loses":
            random.seed(1)  # SyncObj's election time-outs
            made.append(StockWorld(tmp_path, names, **stock_options))
        else:
            made.append(CoreWorld(names))
        return made[-1]

    yield build
    for world in made:
        world.close()
    pysyncobj.syncobj.monotonicTime = real_clock
