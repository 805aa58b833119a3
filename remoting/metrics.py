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
        "What connections make this process hold, over all of them.",
        ("budget",),
        [
            *(((name,), h.held_bytes) for name, h in holdings),
            *(((name,), a.used_bytes) for name, a in allowances),
        ],
    )
    families.gauges(
        f"{prefix}_budget_limit_bytes",
        "The bounds of that.",
        ("budget",),
        [
            *(((name,), h.bytes_max) for name, h in holdings),
            *(((name,), a.bytes_max) for name, a in allowances),
        ],
    )
    families.counters(
        f"{prefix}_budget_refusals_total",
        "Connections closed (frames: at the bound, or not whole in time), and requests"
        " answered BUSY.",
        ("budget",),
        [
            *(((name,), h.closed_count) for name, h in holdings),
            *(((name,), a.refused_count) for name, a in allowances),
        ],
    )
    families.counter(
        f"{prefix}_unforeseen_total",
        "Requests and callbacks of connections that raised what nobody foresaw; see the log.",
        budgets.failures,
    )
    families.counters(
        f"{prefix}_long_turns_total",
        "How often a request kept the event loop for more than 20 ms of processor time at once, by"
        " request code; see the log.",
        ("code",),
        [((str(code),), count) for code, count in sorted(watch.long_turns.items())],
    )


def add_tls(families: Families, prefix: str, tls: ProcessTls) -> None:
    """Add the families of TLS, without series if TLS is not used."""
    contexts = tls.contexts()
    families.gauges(
        f"{prefix}_tls_certificate_not_after_seconds",
        "When a certificate of this process ends, or the last CA of a trust file, in seconds since"
        " the epoch.",
        ("context",),
        [((name,), found.not_after_s) for c in contexts for name, found in c.watched],
    )
    families.gauges(
        f"{prefix}_tls_files_refused",
        "1: the files of certificates as they are now cannot be used; those before still are.",
        ("context",),
        [((c.name,), float(bool(c.error))) for c in contexts],
    )
    families.counters(
        f"{prefix}_tls_renewals_total",
        "How often files of certificates that changed were taken over.",
        ("context",),
        [((c.name,), c.renewed_count) for c in contexts],
    )
    families.counters(
        f"{prefix}_tls_arrivals_total",
        "Connections at ports that take TLS: tls, plain, plain_refused (enforcing), failed in the"
        " handshake, silent (said nothing in time).",
        ("context", "result"),
        [
            ((name, one.name), getattr(counts, one.name))
            for name, counts in tls.arrivals()
            for one in fields(counts)
        ],
    )
