"""Versions of resources, and conditions on the version for a change.

The version of a resource is a hash of its content, so replicas with the same content have the same
version. A change states the version that it expects; `Condition.met_by` decides where the change is
made. Pure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

ANY = "*"


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition for a change. With `absent` there must be no such resource. Otherwise it must
    have one of `versions`, or any version if they contain `ANY`."""

    versions: tuple[str, ...] = ()
    absent: bool = False

    def met_by(self, version: str | None) -> bool:
        """Return whether the resource's version meets this (None: no resource)."""
        if self.absent or version is None:
            return self.absent and version is None
        return ANY in self.versions or version in self.versions


def version_of(value: Any) -> str:
    """Return the version of a resource with content `value` (JSON), whatever its keys' order."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=12).hexdigest()
