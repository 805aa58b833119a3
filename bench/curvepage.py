"""The page of bench.curves: one chart for each kind of figure of each curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raftmq.ops.page import chart_sections, document, key
from raftmq.ops.svg import Panel, Scale, digits, line_style, marker, swatch

# The kinds of figures by the ends of their names; the first that fits is taken.
KINDS = (
    ("_kib_topic", "KiB a topic"),
    ("_kib_each", "KiB a connection"),
    ("cpu_ms_s", "CPU ms a second"),
    ("rate", "a second"),
    ("_ms", "ms"),
    ("_us", "CPU µs a message"),
    ("_mib", "resident MiB"),
    ("mib_s", "MiB a second"),
    ("_s", "seconds"),
)
HEIGHT = 280.0
Lines = dict[str, list[tuple[int, float]]]


def write_page(path: Path, curves: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Write the curves: axis → value, in digits → figures."""
    path.write_text(render(curves), encoding="utf-8")


def render(curves: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the whole file."""
    drawn = [chart for axis, found in curves.items() for chart in charts(axis, found)]
    return document("Curves", f"<h1>Curves</h1>{chart_sections(drawn)}")


def charts(axis: str, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a chart for each kind of figure of one curve."""
    kinds: dict[str, Lines] = {}
    for value in sorted(found, key=int):
        for name, figure in found[value].items():
            line = kinds.setdefault(kind_of(name), {}).setdefault(name, [])
            line.append((int(value), figure))
    return [_chart(axis, kind, lines) for kind, lines in kinds.items()]


def kind_of(name: str) -> str:
    """Return what a figure is counted in."""
    return next((kind for end, kind in KINDS if name.endswith(end)), "")


def _chart(axis: str, kind: str, lines: Lines) -> str:
    """Draw lines over a logarithmic axis with the points that were measured, and their key: a line
    is known by its dashes and markers, too."""
    values = sorted({value for line in lines.values() for value, _ in line})
    x = Scale.across(max(1, values[0]), max(1, values[-1]), log=True)
    most = max(figure for line in lines.values() for _, figure in line)
    panel = Panel(f"{kind} over {axis}", x, Scale.upright(0.0, most or 1.0, HEIGHT), HEIGHT)
    keys = []
    for number, (name, line) in enumerate(lines.items()):
        style = line_style(number)
        panel.line([value for value, _ in line], [figure for _, figure in line], style)
        for value, figure in line:
            panel.marker(value, figure, number, f"{name} at {value:,}: {digits(figure)}")
        drawn = f'<polyline class="{style}" points="0,6 30,6"/>{marker([(15, 6)], number, name)}'
        keys.append((swatch(drawn), name))
    return key(keys) + panel.svg(ticks={value: f"{value:,}" for value in values})
