"""Values of SQL92 expressions, compared by Java's rules as in Apache.

A value is None (NULL), bool, int (Java's Integer), Long, float (Double) or str. Properties are
strings. A string is converted to the type of the number it is compared with. `a > 5` converts a to
an Integer, so '5.5' and '3000000000' are incomparable with 5, but not with 5.0.
"""

from __future__ import annotations

import re
from math import copysign, inf, isnan


class Long(int):
    """A Java long, the type of literals beyond 32 bits."""


Value = bool | int | float | str | None

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
DOUBLE_MAX = 1.7976931348623157e308
DOUBLE_MIN = 5e-324  # the smallest positive double
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]+)[fFdD]?"
)
_TRIMMED = "".join(map(chr, range(0x21)))  # as in String.trim
DIGITS_MAX = 400  # longer integers fit no type


class Incomparable(Exception):
    """The values are incomparable, so the message does not match."""


def to_integer(text: str, bounds: tuple[int, int]) -> int:
    """Convert as Integer.valueOf or Long.valueOf. Raises Incomparable."""
    if len(text) <= DIGITS_MAX and _INTEGER.fullmatch(text) and max(text) <= "\uffff":
        value = int(text)
        if bounds[0] <= value <= bounds[1]:
            return value
    raise Incomparable(text)


def to_double(text: str) -> float:
    """Convert as Double.valueOf. Raises Incomparable."""
    text = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(text):
        return float(text if text.endswith(("N", "y")) else text.rstrip("fFdD"))
    match = _HEXADECIMAL.fullmatch(text)
    if match is None:
        raise Incomparable(text)
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return copysign(inf, -1.0 if text.startswith("-") else 1.0)


def equals(left: Value, right: Value) -> bool | None:
    """Return the result of `=` with NULL. If the left side is missing it is unknown, if only the
    right side is missing it is false (so `5 <> a` is true without a), and if both are missing they
    are equal. Raises Incomparable."""
    if left is None or right is None:
        if left is None and right is None:
            return True
        return None if left is None else False
    if left.__class__ is right.__class__ and left.__class__ is not float:
        return left == right
    return compare(left, right) == 0


def order(left: Value, right: Value) -> int | None:
    """Return a number below, at or above 0 for `<` and the like, or None for unknown. Two strings
    are compared as numbers. Raises Incomparable."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _doubles(to_double(left), to_double(right))
    return compare(left, right)


def compare(left: bool | int | float | str, right: bool | int | float | str) -> int:
    """Return Java's compareTo in a common type, or -1 without any. Raises Incomparable."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _with_boolean(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _like(right, left)
    elif isinstance(right, str):
        right = _like(left, right)
    if isinstance(left, float) or isinstance(right, float):
        return _doubles(float(left), float(right))
    return (left > right) - (left < right)


def _with_boolean(left: bool | int | float | str, right: bool | int | float | str) -> int:
    if isinstance(left, str):
        left = left.lower() == "true"
    if isinstance(left, bool) and isinstance(right, str):
        raise Incomparable("TRUE and FALSE compare with strings on their right only in Apache")
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    return -1


def _like(number: int | float, text: str) -> int | float:
    if isinstance(number, float):
        return to_double(text)
    return to_integer(text, INT64 if isinstance(number, Long) else INT32)


def _doubles(left: float, right: float) -> int:
    """Compare as Double.compareTo, where NaN is greatest and equals itself, and -0.0 < 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if isnan(left) or isnan(right):
        return isnan(left) - isnan(right)
    if left == right == 0:
        return int(copysign(1, left) - copysign(1, right))
    return 0


def negated(value: Value) -> Value:
    """Return the unary minus of a value, or NULL if it is not a number."""
    if value is None or isinstance(value, bool | str):
        return None
    return Long(-value) if isinstance(value, Long) else -value
