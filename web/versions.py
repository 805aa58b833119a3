"""Versions of resources: ETag, If-Match, If-None-Match (RFC 9110, 13.1).

The version of a resource is a hash of what it says, so replicas that hold the same give the same.
A change says which version it is meant for; `Condition` carries that to where the change is made,
and `Condition.met_by` decides there. Pure.
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
    """When a change may be made. `absent`: only if there is no such resource; else only if there
    is one, of one of `versions`; `ANY` in them: of whatever version."""

    versions: tuple[str, ...] = ()
    absent: bool = False

    def met_by(self, version: str | None) -> bool:
        """`version`: of the resource as it is; None: there is none."""
        if self.absent or version is None:
            return self.absent and version is None
        return ANY in self.versions or version in self.versions

    def check(self, version: str | None) -> None:
        """Raises ApiProblem (412)."""
        if not self.met_by(version):
            raise unmet(version)


def unmet(version: str | None) -> ApiProblem:
    """412 that says what there is."""
    problem = stale(f"its version is {etag(version)}" if version else "there is no such resource")
    if version is not None:
        problem.headers["ETag"] = etag(version)
    return problem


def version_of(value: Any) -> str:
    """The version of a resource that says `value` (JSON); the order of keys does not matter."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def etag(version: str) -> str:
    return f'"{version}"'


def condition_of(if_match: str | None, if_none_match: str | None) -> Condition:
    """What the two headers of a change say. Raises ApiProblem: 428 without either."""
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
