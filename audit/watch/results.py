"""The files of a continuous audit, derived from its state after each round.

DIR/findings.jsonl        a line for each finding
    mqaudit_watch.prom    counts for Prometheus
    watch.html            the last day as a page
"""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import orjson

from raftmq.ops.page import document, section
from raftmq.remoting.address import parse_address

from ..report.html_report import OWN_STYLE, cells, table_of, utc
from .judge import KINDS
from .state import ACKNOWLEDGED, REASONS, State

_DAY_MS = 86_400_000
_SHOWN_MAX = 100  # findings, and queues
METRICS, PAGE = "mqaudit_watch.prom", "watch.html"
_SERVED = {"/": PAGE, "/metrics": METRICS}
_CLIENT_TIMEOUT_S = 5


class Results:
    """The files in a state's directory."""

    def __init__(self, state: State) -> None:
        """Raises OSError."""
        self._state = state
        self._findings = state.directory / "findings.jsonl"
        self._published = self._lines_published()

    def publish(self, now_ms: int) -> list[dict[str, Any]]:
        """Write the files; return the new findings. Raises OSError, sqlite3.Error."""
        new = self._state.lines(self._published)
        if new:
            with self._findings.open("ab") as file:
                file.write(b"".join(line + b"\n" for line in new))
                file.flush()
                os.fsync(file.fileno())
            self._published += len(new)
        texts = {METRICS: "".join(metrics(self._state, now_ms)), PAGE: page(self._state, now_ms)}
        for name, text in texts.items():
            temporary = self._state.directory / f".{name}.tmp"
            temporary.write_text(text)
            os.replace(temporary, self._state.directory / name)
        return [orjson.loads(line) for line in new]

    def _lines_published(self) -> int:
        """Return the number of lines in the file, without the torn line of a killed watch."""
        with self._findings.open("a+b") as file:
            file.seek(0)
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        return content.count(b"\n")


def metrics(state: State, now_ms: int) -> Iterator[str]:
    """Yield the lines for Prometheus."""
    counts = state.counts()
    kinds = dict.fromkeys(KINDS, 0) | state.findings(now_ms - _DAY_MS)
    behind: Counter[tuple[str, str]] = Counter()
    for each in state.unconsumed:
        behind[each.consumer_group, each.topic] += each.messages
    families: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
        (
            *("acknowledged_total", "counter", "Acknowledged messages that were judged."),
            {"": counts.get(ACKNOWLEDGED, 0)},
        ),
        (
            *("not_judged_total", "counter", "Acknowledged messages that are not judged."),
            {f'{{reason="{reason}"}}': counts.get(reason, 0) for reason in REASONS},
        ),
        (
            *("findings", "gauge", "Findings of the last 24 hours."),
            {f'{{kind="{kind}"}}': count for kind, count in kinds.items()},
        ),
        (
            *("waiting", "gauge", "Acknowledged messages that cannot be judged yet."),
            {"": len(state.waiting)},
        ),
        (
            *("late", "gauge", "Waiting messages whose brokers have not answered in time."),
            {"": sum(each.late for each in state.waiting)},
        ),
        (
            *("unconsumed", "gauge", "Messages that a group has not consumed in time."),
            {f'{{group="{g}",topic="{t}"}}': count for (g, t), count in sorted(behind.items())},
        ),
        (
            *("time_seconds", "gauge", "When all acknowledgements were judged, Unix time."),
            {"": state.level_ms / 1000},
        ),
    )
    for name, kind, doc, samples in families:
        yield f"# HELP raftmq_watch_{name} {doc}\n# TYPE raftmq_watch_{name} {kind}\n"
        for labels, value in samples.items():
            yield f"raftmq_watch_{name}{labels} {value:.15g}\n"


def page(state: State, now_ms: int) -> str:
    """Return the page of the last day."""
    since_ms = now_ms - _DAY_MS
    wrong = bool(state.findings(since_ms))
    mark, verdict = ("wrong", "Findings") if wrong else ("fine", "No finding")
    level = utc(state.level_ms) if state.level_ms else "never"
    late = sum(each.late for each in state.waiting)
    names = (ACKNOWLEDGED, *KINDS, *REASONS)
    rows = [
        cells(utc(hour_ms), *(counts.get(name, 0) for name in names))
        for hour_ms, counts in state.hours(since_ms)
    ]
    parts = [section(table_of(("hour", *names), rows))]
    if state.unconsumed:
        fields = state.unconsumed[0]._fields
        queues = [cells(*each) for each in state.unconsumed[:_SHOWN_MAX]]
        parts.append(section(table_of([name.replace("_", " ") for name in fields], queues)))
    lines = [orjson.loads(line) for line in state.last_lines(since_ms, _SHOWN_MAX)]
    if lines:
        last = [cells(utc(row["found_ms"]), text_of(row)) for row in lines]
        parts.append(section(table_of(("found", "finding"), last)))
    return document(
        "mqaudit watch",
        f"<h1>Watch over {html.escape(state.subject)}</h1>"
        f'<p class="{mark}">{verdict} in the 24 hours before {utc(now_ms)}.</p>'
        f"<p>All acknowledgements were judged at: {level}. Messages that wait: "
        f"{len(state.waiting):,}, late: {late:,}.</p>{''.join(parts)}",
        OWN_STYLE,
    )


def text_of(row: Mapping[str, Any]) -> str:
    """Return a finding as a line."""
    if "topic" not in row:
        return f"{row['kind']}: {row['what']}"
    message = f"{row['msg_id']} of " if "msg_id" in row else ""
    return (
        f"{row['kind']}: {message}{row['topic']} at {row['broker']}, queue {row['queue_id']}, "
        f"offset {row['queue_offset']}: {row['what']}"
    )


@contextmanager
def served(directory: Path, address: str) -> Iterator[int]:
    """Serve page and metrics at `address`, and return its port. Requests are answered in turn.
    Raises OSError, ValueError."""
    server = HTTPServer(parse_address(address), partial(_Handler, directory=str(directory)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def translate_path(self, path: str) -> str:
        return os.path.join(self.directory, _SERVED.get(path, "absent"))

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        is_page = os.fspath(path).endswith(PAGE)
        return "text/html; charset=utf-8" if is_page else "text/plain; version=0.0.4"

    def log_message(self, format: str, *_: object) -> None:
        """Log nothing."""
