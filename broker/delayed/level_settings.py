"""`messageDelayLevel`: how long the messages of each delay level wait. Pure.

    1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h

Level 1 is the first. Units are Apache's s, m, h and d, and our ms.
"""

from __future__ import annotations

import re

STANDARD_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 128
DELAY_MS_MAX = 366 * 86_400_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,15})(ms|s|m|h|d)")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the levels in ms, level 1 first. Raises ValueError, which says what is wrong."""
    levels: list[int] = []
    for part in text.split():
        found = _LEVEL.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no time such as 10s, 5m, 2h or 1d")
        delay_ms = int(found[1]) * _UNITS_MS[found[2]]
        if delay_ms > DELAY_MS_MAX:
            raise ValueError(f"{part!r} is longer than a year")
        levels.append(delay_ms)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"these are {len(levels)} levels, there may be 1 to {LEVELS_MAX}")
    return tuple(levels)
