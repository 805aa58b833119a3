"""The rules of recovery and membership hold in all behaviours within the bounds, and the search
finds the want of each rule that is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.bounds import BROKEN, LONG_BROKEN, LONG_SEARCHES, SEARCHES, Bounds
from tests.model.checker import search

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SEARCHES)
def test_model_keeps_its_guarantees_in_all_behaviours(name: str) -> None:
    _check(*SEARCHES[name])


@pytest.mark.parametrize("rule", BROKEN)
def test_model_search_finds_each_missing_rule(rule: str) -> None:
    assert search(BROKEN[rule], rule).violated


def test_model_page_has_the_states_of_every_search() -> None:
    page = (ROOT / "docs" / "model.md").read_text()
    for _, states in [*SEARCHES.values(), *LONG_SEARCHES.values()]:
        assert f"| {states:,} |" in page


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", LONG_SEARCHES)
def test_model_keeps_its_guarantees_within_wider_bounds(name: str) -> None:
    _check(*LONG_SEARCHES[name])


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("rule", LONG_BROKEN)
def test_model_search_finds_each_missing_rule_within_wider_bounds(rule: str) -> None:
    assert search(LONG_BROKEN[rule], rule).violated


def _check(bounds: Bounds, states: int) -> None:
    verdict = search(bounds)
    assert not verdict.violated, verdict.output
    assert verdict.states == states
