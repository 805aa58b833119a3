"""Merges the answers of several groups.

Every item has its `group`. A group that did not answer is listed in `errors` ([{group, error}])
without failing the request. A change to several groups has a result per group, and `outcome_of`
combines them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of a change in a group. `status` is the leader's HTTP status, or 0."""

    group: str
    outcome: str  # OK, FAILED (certainly not made), UNKNOWN (may be made)
    status: int
    value: Any = None
    error: str = ""

    def as_fields(self) -> Item:
        fields: Item = {"group": self.group, "outcome": self.outcome, "status": self.status}
        if self.outcome == OK:
            fields["value"] = self.value
        else:
            fields["error"] = self.error
        return fields


def page_of(
    pages: Mapping[str, Mapping[str, Any]], key: Callable[[Item], str], limit: int
) -> tuple[list[tuple[str, list[tuple[str, Item]]]], str | None]:
    """Merge the groups' pages at a cursor. Return [(key, [(group, item), …])] in order of key, and
    the key to continue after, or None at the end.

    A page with `next` is incomplete behind its last item, so the merged page ends at the smallest
    of these last keys.
    """
    result: dict[str, list[tuple[str, Item]]] = {}
    bounds = []
    for group, page in pages.items():
        items = page.get("items") or []
        for item in items:
            result.setdefault(key(item), []).append((group, item))
        if page.get("next") and items:
            bounds.append(max(key(item) for item in items))
    keys = [k for k in result if not bounds or k <= min(bounds)]
    chosen = heapq.nsmallest(limit, keys)
    more = bool(bounds) or len(keys) > len(chosen)
    return [(k, result[k]) for k in chosen], (chosen[-1] if more and chosen else None)


def with_group(group: str, items: Iterable[Mapping[str, Any]]) -> list[Item]:
    return [{"group": group, **item} for item in items]


def outcome_of(results: Sequence[GroupResult]) -> int:
    """Return the HTTP status of a change in several groups. 200 means made in all, 207 made in
    some, 504 made in none for certain; after failures in all groups it is their common status, or
    502."""
    outcomes = {result.outcome for result in results}
    if outcomes <= {OK}:
        return 200
    if OK in outcomes:
        return 207
    if UNKNOWN in outcomes:
        return 504
    statuses = {result.status or 503 for result in results}
    return statuses.pop() if len(statuses) == 1 else 502


def joined_version(versions: Mapping[str, str]) -> str:
    """Join several groups' versions of a resource, as `a=1;b=2`."""
    return ";".join(f"{group}={versions[group]}" for group in sorted(versions))


def split_version(version: str) -> dict[str, str]:
    """Split a version of `joined_version`; return {} for an invalid version."""
    pairs = [part.partition("=") for part in version.split(";")]
    if not all(name and sign and value for name, sign, value in pairs):
        return {}
    return {name: value for name, _, value in pairs}
