"""The names of the versions that Apache's clients and brokers send as a number. Pure.

The number counts Apache's releases and the snapshots between them: 213 is 4.0.0, 214 the snapshot
of 4.0.1, 215 is 4.0.1. Every minor version has ten patch versions, every major one ten minor.
"""

from __future__ import annotations

FIRST = 213  # 4.0.0
LAST = 611  # 5.9.9, the last that has a number
_PER_VERSION = 2  # a snapshot and the release


def version_name(number: int) -> str:
    """Return the version in Apache's words ("V5_3_3"), the number in words for others."""
    if not FIRST <= number <= LAST:
        return f"number {number}"
    steps, is_release = divmod(number - FIRST + 1, _PER_VERSION)
    if is_release:
        patches, suffix = steps, ""
    else:
        patches, suffix = steps, "_SNAPSHOT"
    major, rest = divmod(patches, 100)
    return f"V{4 + major}_{rest // 10}_{rest % 10}{suffix}"
