"""Metric families of a process's memory limits, of long turns on the loop, and of TLS.

Names start with the prefix of the process's metric families. Pure, without I/O.
"""

from __future__ import annotations

from dataclasses import fields

from raftmq.ops.metrics import Families

from .fair_scheduling import Watch
from .memory_limits import Budgets
from .process_tls import ProcessTls


def add_limits(families: Families, prefix: str, budgets: Budgets, watch: Watch) -> None:
    budgets.unsent.refresh()
    holdings = (("unfinished_frames", budgets.unfinished), ("unsent_answers", budgets.unsent))
    allowances = (("slow_requests", budgets.work), ("kept", budgets.kept))
    families.gauges(
        f"{prefix}_budget_used_bytes",
        "Bytes that this process holds for all connections.",
        ("budget",),
        [
            *(((name,), h.held_bytes) for name, h in holdings),
            *(((name,), a.used_bytes) for name, a in allowances),
        ],
    )
    families.gauges(
        f"{prefix}_budget_limit_bytes",
        "Limits of these budgets.",
        ("budget",),
        [
            *(((name,), h.bytes_max) for name, h in holdings),
            *(((name,), a.bytes_max) for name, a in allowances),
        ],
    )
    families.counters(
        f"{prefix}_budget_refusals_total",
        "Connections closed (frames: at the limit, or incomplete in time), and requests answered "
        "BUSY.",
        ("budget",),
        [
            *(((name,), h.closed_count) for name, h in holdings),
            *(((name,), a.refused_count) for name, a in allowances),
        ],
    )
    families.counter(
        f"{prefix}_unforeseen_total",
        "Requests and callbacks of connections that raised an unforeseen error; see the log.",
        budgets.failures,
    )
    families.counters(
        f"{prefix}_long_turns_total",
        "Requests that kept the event loop for more than 20 ms of processor time at once, by "
        "request code; see the log.",
        ("code",),
        [((str(code),), count) for code, count in sorted(watch.long_turns.items())],
    )


def add_tls(families: Families, prefix: str, tls: ProcessTls) -> None:
    """Add the families of TLS, without series if TLS is not used."""
    contexts = tls.contexts()
    families.gauges(
        f"{prefix}_tls_certificate_not_after_seconds",
        "Expiry of a certificate of this process, or of the last CA of a trust file, in seconds "
        "since the epoch.",
        ("context",),
        [((name,), certificate.not_after_s) for c in contexts for name, certificate in c.watched],
    )
    families.gauges(
        f"{prefix}_tls_files_refused",
        "1: the present certificate files are unusable; the previous ones are in use.",
        ("context",),
        [((c.name,), float(bool(c.error))) for c in contexts],
    )
    families.counters(
        f"{prefix}_tls_renewals_total",
        "Renewals of certificates from changed files.",
        ("context",),
        [((c.name,), c.renewed_count) for c in contexts],
    )
    families.counters(
        f"{prefix}_tls_arrivals_total",
        "Connections at ports with TLS: tls, plain, plain_refused (enforcing), failed in the "
        "handshake, silent (no data in time).",
        ("context", "result"),
        [
            ((name, one.name), getattr(counts, one.name))
            for name, counts in tls.arrivals()
            for one in fields(counts)
        ],
    )
