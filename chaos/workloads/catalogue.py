"""The workloads by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..cluster.clusterfile import ClusterError
from . import delayed, retries, transactions
from .base import Workload
from .deferred import PostedConfig, PostedWorkload
from .delayed import DELAYED, Delayed
from .load import GROUP, LOG, ONCE, ORDERED, MessagesConfig
from .locks import LOCKS, locks_workload
from .messages import Churn, MessagesWorkload
from .metadata import RATE_PER_S, MetadataWorkload
from .pops import POP, Pops
from .retries import RETRIES, Retries
from .transactions import TRANSACTIONS, Transacted

Config = TypeVar("Config", MessagesConfig, PostedConfig)


def _at(share: float, config: Config) -> Config:
    return replace(config, rate_per_s=config.rate_per_s * share)


# By name, from the share of the usual rate.
WORKLOADS: dict[str, Callable[[float], Workload]] = {
    "log": lambda share: MessagesWorkload(_at(share, LOG)),
    "ordered": lambda share: MessagesWorkload(_at(share, ORDERED)),
    "group": lambda share: MessagesWorkload(_at(share, GROUP), churn=Churn()),
    "metadata": lambda share: MetadataWorkload(rate_per_s=RATE_PER_S * share),
    "idempotent": lambda share: MessagesWorkload(_at(share, ONCE)),
    "transactions": lambda share: PostedWorkload(_at(share, TRANSACTIONS), Transacted),
    "delayed": lambda share: PostedWorkload(_at(share, DELAYED), Delayed),
    "retries": lambda share: PostedWorkload(_at(share, RETRIES), Retries),
    "locks": lambda share: locks_workload(_at(share, LOCKS)),
    "pop": lambda share: PostedWorkload(_at(share, POP), Pops),
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


def make_workloads(
    names: Sequence[str], log: MessagesConfig = LOG, share: float = 1.0
) -> list[Workload]:
    """Make the workloads of these names, once each, with a share of their usual rates, except
    `log`, which configures the workload of its name.

    Raises ClusterError for an unknown name, and for none.
    """
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        known = ", ".join(WORKLOADS)
        raise ClusterError(f"no workload {', '.join(unknown) or 'given'}; there are {known}")
    return [
        MessagesWorkload(log) if name == "log" else WORKLOADS[name](share)
        for name in dict.fromkeys(names)
    ]
