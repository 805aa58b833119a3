"""The catalogue of all kinds of faults, their requirements, and the notation of a *wish*.

A wish is `KIND`, `KIND:WHOM` or `KIND:WHOM,for=3,NAME=VALUE`; several joined by `+` happen at the
same time: `kill:leader`, `delay:follower,delay_ms=80`, `one-way-in:leader+kill:follower`. Faults
that a machine or a cluster cannot have are reported with the reason, never skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..cluster.clusterfile import COMPOSE, ClusterError, ClusterState
from . import clock, compose, damage, disk, groups, members, netns, network, process
from . import name_servers as names
from . import power_cut_minority as swap
from .base import FAMILIES, Context, Factory, Fault, Kind, Need, Planned
from .plan import Want
from .select import SELECTORS

_NODE_NAME = re.compile(r"[a-z]+\d+")  # n0; checked against the nodes of a running cluster

REGISTRY: Mapping[str, tuple[Kind, Factory]] = {
    **process.KINDS,
    **members.KINDS,
    **groups.KINDS,
    **network.KINDS,
    **netns.KINDS,
    **names.KINDS,
    **disk.KINDS,
    **damage.KINDS,
    **swap.KINDS,
    **clock.KINDS,
}
NEEDS: Mapping[str, Need] = {
    **process.NEEDS,
    **members.NEEDS,
    **groups.NEEDS,
    **network.NEEDS,
    **netns.NEEDS,
    **names.NEEDS,
    **disk.NEEDS,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A kind for display. `cannot` is the reason for which it is impossible here, or ""."""

    kind: Kind
    cannot: str


def find(name: str) -> Kind:
    """Return the kind called `name`. Raises ClusterError that lists the kinds there are."""
    entry = REGISTRY.get(name)
    if entry is None:
        raise ClusterError(f"no fault {name!r}; there are {', '.join(sorted(REGISTRY))}")
    return entry[0]


def unavailable(kind: Kind, state: ClusterState | None = None) -> str | None:
    """Return why this machine or this cluster cannot do it; None if it can.

    Without a cluster, only the machine's features count.
    """
    if state is not None and kind.modes is not None and state.mode not in kind.modes:
        return f"not in mode {state.mode}: it is for {', '.join(sorted(kind.modes))}"
    on_containers = state is not None and state.on == COMPOSE
    if on_containers and (kind.name in compose.MADE_BY or compose.why_not(kind)):
        return compose.why_not(kind)
    for name in sorted(kind.needs):
        reason = NEEDS[name](state)
        if reason is not None:
            return reason
    return None


def make(planned: Planned, context: Context) -> Fault:
    """Make the planned fault for this cluster. Raises ClusterError where it cannot be done."""
    kind = find(planned.kind)
    state = context.cluster.state()
    reason = unavailable(kind, state)
    if reason is not None:
        raise ClusterError(f"{kind.name}: {reason}")
    if state.on == COMPOSE and kind.name in compose.MADE_BY:
        return compose.MADE_BY[kind.name](planned, context)
    return REGISTRY[kind.name][1](planned, context)


def rows(state: ClusterState | None = None) -> list[Row]:
    """Return every kind, family by family, with the reason if it cannot be done here."""
    kinds = [kind for kind, _ in REGISTRY.values()]
    kinds.sort(key=lambda kind: (FAMILIES.index(kind.family), kind.name))
    return [Row(kind, unavailable(kind, state) or "") for kind in kinds]


def parse_wish(text: str) -> tuple[Want, ...]:
    """Parse a wish. Raises ClusterError that names the offending word."""
    return tuple(_parse_wish(wish.strip()) for wish in text.split("+"))


def _parse_wish(text: str) -> Want:
    head, *assignments = text.split(",")
    name, _, whom = head.partition(":")
    kind = find(name.strip())
    for_s, params = 0.0, dict[str, str | float]()
    for assignment in assignments:
        key, equals, value = (piece.strip() for piece in assignment.partition("="))
        if not equals or not key or not value:
            raise ClusterError(f"{text!r}: expected NAME=VALUE, found {assignment!r}")
        try:
            number = float(value)
        except ValueError:
            raise ClusterError(f"{text!r}: {key} must be a number, not {value!r}") from None
        if key == "for":
            for_s = number
        elif key in kind.params:
            params[key] = number
        else:
            known = ", ".join(("for", *kind.params))
            raise ClusterError(f"{text!r}: {kind.name} has no {key}; it has {known}")
    if for_s < 0:
        raise ClusterError(f"{text!r}: for={for_s:g} is in the past")
    if whom.strip() and whom.strip() not in SELECTORS and not _NODE_NAME.fullmatch(whom.strip()):
        known = ", ".join(SELECTORS)
        raise ClusterError(
            f"{text!r}: no target {whom.strip()!r}; there are {known}, or a node: n0"
        )
    return Want(kind, whom.strip(), for_s, params)
