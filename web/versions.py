"""Versions of resources in HTTP headers: ETag, If-Match, If-None-Match (RFC 9110, 13.1)."""

from __future__ import annotations

import re

from raftmq.ops.versions import ANY, Condition

from .problem import ApiProblem, invalid, stale, version_required

TAGS_MAX = 16  # in one If-Match
_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')


def unmet(version: str | None) -> ApiProblem:
    """Make a 412 with the present version."""
    problem = stale(f"its version is {etag(version)}" if version else "there is no such resource")
    if version is not None:
        problem.headers["ETag"] = etag(version)
    return problem


def etag(version: str) -> str:
    """Return a version's ETag header, the version in quotes."""
    return f'"{version}"'


def condition_of(if_match: str | None, if_none_match: str | None) -> Condition:
    """Parse the two headers of a change. Raises ApiProblem, a 428 without either."""
    if if_none_match is not None and if_none_match.strip() != ANY:
        raise invalid([("If-None-Match", "only * means anything with a change")])
    condition = None
    if if_match is not None:
        condition = Condition((ANY,) if if_match.strip() == ANY else _tags(if_match))
    if if_none_match is not None:
        if condition is not None:
            raise stale("nothing is there and not there: say If-Match or If-None-Match")
        condition = Condition(absent=True)
    if condition is None:
        raise version_required()
    return condition


def _tags(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")]
    tags = []
    for part in parts[: TAGS_MAX + 1]:
        match = _TAG.fullmatch(part)
        if match is None:
            raise invalid([("If-Match", f"{part!r} is no entity tag, which stands in quotes")])
        if not part.startswith("W/"):  # If-Match compares strongly, so a weak tag matches nothing
            tags.append(match[1])
    if len(parts) > TAGS_MAX:
        raise invalid([("If-Match", f"more than {TAGS_MAX} entity tags")])
    return tuple(tags)
