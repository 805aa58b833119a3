"""Pictures: scales, words that do not touch, gaps, bars."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raftmq.ops.page import STYLE, document, key
from raftmq.ops.svg import (
    CHARACTER,
    LABEL_MAX,
    LEFT,
    RIGHT,
    WIDTH,
    LabelRows,
    Panel,
    Scale,
    bars,
)
from tests.pictures import assert_readable, pictures, tooltips, words_of


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 10, 0, 1), [0, 2, 4, 6, 8, 10]),
        (Scale(0, 1300, 0, 1), [0, 500, 1000]),
        (Scale(0.5, 2000, 0, 1, log=True), [1, 10, 100, 1000]),
    ],
)
def test_svg_ticks_are_round(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks() == ticks


def test_svg_values_are_within_the_picture() -> None:
    scale = Scale(1, 100, 300, 26, log=True)
    assert (scale.at(1), scale.at(10), scale.at(100)) == (300, 163, 26)
    assert (scale.at(0), scale.at(5000)) == (300, 26)


def test_svg_labels_in_rows_do_not_overlap() -> None:
    lanes = LabelRows(3)
    placed: dict[int, list[tuple[float, float]]] = {}
    for number in range(200):
        text = "kill n0, n1, n2" if number % 2 else "n1 leads term 7"
        result = lanes.allocate(number * 5.0, text)
        if result is not None:
            lane, x = result
            end = x + CHARACTER * len(text)
            assert x >= LEFT and end <= WIDTH - RIGHT
            placed.setdefault(lane, []).append((x, end))
    assert len(placed) == 3
    for spans in placed.values():
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(spans)))


def test_svg_line_keeps_a_gap() -> None:
    panel = Panel("p", Scale(0, 4, 0, 100), Scale(0, 1, 10, 0), 10)
    panel.line([0, 1, 2, 3], [1, 1, None, 1], "ok")
    assert panel.svg().count("<polyline") == 2


def test_svg_axis_labels_neither_overlap_nor_leave_the_picture() -> None:
    panel = Panel("p", Scale(0, 1_000, LEFT, WIDTH - RIGHT), None, 10)
    page = document("p", panel.svg(" " * 5 + "with a long unit"))
    assert_readable(page)
    assert 2 <= len(words_of(pictures(page)[0])[1:]) <= 6


def test_svg_bars_have_room_for_their_labels() -> None:
    rows = [
        ("floor", 1_234_567.0, [1_000_000.0, 1_500_000.0]),
        ("a system & its client's name", None, []),
        ("n" * 3 * LABEL_MAX, 3.0, [3.0]),
    ]
    page = document("p", bars("rates", "a second", rows))
    assert_readable(page)
    (picture,) = pictures(page)
    assert "1,234,567" in words_of(picture)
    assert "a system & its client's name" in words_of(picture)
    assert f"{'n' * (LABEL_MAX - 1)}…" in words_of(picture)
    first, last = tooltips(picture, "bar")
    assert first == "floor: 1,234,567 a second (median of 1,000,000; 1,500,000)"
    assert last.startswith("n" * 3 * LABEL_MAX)


def test_svg_legend_keeps_a_symbol_beside_its_label() -> None:
    assert key([("<i></i>", "a < b")]) == '<p class="key soft"><span><i></i>a &lt; b</span></p>'
    assert ".key span{display:inline-block" in STYLE
