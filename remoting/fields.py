"""Typed values of extFields, where everything is text.

A function for a single value has the map (None counts as empty) and a field name. `parse_fields`
and `write_fields` translate a typed header, a named tuple with wire names in its annotations:
`queue_id: Annotated[int, "queueId"]`. The type selects the parser. A field is required unless it
has a default or an `Absent`. All parsers raise HeaderError; its text is the remark for the peer.
Pure, without I/O.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from .errors import HeaderError

Ext = Mapping[str, str] | None
_INT64_MAX = (1 << 63) - 1
_NOTHING: Mapping[str, str] = {}
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Absent:
    """The value of a missing field, if it is not the field's default."""

    value: object


_Read = Callable[[str, str], object] | None  # (text, name) → value; None for the text itself
# A field's wire name, its parser, and its value if missing or empty, or _REQUIRED.
_Field = tuple[str, _Read, object]


def parse_fields(
    header: type[NamedTuple], ext: Ext, names: tuple[str, ...] | None = None
) -> list[Any]:
    """Return the values of the fields of `header`, in order. `names` replaces the wire names."""
    get = (ext or _NOTHING).get
    values: list[object] = []
    for name, read, absent in _fields_of(header, names):
        value = get(name)
        if value:
            values.append(value if read is None else read(value, name))
        elif absent is _REQUIRED:
            raise HeaderError(f"the custom field <{name}> is null")
        else:
            values.append(absent)
    return values


def write_fields(header: NamedTuple, names: tuple[str, ...] | None = None) -> dict[str, str]:
    """Return the extFields of `header`, without the fields that are None."""
    ext: dict[str, str] = {}
    for (name, _, _), value in zip(_fields_of(type(header), names), header, strict=False):
        if isinstance(value, bool):
            ext[name] = from_boolean(value)
        elif value is not None:
            ext[name] = str(value)
    return ext


@functools.cache
def _fields_of(header: type[NamedTuple], names: tuple[str, ...] | None) -> list[_Field]:
    """Return the leading fields of a named tuple that have a wire name."""
    fields: list[_Field] = []
    for field, hint in get_type_hints(header, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            break
        kind, name, *absent = get_args(hint)
        name = names[len(fields)] if names else name
        value_type = (*get_args(kind), kind)[0]  # int of `int | None`
        default = header._field_defaults.get(field, _REQUIRED)
        fields.append((name, _READERS[value_type], absent[0].value if absent else default))
    return fields


def text(ext: Ext, name: str) -> str:
    """Return a required string; empty counts as missing, as in Java peers."""
    value = (ext or _NOTHING).get(name)
    if not value:
        raise HeaderError(f"the custom field <{name}> is null")
    return value


def text_or(ext: Ext, name: str, default: str = "") -> str:
    """Return a text, or `default` if it is missing or empty."""
    return (ext or _NOTHING).get(name) or default


def integer(ext: Ext, name: str) -> int:
    """Return a required decimal integer that fits into a Java long."""
    return parse_integer(text(ext, name), name)


def integer_or(ext: Ext, name: str, default: int) -> int:
    """Return an integer as `integer` does, or `default` if it is missing or empty."""
    value = (ext or _NOTHING).get(name)
    return parse_integer(value, name) if value else default


def boolean_or(ext: Ext, name: str, default: bool) -> bool:
    """Return a boolean as Java's parseBoolean does: only "true", in any case, is true."""
    value = (ext or _NOTHING).get(name)
    return _is_true(value, name) if value else default


def _is_true(value: str, _: str) -> bool:
    return value.lower() == "true"


def parse_integer(value: str, name: str) -> int:
    """Parse a decimal integer that fits into a Java long; `name` is the field's, for the error."""
    # int() alone would accept "1_000", " 1 " and digits of other scripts, unlike Java peers.
    if len(value) < 19 and value.isdigit() and value.isascii():
        return int(value)
    digits = value[1:] if value[:1] == "-" else value
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise HeaderError(f"the custom field <{name}> is not an integer: {value[:40]!r}")
    number = int(value)
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise HeaderError(f"the custom field <{name}> is out of range: {value}")
    return number


def parse_integers(values: str, name: str) -> list[int]:
    """Parse comma-separated decimal integers, each as `parse_integer` does."""
    parts = values.split(",")
    lengths, digits = [len(part) for part in parts], "".join(parts)
    if min(lengths) > 0 and max(lengths) < 19 and digits.isdigit() and digits.isascii():
        return list(map(int, parts))  # at once, because the answer to a pop has 32 offsets
    return [parse_integer(part, name) for part in parts]


def from_boolean(value: bool) -> str:
    """Return a boolean as text, as Java writes it."""
    return "true" if value else "false"


_READERS: dict[object, _Read] = {
    str: None,
    int: parse_integer,
    bool: _is_true,
}
