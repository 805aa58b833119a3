"""Makes the table and the page that compare engines under the same faults, from the runs'
verdicts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.ops.page import chart_sections, document

from .page import PageTable, Row, again, recovery_figure, table
from .recovery import Recovery, ms_text

LOST_ROWS_MAX = 100  # of each engine; the rest is in its run's verdict.json


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine's run. `calm_per_s` is the rate of acknowledged sends at full speed before any
    fault; 0: not measured. `verdict` is the content of the run's verdict.json."""

    name: str
    calm_per_s: float
    verdict: Mapping[str, Any]
    recoveries: Sequence[Recovery] = ()
    directory: str = ""


HEAD = (
    "engine", "calm msg/s", "p50 ms", "p99 ms", "p99.9 ms", "sent", "acknowledged", "unknown",
    "failed", "acked and lost", "duplicates", "offsets back", "metadata back", "verdict",
)  # fmt: skip
COUNTS = ("lost", "duplicates", "offsets_back", "metadata_back")  # keys of verdict["counts"]


def summary_rows(candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """Return a row per engine, under HEAD."""
    rows = []
    for candidate in candidates:
        data = candidate.verdict
        load, latency = data["load"], data["load"]["latency_ms"]
        counts = data["counts"]
        rows.append(
            (
                candidate.name,
                f"{candidate.calm_per_s:,.0f}" if candidate.calm_per_s else "",
                *(_figure(latency[name]) for name in ("p50", "p99", "p999")),
                *(f"{load[name]:,}" for name in ("sent", "ok", "unknown", "fail")),
                *(f"{counts[name]:,}" for name in COUNTS),
                data["verdict"],
            )
        )
    return rows


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def recovery_rows(candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and rows, a row per kind of fault and a column per engine. Cells are p50 / max of
    the slowest client, and the number of faults without recovery before the next."""
    kinds = sorted({kind for c in candidates for kind in c.verdict["recovery"]["kinds"]})
    rows = []
    for kind in kinds:
        cells = []
        for candidate in candidates:
            result = candidate.verdict["recovery"]["kinds"].get(kind)
            cells.append("not run" if result is None else _cell(result))
        rows.append((kind, *cells))
    return ("fault", *(candidate.name for candidate in candidates)), rows


def _cell(figures: Mapping[str, Any]) -> str:
    worst = [ms for ms in figures["worst_client_ms"] if ms is not None]
    if not worst:
        return f"never in {figures['faults']}"
    spread = figures["worst_client"]
    text = f"{ms_text(spread['p50_ms'])} / {ms_text(spread['max_ms'])}"
    missing = figures["faults"] - len(worst)
    return f"{text} ({missing} of {figures['faults']} not)" if missing else text


def comparison_page(title: str, command: str, candidates: Sequence[Candidate]) -> str:
    head, rows = recovery_rows(candidates)
    tables = [
        PageTable("Under the same load and the same faults", HEAD, _rows(summary_rows(candidates))),
        PageTable("Recovery, slowest client: p50 / max", head, _rows(rows)),
    ]
    for candidate in candidates:
        tables += _lost(candidate)
        skipped = candidate.verdict.get("skipped", ())
        if skipped:
            reasons = tuple((text,) for text in skipped)
            tables.append(PageTable(f"{candidate.name}: not done", ("why",), _rows(reasons)))
    result = {c.name: c.recoveries for c in candidates}
    charts = []
    if any(r.worst_client_ms is not None for of_name in result.values() for r in of_name):
        charts.append(recovery_figure(result))
    return document(
        title,
        f"<h1>{html.escape(title)}</h1>"
        f"{table(tables[0])}{table(tables[1])}{chart_sections(charts)}"
        f"{''.join(table(other) for other in tables[2:])}{again(command)}",
    )


def _lost(candidate: Candidate) -> list[PageTable]:
    lost = candidate.verdict["lost"]
    if not lost:
        return []
    rows = tuple(
        (
            str(message["id"]),
            f"{message['topic']}-{message['queue']}@{message['offset']}",
            str(message["broker"]),
        )
        for message in lost[:LOST_ROWS_MAX]
    )
    title = f"{candidate.name}: acknowledged and lost, {len(lost):,}"
    if len(lost) > LOST_ROWS_MAX:
        title += f" (the first {LOST_ROWS_MAX}; all in {candidate.directory}/verdict.json)"
    return [PageTable(title, ("message", "position", "broker"), _rows(rows))]


def _rows(rows: Sequence[tuple[str, ...]]) -> tuple[Row, ...]:
    return tuple(Row(cells) for cells in rows)
