"""SVG charts for reports: lines, dots, bands, strips and bars.

A report is a self-contained HTML file, and draws only polylines, circles and rectangles, so it
needs no plotting library. Colours are the page's CSS variables, so that charts follow its dark
scheme. Tooltips explain dots and bands. Pure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, LEFT, RIGHT, TOP = 1040.0, 66.0, 10.0, 26.0
CHARACTER = 6.6  # width of a character at the labels' size
LABEL_ROW = 15.0  # height of a row of labels
BAR = 24.0  # height of a row of `bars`
LABEL_MAX = 40  # characters of a row's label; its tooltip has all


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to pixels, logarithmically if `log`; then `low` is above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def across(cls, low: float, high: float, *, indent: float = 0.0, log: bool = False) -> Scale:
        """Return the axis along a chart's bottom, after `indent` pixels for labels."""
        return cls(low, high, LEFT + indent, WIDTH - RIGHT, log)

    @classmethod
    def upright(cls, low: float, high: float, height: float, *, log: bool = False) -> Scale:
        """Return the axis along the left side of a panel of that height."""
        return cls(low, high, TOP + height, TOP, log)

    def at(self, value: float) -> float:
        low, high = self._position(self.low), self._position(self.high)
        share = (self._position(max(value, self.low)) - low) / ((high - low) or 1.0)
        return self.start + min(share, 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return some round values, the powers of ten, or about five steps of 1, 2 or 5."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        rough = (self.high - self.low) / 5 or 1.0
        unit: float = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        count = math.floor(self.high / step + 1e-9)
        return [step * n for n in range(math.ceil(self.low / step), count + 1)]

    def _position(self, value: float) -> float:
        return math.log10(value) if self.log else value


@dataclass(slots=True)
class LabelRows:
    """Rows for labels; each label goes to the first row without an overlap."""

    count_max: int
    _ends: list[float] = field(default_factory=list)

    def allocate(self, x: float, label: str) -> tuple[int, float] | None:
        """Return row and x for a label at `x` or at the right edge; None without room."""
        width = CHARACTER * (len(label) + 1)
        x = max(LEFT, min(x, WIDTH - RIGHT - width))
        for row, end in enumerate(self._ends):
            if end <= x:
                self._ends[row] = x + width
                return row, x
        if len(self._ends) == self.count_max:
            return None
        self._ends.append(x + width)
        return len(self._ends) - 1, x


class Panel:
    """A chart over time, or over values. `y` is None for strips."""

    def __init__(self, title: str, x: Scale, y: Scale | None, height: float) -> None:
        self.height = height
        self._title = title
        self._x = x
        self._y = y
        self._parts: list[str] = []

    def line(self, at: Sequence[float], values: Sequence[float | None], style: str) -> None:
        """Draw a line with gaps for None."""
        assert self._y is not None
        pieces: list[list[str]] = [[]]
        for x, value in zip(at, values, strict=True):
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{self._x.at(x):.1f},{self._y.at(value):.1f}")
        for piece in pieces:
            if piece:
                points = " ".join(piece if len(piece) > 1 else piece * 2)
                self._parts.append(f'<polyline class="{style}" points="{points}"/>')

    def dots(self, at: Sequence[float], values: Sequence[float], style: str) -> None:
        """Draw dots in a single path, because there are thousands."""
        assert self._y is not None
        points = zip(at, values, strict=True)
        path = "".join(f"M{self._x.at(x):.1f} {self._y.at(v):.1f}h0" for x, v in points)
        self._parts.append(f'<path class="dot {style}" d="{path}"/>')

    def band(self, start: float, end: float, style: str, text: str) -> None:
        """Draw a span of time from top to bottom."""
        x, right = self._x.at(start), self._x.at(end)
        self._parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{TOP}" width="{max(right - x, 2):.1f}" '
            f'height="{self.height}"><title>{html.escape(text)}</title></rect>'
        )

    def label(self, at: float, text: str, style: str, lanes: LabelRows) -> None:
        """Write a label at a time, if there is room."""
        position = lanes.allocate(self._x.at(at) + 3, text)
        if position is not None:
            row, x = position
            y = TOP + 11 + row * LABEL_ROW
            self._parts.append(
                f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'
            )

    def strip(self, row: int, height: float, at: Sequence[float], share: Sequence[float | None],
              name: str, step: float) -> None:  # fmt: skip
        """Draw a row of cells from bad (0) to good (1) by tenths, without cells for None."""
        y = TOP + row * height
        self._parts.append(
            f'<text class="axis" x="{LEFT - 6}" y="{y + height * 0.75:.1f}" text-anchor="end">'
            f"{html.escape(name[-11:])}</text>"
        )
        paths: dict[float, str] = {}  # by tenth, because there may be thousands of cells
        tenths = [None if value is None else math.floor(value * 10) / 10 for value in share]
        first = 0
        for number in range(1, len(tenths) + 1):
            if number < len(tenths) and tenths[number] == tenths[first]:
                continue
            value = tenths[first]
            if value is not None:
                x = self._x.at(at[first] - step / 2)
                width = max(self._x.at(at[number - 1] + step / 2) - x, 0.5)
                segment = f"M{x:.1f} {y + height / 2 - 1:.0f}h{width:.1f}"
                paths[value] = paths.get(value, "") + segment
            first = number
        for value, path in paths.items():
            text = "all" if value == 1.0 else f"{value:.0%} to {value + 0.1:.0%}"
            self._parts.append(
                f'<path stroke="hsl({120 * value:.0f} 60% 42%)" stroke-width="{height - 2:g}" '
                f'd="{path}"><title>{html.escape(name)}: {text}</title></path>'
            )

    def svg(self, unit: str = "") -> str:
        """Return the chart with `unit` at the axis of time."""
        bottom = TOP + self.height
        axes = _axis(self._x, {tick: f"{tick:g}{unit}" for tick in self._x.ticks()}, bottom)
        for tick in [] if self._y is None else self._y.ticks():
            y = self._y.at(tick) if self._y else 0.0
            right = WIDTH - RIGHT
            axes.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            axes.append(_text(LEFT - 6, y + 4, f"{tick:,.10g}", "end"))
        return _picture(self._title, bottom, [*axes, *self._parts])


def _axis(x: Scale, ticks: Mapping[float, str], bottom: float) -> list[str]:
    """Draw vertical lines at `ticks`, with the labels that fit below."""
    parts, end = [], 0.0
    for tick, label in ticks.items():
        at, half = x.at(tick), CHARACTER * len(label) / 2
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
        middle = min(at, WIDTH - half)
        if middle - half >= end:
            parts.append(_text(middle, bottom + 15, label, "middle"))
            end = middle + half + CHARACTER
    return parts


def _picture(title: str, bottom: float, parts: Sequence[str]) -> str:
    label = html.escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {bottom + 22:g}" role="img" aria-label="{label}">'
        f'<text class="head" x="{LEFT}" y="14">{label}</text>{"".join(parts)}</svg>'
    )


def by_kind(title: str, kinds: Sequence[str], rows: Sequence[tuple[str, str, list[float]]]) -> str:
    """Draw values as dots on a logarithmic axis, for `rows` of (kind, label, values)."""
    values = [value for _, _, of_kind in rows for value in of_kind]
    low = 10.0 ** math.floor(math.log10(max(min(values), 0.1)))
    high = (
        max(10.0 ** math.ceil(math.log10(max(values))), low * 10) if max(values) > 0 else low * 10
    )
    x = Scale.across(low, high, indent=210, log=True)
    bottom = TOP + 18.0 * len(rows)
    parts = _axis(x, {tick: f"{tick:,g} ms" for tick in x.ticks()}, bottom)
    for number, (kind, label, of_kind) in enumerate(rows):
        y = TOP + 18 * number + 9
        parts.append(_text(LEFT + 200, y + 4, f"{kind} {label}"[-40:], "end"))
        style = f"of{kinds.index(label) % 6}"
        for value in of_kind:
            parts.append(
                f'<circle class="{style}" cx="{x.at(value):.1f}" cy="{y}" r="4">'
                f"<title>{html.escape(f'{kind} {label}: {value:,.0f} ms')}</title></circle>"
            )
    return _picture(title, bottom, parts)


def bars(title: str, unit: str, rows: Sequence[tuple[str, float | None, Sequence[float]]]) -> str:
    """Draw a bar for each row of (label, median, values), with a dot for each value."""
    most = max((v for _, value, of_rounds in rows for v in (value or 0.0, *of_rounds)), default=0.0)
    longest = min(max((len(label) for label, _, _ in rows), default=0), LABEL_MAX)
    left = max(LEFT, CHARACTER * longest + 16)
    x = Scale(0.0, most * 1.05 or 1.0, left, WIDTH - RIGHT - 90)
    bottom = TOP + BAR * len(rows)
    parts = _axis(x, {tick: f"{tick:,.10g}" for tick in x.ticks()}, bottom)
    for number, (label, value, of_rounds) in enumerate(rows):
        y = TOP + BAR * number
        shown = label if len(label) <= LABEL_MAX else f"{label[: LABEL_MAX - 1]}…"
        parts.append(_text(left - 8, y + BAR * 0.65, shown, "end"))
        if value is None:
            continue
        rounds = "; ".join(_digits(v) for v in of_rounds)
        text = f"{label}: {_digits(value)} {unit} (median of {rounds})"
        tooltip = f"<title>{html.escape(text)}</title>"
        width = max(x.at(value) - x.start, 1)
        parts.append(
            f'<rect class="bar" x="{x.start:.1f}" y="{y + 3:.1f}" width="{width:.1f}" '
            f'height="{BAR - 6:.0f}">{tooltip}</rect>'
        )
        dots = "".join(f"M{x.at(v):.1f} {y + BAR / 2:.1f}h0" for v in of_rounds)
        parts.append(f'<path class="dot round" d="{dots}">{tooltip}</path>')
        right = max(x.at(v) for v in (value, *of_rounds))
        parts.append(_text(right + 6, y + BAR * 0.65, _digits(value), "start"))
    return _picture(title, bottom, parts)


def _digits(value: float) -> str:
    """Return a figure with four significant digits, but without decimals from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    """Return a text with its `anchor` at a place."""
    return (
        f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )
