"""The workloads by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.cluster.clusterfile import ClusterError
from chaos.workloads.base import Workload
from chaos.workloads.messages import LOG, ORDERED, GroupWorkload, MessagesConfig, MessagesWorkload
from chaos.workloads.metadata import MetadataWorkload

WORKLOADS: dict[str, tuple[str, Callable[[], Workload]]] = {
    "log": ("ordered sends at a constant rate, one group consumes", MessagesWorkload),
    "ordered": (
        "many keys, several producers, consumers that promise order",
        lambda: MessagesWorkload(ORDERED),
    ),
    "group": ("consumers that leave and come back, offsets committed and read", GroupWorkload),
    "metadata": ("topics and groups created, changed and read back", MetadataWorkload),
}


def make_workloads(names: Sequence[str], log: MessagesConfig = LOG) -> list[Workload]:
    """The workloads of these names, each once; `log` configures the one called so.

    Raises ClusterError for a name there is not, and for none.
    """
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        known = ", ".join(WORKLOADS)
        raise ClusterError(f"no workload {', '.join(unknown) or 'given'}; there are {known}")
    return [
        MessagesWorkload(log) if name == "log" else WORKLOADS[name][1]()
        for name in dict.fromkeys(names)
    ]
