"""Rules, their combination, and rejected rules."""

from __future__ import annotations

import pytest

from raftmq.chaos.faults.rules import (
    DELAY_MS_MAX,
    Effect,
    Rule,
    RuleError,
    Way,
    combine,
    from_json,
    to_json,
)


@pytest.mark.parametrize(
    ("rules", "effect"),
    [
        ([], Effect()),
        ([Rule("a", cut=True)], Effect(Way(cut=True), Way(cut=True))),
        ([Rule("a", "forward", cut=True)], Effect(Way(cut=True))),
        ([Rule("a", "back", cut=True)], Effect(back=Way(cut=True))),
        ([Rule("a", cut=True), Rule("a")], Effect(Way(cut=True), Way(cut=True))),
        (
            [Rule("a", "forward", delay_ms=20, jitter_ms=4), Rule("a", delay_ms=10)],
            Effect(Way(delay_s=0.03, jitter_s=0.004), Way(delay_s=0.01)),
        ),
        (
            [Rule("a", rate=500), Rule("a", "back", rate=100)],
            Effect(Way(rate=500), Way(rate=100)),
        ),
        ([Rule("a", refuse=True)], Effect(refuse=True)),
        ([Rule("a", lives_s=4), Rule("a", lives_s=2)], Effect(lives_s=2)),
    ],
)
def test_link_rules_combine_in_any_order(rules: list[Rule], effect: Effect) -> None:
    assert combine(rules) == combine(reversed(rules)) == effect


def test_way_passes_without_hindrance_and_connects_without_a_cut() -> None:
    assert Way().passes
    hindered = (Way(cut=True), Way(delay_s=1), Way(jitter_s=1), Way(rate=1))
    assert not any(way.passes for way in hindered)
    assert combine([Rule("a", delay_ms=1, refuse=True)]).connects
    assert not combine([Rule("a", "back", cut=True)]).connects  # a handshake needs both ways


def test_link_rule_round_trip_through_json() -> None:
    rule = Rule("n0>n1", "back", True, False, 1.5, 2.0, 1000, 3)
    assert from_json(to_json(rule)) == rule
    assert from_json({"link": "n0>n1"}) == Rule("n0>n1")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "has a link"),
        ({"link": "a", "lose": 1}, "lose"),
        ({"link": 3}, "link must not be 3"),
        ({"link": "a", "cut": 1}, "cut must not be 1"),
        ({"link": "a", "delay_ms": True}, "delay_ms must not be True"),
        ({"link": "a", "delay_ms": "soon"}, "delay_ms must not be 'soon'"),
        ({"link": "a", "delay_ms": -1}, "delay_ms must not be -1"),
        ({"link": "a", "rate": float("nan")}, "rate must not be nan"),
        ({"link": "a", "lives_s": float("inf")}, "lives_s must not be inf"),
        ({"link": "a", "delay_ms": DELAY_MS_MAX + 1}, "at most"),
        ({"link": "a", "way": "up"}, "way must be"),
    ],
)
def test_malformed_link_rule_is_rejected(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        from_json(wrong)
