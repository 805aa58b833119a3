"""The rules that proxies apply to a link, and their combined effect. Pure.

A rule concerns a link and one or both of its directions. `forward` is from the dialling end to the
dialled end. Rules have an owner and are removed together, so faults may overlap on a link. A link
is cut as long as any rule cuts it, delays add up, the lowest rate and the shortest life count.

As JSON a rule is an object with the fields of `Rule`; missing fields have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FORWARD, BACK, BOTH = "forward", "back", "both"
DELAY_MS_MAX = 60_000.0


class RuleError(ValueError):
    """A rule is invalid; the text names the field."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for a link. Zero and False mean no effect.

    `cut`: nothing flows, nothing is lost, no connection completes; bytes in flight arrive after the
    cut. `refuse`: connections are refused. `rate`: bytes per second. `lives_s`: connections are
    reset after half to one and a half times this many seconds.
    """

    link: str
    way: str = BOTH  # of cut, delay, jitter and rate
    cut: bool = False
    refuse: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate: float = 0.0
    lives_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Way:
    """The effect on a direction of a link."""

    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate: float = 0.0  # bytes per second; 0: no limit

    @property
    def passes(self) -> bool:
        """True if bytes pass at once."""
        return not self.cut and not self.delay_s and not self.jitter_s and not self.rate


@dataclass(frozen=True, slots=True)
class Effect:
    """The combined effect of all rules on a link."""

    forward: Way = Way()
    back: Way = Way()
    refuse: bool = False
    lives_s: float = 0.0

    @property
    def connects(self) -> bool:
        """True if a new connection completes, because its handshake needs both directions."""
        return not self.forward.cut and not self.back.cut


def combine(rules: Iterable[Rule]) -> Effect:
    result = list(rules)
    lives = [rule.lives_s for rule in result if rule.lives_s]
    return Effect(
        _way(rule for rule in result if rule.way in (FORWARD, BOTH)),
        _way(rule for rule in result if rule.way in (BACK, BOTH)),
        any(rule.refuse for rule in result),
        min(lives, default=0.0),
    )


def _way(rules: Iterable[Rule]) -> Way:
    result = list(rules)
    return Way(
        any(rule.cut for rule in result),
        sum(rule.delay_ms for rule in result) / 1000,
        sum(rule.jitter_ms for rule in result) / 1000,
        min((rule.rate for rule in result if rule.rate), default=0.0),
    )


def to_json(rule: Rule) -> dict[str, Any]:
    return asdict(rule)


def from_json(data: Mapping[str, Any]) -> Rule:
    """Build a rule. Raises RuleError for unknown fields, wrong types and values out of range."""
    known = {f.name for f in fields(Rule)}
    unknown = set(data) - known
    if unknown or "link" not in data:
        raise RuleError(f"a rule has a link and of {sorted(known)} any; unknown {sorted(unknown)}")
    for name, value in data.items():
        desired: tuple[type, ...] = (str,)
        if name in ("cut", "refuse"):
            desired = (bool,)
        elif name not in ("link", "way"):
            desired = (int, float)
        if not isinstance(value, desired) or (desired == (int, float) and isinstance(value, bool)):
            raise RuleError(f"{name} must not be {value!r}")
    rule = Rule(**data)
    if rule.way not in (FORWARD, BACK, BOTH):
        raise RuleError(f"way must be {FORWARD}, {BACK} or {BOTH}, not {rule.way!r}")
    for name in ("delay_ms", "jitter_ms", "rate", "lives_s"):
        value = getattr(rule, name)
        if not 0 <= value < float("inf"):
            raise RuleError(f"{name} must not be {value}")
    if max(rule.delay_ms, rule.jitter_ms) > DELAY_MS_MAX:
        raise RuleError(f"a delay is at most {DELAY_MS_MAX:g} ms")
    return rule
