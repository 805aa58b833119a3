"""Faults of name servers, which are down, frozen or unreachable.

Connected clients and brokers need name servers for changes only. So traffic should continue; only
new routes and new leaders have to wait.
"""

from __future__ import annotations

from functools import partial

from ..cluster.clusterfile import ClusterState
from .base import Kind, Need, Table, chosen, injected
from .network import LinkFault, cut_node
from .process import Pause, kill

_WHOM = ("namesrv", "namesrvs")
_LASTS_S = (2.0, 8.0)


def _needs_own(state: ClusterState | None) -> str | None:
    if state is None or state.name_servers:
        return None
    return f"the name server {state.namesrv} is not this cluster's own"


_ENTRIES = (
    (Kind("namesrv-down", "names", "a name server, or all of them, killed -9 and started again",
        _WHOM, frozenset({"names"}), lasts_s=_LASTS_S), kill),
    (Kind("namesrv-pause", "names",
        "a name server, or all of them, frozen: it takes connections and answers nothing", _WHOM,
        frozenset({"names"}), lasts_s=_LASTS_S), injected(Pause)),
    (Kind("namesrv-cut", "names",
        "a name server, or all of them, that no broker and no client reaches", _WHOM,
        frozenset({"names", "links"}), lasts_s=_LASTS_S),
        chosen(partial(LinkFault, rules_of=cut_node, text="nobody reaches it"))),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
NEEDS: dict[str, Need] = {"names": _needs_own}
