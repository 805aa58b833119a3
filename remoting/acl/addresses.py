"""White lists of addresses, in the notation of Apache's plain_acl.yml.

The forms of an entry:

    *  *.*.*.*  *:*:*:*:*:*:*:*      every address
    10.10.103.7  2001:db8::7         one address
    10.10.103.7,10.10.103.9          several
    10.10.103.{7,9}  2001:db8::{7,9} the same; only the last part may be in braces
    10.10.103.*  10.10.1-50.*        parts that may be anything, or in an inclusive range;
    2001:db8:1-ff::*                 hexadecimal for IPv6

An empty entry matches nothing. A peer's IPv4 address mapped into IPv6 counts as IPv4. Pure, without
I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

EVERYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
ALTERNATIVES_MAX = 256  # per entry
_ANY = "*"


class AddressPatternError(ValueError):
    """An entry is malformed; the text contains it."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Inclusive ranges, four for IPv4 or eight for IPv6."""

    parts: tuple[tuple[int, int], ...]

    def matches(self, numbers: tuple[int, ...]) -> bool:
        if len(numbers) != len(self.parts):
            return False
        return all(low <= n <= high for n, (low, high) in zip(numbers, self.parts, strict=True))


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A parsed entry, which matches if any of `alternatives` does, or always if `everybody`."""

    everybody: bool
    alternatives: tuple[Ranges, ...]

    def matches(self, host: str) -> bool:
        """Return whether `host` matches, a bare address. Other text matches only `*`."""
        if self.everybody:
            return True
        numbers = _numbers(host)
        return numbers is not None and any(one.matches(numbers) for one in self.alternatives)


def parse_pattern(text: str) -> AddressPattern:
    """Parse an entry. Raises AddressPatternError."""
    entry = text.strip()
    if entry in EVERYBODY:
        return AddressPattern(True, ())
    alternatives = _alternatives(entry) if entry else []
    if len(alternatives) > ALTERNATIVES_MAX:
        raise AddressPatternError(f"more than {ALTERNATIVES_MAX} addresses: {entry[:80]!r}")
    return AddressPattern(False, tuple(_ranges(one.strip(), entry) for one in alternatives))


def _alternatives(entry: str) -> list[str]:
    braces = re.fullmatch(r"([^{}]*[.:])\{([^{}]+)\}", entry)
    if braces is not None:
        return [braces[1] + last.strip() for last in braces[2].split(",")]
    if "{" in entry or "}" in entry:
        raise AddressPatternError(f"braces only around the last part: {entry[:80]!r}")
    return entry.split(",")


def _ranges(one: str, entry: str) -> Ranges:
    try:
        if ":" in one:
            parts = [_octets(text, 16, 0xFFFF) for text in _expanded(one)]
            count = 8
        else:
            parts = [_octets(text, 10, 255) for text in one.split(".")]
            count = 4
    except ValueError as error:
        raise AddressPatternError(f"no address or range: {entry[:80]!r}") from error
    if len(parts) != count:
        raise AddressPatternError(f"{len(parts)} parts instead of {count}: {entry[:80]!r}")
    return Ranges(tuple(parts))


def _expanded(text: str) -> list[str]:
    """Split an IPv6 entry, with zeros in place of `::`."""
    head, double, tail = text.partition("::")
    if not double:
        return text.split(":")
    before = head.split(":") if head else []
    behind = tail.split(":") if tail else []
    return before + ["0"] * max(1, 8 - len(before) - len(behind)) + behind


def _octets(text: str, base: int, highest: int) -> tuple[int, int]:
    """Parse a component into (low, high). Raises ValueError."""
    text = text.strip()
    if text == _ANY:
        return 0, highest
    low_text, dash, high_text = text.partition("-")
    if not re.fullmatch(r"[0-9A-Fa-f]{1,4}", low_text):
        raise ValueError(text)
    if dash and not re.fullmatch(r"[0-9A-Fa-f]{1,4}", high_text):
        raise ValueError(text)
    low = int(low_text, base)
    high = int(high_text, base) if dash else low
    if not low <= high <= highest:
        raise ValueError(text)
    return low, high


def _numbers(host: str) -> tuple[int, ...] | None:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    if len(packed) == 4:
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))
