"""An audit's reports as files for tables, dashboards and alerts (columns in docs/audit.md).

    DIR/stores.parquet    each store, its read range and its agreed end
        figures.parquet   numbers of stored, sent and acknowledged messages
        checks.parquet    each check with its count and verdict
        findings.parquet  the first offenders of each check, with file and offset if known
        audit.html        the reports as a page (audit.report.html_report)
        mqaudit.prom      verdict and counts for Prometheus' textfile collector

Files are replaced atomically, so a reader never reads half a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from .html_report import page
from .report import AuditReport

_RUN = [
    ("audited_at", pa.timestamp("ms", tz="UTC")),
    ("group", pa.string()),
    ("topic", pa.string()),
]
STORES = pa.schema(
    [
        *_RUN,
        ("store", pa.string()),
        ("start", pa.int64()),
        ("commit", pa.int64()),
        ("agreed", pa.int64()),
        ("data_end", pa.int64()),
        ("records", pa.int64()),
        ("frames", pa.int64()),
    ]
)
FIGURES = pa.schema([*_RUN, ("figure", pa.string()), ("count", pa.int64())])
CHECKS = pa.schema(
    [
        *_RUN,
        ("check", pa.string()),
        ("title", pa.string()),
        ("verdict", pa.string()),
        ("fault", pa.bool_()),
        ("count", pa.int64()),
        ("ok", pa.bool_()),
    ]
)
FINDINGS = pa.schema(
    [
        *_RUN,
        ("check", pa.string()),
        ("fault", pa.bool_()),
        ("store", pa.string()),
        ("position", pa.int64()),
        ("location", pa.string()),
        ("details", pa.string()),
    ]
)


def write_results(directory: Path, reports: Sequence[AuditReport], audited_at_ms: int) -> None:
    """Replace all files of the audit before. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    runs = [(report, [audited_at_ms, report.group, report.topic]) for report in reports]
    tables = {
        "stores": (STORES, [[*run, *row] for report, run in runs for row in _stores(report)]),
        "figures": (
            FIGURES,
            [[*run, *row] for report, run in runs for row in report.figures.items()],
        ),
        "checks": (CHECKS, [[*run, *row] for report, run in runs for row in _checks(report)]),
        "findings": (FINDINGS, [[*run, *row] for report, run in runs for row in _findings(report)]),
    }
    for name, (schema, rows) in tables.items():
        columns = [
            pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)
        ]
        temporary = directory / f".{name}.parquet.tmp"
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), temporary)
        os.replace(temporary, directory / f"{name}.parquet")
    texts = {
        "audit.html": page(reports, audited_at_ms),
        "mqaudit.prom": "".join(prometheus_lines(reports, audited_at_ms)),
    }
    for name, text in texts.items():
        temporary = directory / f".{name}.tmp"
        temporary.write_text(text)
        os.replace(temporary, directory / name)


def prometheus_lines(reports: Sequence[AuditReport], audited_at_ms: int) -> Iterator[str]:
    families: list[tuple[str, str, list[tuple[dict[str, str], float]]]] = [
        ("ok", "1 if the last audit found nothing wrong.", []),
        ("time_seconds", "When the last audit was made, Unix time.", []),
        ("duration_seconds", "How long it took.", []),
        ("findings", "What it found, by check.", []),
        ("agreed_end_bytes", "Up to where enough stores agree.", []),
        ("store_records", "Intact records in a store.", []),
    ]
    ok, time_s, duration, findings, agreed, records = (rows for _, _, rows in families)
    for report in reports:
        group = {"group": report.group}
        ok.append((group, float(report.ok)))
        time_s.append((group, audited_at_ms / 1000))
        duration.append((group, report.seconds))
        agreed.append((group, report.agreed_end if report.stores else 0))
        for check in report.checks:
            fault = "true" if check.fault else "false"
            labels = {"check": check.name, "verdict": str(check.verdict), "fault": fault}
            findings.append(({**group, **labels}, check.count))
        records += [({**group, "store": each.store}, each.records) for each in report.stores]
    for name, doc, rows in families:
        yield f"# HELP raftmq_audit_{name} {doc}\n# TYPE raftmq_audit_{name} gauge\n"
        for labels, value in rows:
            text = ",".join(
                f"{key}={orjson.dumps(label).decode()}" for key, label in labels.items()
            )
            yield f"raftmq_audit_{name}{{{text}}} {value:.15g}\n"


def _stores(report: AuditReport) -> Iterator[list[Any]]:
    for each in report.stores:
        limits = [each.start, each.commit, each.agreed, each.data_end]
        yield [each.store, *limits, each.records, each.frames]


def _checks(report: AuditReport) -> Iterator[list[Any]]:
    for check in report.checks:
        yield [check.name, check.title, check.verdict, check.fault, check.count, check.ok]


def _findings(report: AuditReport) -> Iterator[list[Any]]:
    for check in report.checks:
        for offender in check.offenders:
            position = offender.get("position")
            yield [
                check.name,
                check.fault,
                offender.get("store"),
                position if isinstance(position, int) else None,
                offender.get("location"),
                orjson.dumps(offender, default=str).decode(),
            ]
