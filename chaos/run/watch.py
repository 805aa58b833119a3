"""Live view of a run in the terminal with rates, latency, leaders, faults and checks.

It reads only the history of the run. So any number of people may watch, also on a machine that
shares the file, and an old history can be replayed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..checks.suite import Suite
from ..checks.verdict import Check, Verdict
from ..history.files import Follower
from ..report.recovery import carried, ms_text

WINDOW_NS = 2_000_000_000  # rates and latencies are of the last two seconds
RECENT_MAX = 400_000  # sends in the window; beyond, the oldest are forgotten
POLL_S = 0.2
WAIT_FOR_FILE_S = 60.0
MARKS = {
    Verdict.PASS: "[green]pass[/]",
    Verdict.FAIL: "[bold red]FAIL[/]",
    Verdict.UNKNOWN: "[yellow]unknown[/]",
    Verdict.INVALID: "[bold magenta]INVALID[/]",
}


class Scene:
    """The state to show, updated record by record. Bounded except for the suite."""

    def __init__(self) -> None:
        self.suite = Suite()
        self.now_ns = 0
        self.start_ns = 0
        self.counts: Counter[str] = Counter()
        self.consumed = 0
        self.leaders: dict[str, tuple[str, int]] = {}
        self.faults: dict[int, str] = {}  # not healed yet, by number
        self.faults_done = 0
        self.last_note = ""
        self._due: dict[int, int] = {}  # sends without an outcome, by op
        self._recent: deque[tuple[int, str, int]] = deque(maxlen=RECENT_MAX)  # done, type, took

    def feed(self, record: dict[str, Any]) -> None:
        """Process a record. Raises HistoryError."""
        self.suite.feed(record)
        t_ns = record["t_ns"]
        self.now_ns = max(self.now_ns, t_ns)
        self.start_ns = self.start_ns or t_ns
        function, type_ = record.get("f"), record.get("type")
        if function in ("send", "post"):
            self._send(record, t_ns)
        elif function == "consume":
            self.consumed += len(record["offsets"])
        elif function == "deliver":
            self.consumed += 1
        elif function == "leader":
            self.leaders[record.get("group", "")] = (record["node"], record["term"])
        elif function == "inject" and type_ == "ok":
            nodes = ", ".join(record["nodes"]) or record["whom"]
            self.faults[record["fault"]] = f"{record['kind']} {nodes}"
            self.faults_done += 1
        elif function == "heal" and type_ == "ok":
            self.faults.pop(record["fault"], None)
        elif function == "note":
            self.last_note = str(record.get("text", ""))

    def _send(self, record: dict[str, Any], t_ns: int) -> None:
        type_ = record["type"]
        if type_ == "invoke":
            self._due[record["op"]] = record.get("due_ns", t_ns)
            self.counts["sent"] += 1
            return
        self.counts[type_] += 1
        due_ns = self._due.pop(record["op"], t_ns)
        self._recent.append((t_ns, type_, t_ns - due_ns))

    def rates(self) -> tuple[dict[str, float], list[float]]:
        """Return the window's outcomes a second, and ascending latencies of `ok` sends in ms."""
        while self._recent and self._recent[0][0] < self.now_ns - WINDOW_NS:
            self._recent.popleft()
        seconds = min(WINDOW_NS, max(self.now_ns - self.start_ns, 1)) / 1e9
        counts = Counter(type_ for _, type_, _ in self._recent)
        took = sorted(took / 1e6 for _, type_, took in self._recent if type_ == "ok")
        return {type_: count / seconds for type_, count in counts.items()}, took

    def render(self) -> Group:
        rates, took = self.rates()
        meta = self.suite.meta
        head = Table.grid(padding=(0, 3))
        seconds = (self.now_ns - int(meta["t_ns"])) / 1e9
        head.add_row(
            f"[bold]{escape(str(meta.get('scenario', 'history')))}[/]",
            escape(str(meta.get("mode", ""))),
            f"seed {meta['seed']}" if "seed" in meta else "",
            f"{seconds:,.0f} s",
        )
        load = Table.grid(padding=(0, 3))
        load.add_row(
            f"acknowledged {rates.get('ok', 0.0):,.0f}/s",
            f"unknown {rates.get('unknown', 0.0):,.0f}/s",
            f"failed {rates.get('fail', 0.0):,.0f}/s",
            f"p50 {ms_text(carried(took, 0.5), 1)}",
            f"p99 {ms_text(carried(took, 0.99), 1)}",
        )
        load.add_row(
            f"{self.counts['ok']:,} of {self.counts['sent']:,}",
            f"{self.counts['unknown']:,}",
            f"{self.counts['fail']:,}",
            f"waiting {len(self._due):,}",
            f"consumed {self.consumed:,}",
        )
        led = ", ".join(
            f"{group} {node} in term {term}".strip()
            for group, (node, term) in sorted(self.leaders.items())
        )
        wrong = "; ".join(self.faults.values())
        parts: list[Any] = [head, load, f"leader: {led or 'none seen'}"]
        parts.append(
            f"faults: {self.faults_done} so far{f', now: [red]{escape(wrong)}[/]' if wrong else ''}"
        )
        if self.last_note:
            parts.append(escape(self.last_note))
        parts.append(check_table(self.suite.results()))
        return Group(*parts)


def check_table(checks: tuple[Check, ...] | list[Check]) -> Table:
    table = Table()
    table.add_column("check")
    table.add_column("count", justify="right")
    table.add_column("verdict")
    table.add_column("detail", overflow="fold")
    for check in checks:
        detail = escape("\n".join((check.detail, *check.examples)))
        table.add_row(check.name, f"{check.count:,}", MARKS[check.verdict], detail)
    return table


def watch(history: Path, console: Console, wait_s: float = WAIT_FOR_FILE_S) -> Scene:
    """Show `history` until the run's verdict exists beside it. Blocking.

    Raises FileNotFoundError if no history appears within `wait_s`; HistoryError, OSError."""
    deadline = time.monotonic() + wait_s
    while not history.exists():
        if time.monotonic() > deadline:
            raise FileNotFoundError(f"no history at {history}")
        time.sleep(POLL_S)
    verdict = history.with_name("verdict.json")
    scene = Scene()
    with Follower(history) as follower, Live(console=console, refresh_per_second=4) as live:
        while True:
            over = verdict.exists()  # checked before reading, because nothing is written after it
            records = follower.poll()
            for record in records:
                scene.feed(record)
            if records:
                live.update(scene.render())
            elif over:
                return scene
            else:
                time.sleep(POLL_S)
