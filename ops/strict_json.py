"""Strict JSON decoding, which refuses objects with a repeated key.

RFC 8259, section 4, leaves the meaning of a repeated key open, so two programs may read different
values from the same text. orjson keeps the last value. Each member of an object needs a colon, so
orjson's value, encoded again, has fewer colons than a text with a repeated key. If the numbers
differ, or the text may contain a colon as an escape, a slower decoder checks each member. Pure.
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
