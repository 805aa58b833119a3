"""Reads JSON in which no object has a key twice. Pure.

JSON leaves open which value counts then (RFC 8259, 4): what one program checks, another may read
otherwise. orjson keeps the last one. What it returns, written again, has fewer colons then: each
member of an object needs one, and strings keep theirs. Only a text that differs in that, or may
have a colon as an escape, is read once more, by the slower reader that sees each member.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

ESCAPED = b"\\u003"  # a colon is \u003a


def loads(data: bytes | bytearray | str) -> Any:
    """Read JSON. Raises orjson.JSONDecodeError, also for a key that an object has twice."""
    value = orjson.loads(data)
    text = data.encode() if isinstance(data, str) else data
    try:
        is_plain = text.count(b":") == orjson.dumps(value).count(b":") and ESCAPED not in text
    except orjson.JSONEncodeError:  # nested more deeply than it writes
        is_plain = False
    if not is_plain:
        try:
            json.loads(data, object_pairs_hook=_unique)
        except _Repeated as repeated:
            raise orjson.JSONDecodeError(str(repeated), "", 0) from None
        except RecursionError as error:
            raise orjson.JSONDecodeError("nested too deeply", "", 0) from error
    return value


class _Repeated(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    keys = set()
    for key, _ in pairs:
        if key in keys:
            raise _Repeated(f"an object has the key {key[:100]!r} twice")
        keys.add(key)
