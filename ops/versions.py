"""Versions of resources, and the condition under which a change is meant. Pure.

The version of a resource is a hash of its content, so replicas with the same content give the same
version. A change states which version it is meant for; `Condition` carries that to where the change
is made, and `Condition.met_by` decides there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

ANY = "*"


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


def version_of(value: Any) -> str:
    """Return the version of a resource with content `value` (JSON), whatever its keys' order."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=12).hexdigest()
