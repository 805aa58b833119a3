"""The metrics of a process's budgets (remoting.memory_limits) and of the turns that its requests
take on the loop (remoting.fair_scheduling) at /metrics. Pure.

Names begin with the prefix of the process's other metric families.
"""

from __future__ import annotations

from raftmq.ops.metrics import Families

from .fair_scheduling import Watch
from .memory_limits import Budgets


def tell(families: Families, prefix: str, budgets: Budgets, watch: Watch) -> None:
    budgets.unsent.look_again()
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
