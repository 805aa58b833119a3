"""The metrics of a process's TLS: its certificates, and how connections arrive. Pure.

Names begin with the prefix of the process's other metric families.
"""

from __future__ import annotations

from dataclasses import fields

from raftmq.ops.metrics import Families

from .process_tls import ProcessTls


def tell(families: Families, prefix: str, tls: ProcessTls) -> None:
    """Add the families of TLS, which have no series if TLS is not used."""
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
