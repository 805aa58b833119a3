"""Reads typed values from extFields, where everything is text. Pure.

Every function takes the map (None counts as empty) and a field name; all raise HeaderError, whose
text goes to the peer as the remark.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.remoting.errors import HeaderError

Ext = Mapping[str, str] | None
_INT64_MAX = (1 << 63) - 1
_NOTHING: Mapping[str, str] = {}


def text(ext: Ext, name: str) -> str:
    """Return a required string; empty counts as missing, as for every Java peer."""
    value = (ext or _NOTHING).get(name)
    if not value:
        raise HeaderError(f"the custom field <{name}> is null")
    return value


def text_or(ext: Ext, name: str, default: str = "") -> str:
    return (ext or _NOTHING).get(name) or default


def text_or_none(ext: Ext, name: str) -> str | None:
    return (ext or _NOTHING).get(name)


def integer(ext: Ext, name: str) -> int:
    """Return a required decimal integer that fits into a Java long."""
    return parse_integer(text(ext, name), name)


def integer_or(ext: Ext, name: str, default: int) -> int:
    value = (ext or _NOTHING).get(name)
    return parse_integer(value, name) if value else default


def integer_or_none(ext: Ext, name: str) -> int | None:
    value = (ext or _NOTHING).get(name)
    return parse_integer(value, name) if value else None


def boolean_or(ext: Ext, name: str, default: bool) -> bool:
    """Return a boolean as Java's parseBoolean does: only "true", in any case, is true."""
    value = (ext or _NOTHING).get(name)
    return value.lower() == "true" if value else default


def parse_integer(value: str, name: str) -> int:
    digits = value[1:] if value[:1] == "-" else value
    # int() alone would accept "1_000", " 1 " and digits of other scripts, which no Java peer does.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise HeaderError(f"the custom field <{name}> is not an integer: {value[:40]!r}")
    number = int(value)
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise HeaderError(f"the custom field <{name}> is out of range: {value}")
    return number


def from_boolean(value: bool) -> str:
    return "true" if value else "false"
