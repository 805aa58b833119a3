"""Function calls as the measure of a hot path: they do not depend on the machine or its load.

A limit on them notices work that has crept into what is done for every message. It does not
notice a call that became slow; `python -m bench.cost` measures that.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls_of(act: Callable[[], object]) -> int:
    """Return how many functions, Python's and C's, are called while `act` runs."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what a collection calls would be counted, whenever it comes
    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count - 1  # the setprofile that ended it
