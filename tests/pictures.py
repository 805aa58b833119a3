"""Checks of a report's HTML page: its pictures, tooltips, colours and size, read from the file."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from xml.etree import ElementTree

from raftmq.ops.svg import CHARACTER, WIDTH

PAGE_BYTES_MAX = 1_000_000
SIZES = {"head": 13 / 12, "axis": 11 / 12}  # of words, by class; CHARACTER is for 12 px
COLOURS = re.compile(r"var\(--(\w+)\)")
# Where a browser would fetch from. A namespace is only a name.
FETCHES = re.compile(r"<script|<link|<iframe|\bsrc=|\bhref=|@import|url\(|https?://")


def pictures(page: str) -> list[ElementTree.Element]:
    """Return the page's pictures, without the swatches of keys."""
    matches = re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL)
    return [ElementTree.fromstring(svg) for svg in matches]


def tooltips(picture: ElementTree.Element, style: str) -> list[str]:
    """Return the tooltips of the parts with that class, one for each of their places."""
    result = []
    for part in picture.iter():
        if style in part.get("class", "").split():
            positions = part.get("d", "M").count("M")
            result += [part.findtext("title") or ""] * positions
    return result


def words_of(picture: ElementTree.Element) -> list[str]:
    """Return the words that stand in a picture."""
    return [part.text or "" for part in picture.iter("text")]


def assert_readable(page: str) -> None:
    """The page is small, fetches nothing, has two schemes; its pictures have names, and no words in
    them lie on others or end outside."""
    assert len(page.encode()) < PAGE_BYTES_MAX
    assert not FETCHES.search(page)
    assert 'name="viewport"' in page
    light, _, dark = page.partition("prefers-color-scheme:dark")
    assert dark
    for name in set(COLOURS.findall(page)):
        assert f"--{name}:" in light, name
        assert f"--{name}:" in dark, name
    for picture in pictures(page):
        assert picture.get("role") == "img"
        assert picture.get("aria-label")
        _assert_words_are_apart(picture)


def _assert_words_are_apart(picture: ElementTree.Element) -> None:
    lines = defaultdict(list)
    for part in picture.iter("text"):
        text, x = part.text or "", float(part.get("x", 0))
        width = CHARACTER * SIZES.get(part.get("class", ""), 1.0) * len(text)
        start = x - {"middle": width / 2, "end": width}.get(part.get("text-anchor", ""), 0.0)
        assert start > -CHARACTER, text
        assert start + width <= WIDTH + CHARACTER, text
        lines[part.get("y")].append((start, start + width, text))
    for line in lines.values():
        for (_, end, left), (start, _, right) in pairwise(sorted(line)):
            assert end <= start + 1, f"{left!r} touches {right!r}"
