"""Versions of resources: ETag, If-Match, If-None-Match (RFC 9110, 13.1).

The version of a resource is a hash of its content, so replicas with the same content give the same
version. A change states which version it is meant for; `Condition` carries that to where the change
is made, and `Condition.met_by` decides there. Pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import orjson

from raftmq.web.problem import ApiProblem, invalid, stale, version_wanted

ANY = "*"
TAGS_MAX = 16  # in one If-Match
_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition for a change. `absent`: only if there is no such resource; else only if there
    is one with one of `versions`, or with any version if they contain `ANY`."""

    versions: tuple[str, ...] = ()
    absent: bool = False

    def met_by(self, version: str | None) -> bool:
        """Return whether the resource's present version meets this; None: there is no resource."""
        if self.absent or version is None:
            return self.absent and version is None
        return ANY in self.versions or version in self.versions

    def check(self, version: str | None) -> None:
        """Raise ApiProblem (412) if the version does not meet this."""
        if not self.met_by(version):
            raise unmet(version)


def unmet(version: str | None) -> ApiProblem:
    """Make a 412 that states the present version."""
    problem = stale(f"its version is {etag(version)}" if version else "there is no such resource")
    if version is not None:
        problem.headers["ETag"] = etag(version)
    return problem


def version_of(value: Any) -> str:
    """Return the version of a resource with content `value` (JSON), whatever its keys' order."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def etag(version: str) -> str:
    return f'"{version}"'


def condition_of(if_match: str | None, if_none_match: str | None) -> Condition:
    """Parse the two headers of a change. Raises ApiProblem: 428 without either."""
    if if_none_match is not None and if_none_match.strip() != ANY:
        raise invalid([("If-None-Match", "only * means anything with a change")])
    wanted = None
    if if_match is not None:
        wanted = Condition((ANY,) if if_match.strip() == ANY else _tags(if_match))
    if if_none_match is not None:
        if wanted is not None:
            raise stale("nothing is there and not there: say If-Match or If-None-Match")
        wanted = Condition(absent=True)
    if wanted is None:
        raise version_wanted()
    return wanted


def _tags(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")]
    found = []
    for part in parts[: TAGS_MAX + 1]:
        match = _TAG.fullmatch(part)
        if match is None:
            raise invalid([("If-Match", f"{part!r} is no entity tag, which stands in quotes")])
        if not part.startswith("W/"):  # If-Match compares strongly: a weak tag matches nothing
            found.append(match[1])
    if len(parts) > TAGS_MAX:
        raise invalid([("If-Match", f"more than {TAGS_MAX} entity tags")])
    return tuple(found)
