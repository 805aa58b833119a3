"""Durations such as 500ms, 90s, 15m, 2h, 1d and 1h30m."""

from __future__ import annotations

import re

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COMPONENT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
FORM = "a duration, as 500ms, 90s, 15m, 2h, 1d or 1h30m"


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration. Raises ValueError."""
    parts = _COMPONENT.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not {FORM}")
    return round(sum(float(number) * UNIT_MS[unit] for number, unit in parts))
