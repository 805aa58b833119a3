"""The workloads by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..cluster.clusterfile import ClusterError
from . import delayed, retries, transactions
from .base import Workload
from .delayed import delayed_workload
from .load import GROUP, LOG, ONCE, ORDERED, MessagesConfig
from .locks import locks_workload
from .messages import Churn, MessagesWorkload
from .metadata import MetadataWorkload
from .pops import pop_workload
from .retries import retries_workload
from .transactions import transactions_workload

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "log": MessagesWorkload,
    "ordered": lambda: MessagesWorkload(ORDERED),
    "group": lambda: MessagesWorkload(GROUP, churn=Churn()),
    "metadata": MetadataWorkload,
    "idempotent": lambda: MessagesWorkload(ONCE),
    "transactions": transactions_workload,
    "delayed": delayed_workload,
    "retries": retries_workload,
    "locks": locks_workload,
    "pop": pop_workload,
}
# Settings for clusters that are started for a workload, so that nobody waits for hours.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "transactions": transactions.SETTINGS,
    "delayed": delayed.SETTINGS,
    "retries": retries.SETTINGS,
}


def settings_for(names: Sequence[str]) -> dict[str, str]:
    """Return the broker.conf keys that these workloads want."""
    desired: dict[str, str] = {}
    for name in names:
        desired |= SETTINGS.get(name, {})
    return desired


def make_workloads(names: Sequence[str], log: MessagesConfig = LOG) -> list[Workload]:
    """Make the workloads of these names, once each; `log` configures the workload of its name.

    Raises ClusterError for an unknown name, and for none.
    """
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        known = ", ".join(WORKLOADS)
        raise ClusterError(f"no workload {', '.join(unknown) or 'given'}; there are {known}")
    return [
        MessagesWorkload(log) if name == "log" else WORKLOADS[name]()
        for name in dict.fromkeys(names)
    ]
