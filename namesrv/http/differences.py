"""Differences between the states of a group's replicas.

The node views (GET /api/v1/node) are compared with each other and with the name server's own route.
They are not taken at the same instant, so values that change under load (a few committed frames, a
new term within a heartbeat) are reported only above the limits below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .views import FindingView

FRAMES_APART_MAX = 200  # commits of a busy group in the time between two views
FULL_SOON_MS = 6 * 3_600_000  # as brokers warn
SEVERITIES = ("critical", "warning", "notice")

View = Mapping[str, Any]


def findings(
    group: str, brokers: Sequence[Mapping[str, Any]], route_leader: str = ""
) -> list[FindingView]:
    """Return the differences in descending order of severity. `brokers` is that of GET
    /api/v1/cluster, {address, node: view or None, error}. `route_leader` is the leader in routes,
    or ""."""
    views = [(b, b["node"]) for b in brokers if b.get("node")]
    result = [*_silent(group, brokers)]
    nodes = [view for _, view in views]
    result += _leaders(group, nodes)
    if len({view.get("mode") for view in nodes}) == 1 and nodes[0].get("mode") != "classic":
        result += _terms(group, nodes)
        result += _followed(group, nodes)
        result += _apart(group, nodes)
        result += _members(group, nodes)
    result += _route(group, views, route_leader)
    for view in nodes:
        result += _health(group, view)
    result += _versions(group, nodes)
    return sorted(result, key=lambda finding: SEVERITIES.index(finding.severity))


def leads(view: View) -> bool:
    return view.get("role") in ("leader", "master")


def name_of(view: View) -> str:
    return str(view.get("name") or view.get("address") or "?")


def _silent(group: str, brokers: Sequence[Mapping[str, Any]]) -> Iterator[FindingView]:
    for broker in brokers:
        if broker.get("node") is None:
            name = str(broker.get("name") or broker["address"])
            text = f"{group}: {name} does not answer ({broker.get('error') or 'no reason known'})"
            yield FindingView(group, "critical", "error", (name,), text)


def _leaders(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    leaders = [view for view in nodes if leads(view)]
    by_term: dict[int, list[str]] = {}
    for view in leaders:
        by_term.setdefault(_number(view, "term"), []).append(name_of(view))
    for term, names in by_term.items():
        if len(names) > 1:
            text = f"{group}: {_and(names)} both say that they lead in term {term}"
            yield FindingView(group, "critical", "role", tuple(names), text)
    if len(by_term) > 1:
        newest = max(by_term)
        for term, names in sorted(by_term.items()):
            if term != newest:
                text = (
                    f"{group}: {_and(names)} still takes itself for the leader of term {term}; "
                    f"{_and(by_term[newest])} leads in term {newest}"
                )
                yield FindingView(group, "warning", "role", tuple(names), text)
    if nodes and not leaders:
        yield FindingView(group, "critical", "role", (), f"{group}: no replica says that it leads")
    for view in leaders:
        if view.get("leaderReady") is False and view.get("mode") != "classic":
            text = f"{group}: {name_of(view)} leads but is not ready: sends have to wait"
            yield FindingView(group, "warning", "leaderReady", (name_of(view),), text)


def _terms(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    yield from _unequal(group, nodes, "term", "replicas are in different terms", "warning")


def _followed(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    reported = [view for view in nodes if view.get("leader")]
    if len({view["leader"] for view in reported}) > 1:
        yield from _unequal(
            group, reported, "leader", "replicas follow different leaders", "warning"
        )
    for view in nodes:
        if not view.get("leader") and not leads(view):
            text = f"{group}: {name_of(view)} knows of no leader"
            yield FindingView(group, "warning", "leader", (name_of(view),), text)


def _apart(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    most = max((_number(view, "commitIndex") for view in nodes), default=0)
    for view in nodes:
        commit, applied = _number(view, "commitIndex"), _number(view, "appliedIndex")
        if most - commit > FRAMES_APART_MAX:
            text = f"{group}: {name_of(view)}'s commit is {most - commit:,} frames behind"
            yield FindingView(group, "warning", "commitIndex", (name_of(view),), text)
        if commit - applied > FRAMES_APART_MAX:
            text = (
                f"{group}: {name_of(view)} has {commit - applied:,} committed frames still to apply"
            )
            yield FindingView(group, "warning", "appliedIndex", (name_of(view),), text)


def _members(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    sets: dict[tuple[str, ...], list[str]] = {}
    for view in nodes:
        members = view.get("members")
        if members:
            key = tuple(sorted(f"{m.get('id')} ({m.get('role') or 'voter'})" for m in members))
            sets.setdefault(key, []).append(name_of(view))
    if len(sets) > 1:
        reported = "; ".join(f"{_and(names)}: {', '.join(key)}" for key, names in sets.items())
        usual = max(sets, key=lambda key: len(sets[key]))
        odd = [name for key, names in sets.items() if key != usual for name in names]
        text = f"{group}: replicas know different members. {reported}"
        yield FindingView(group, "warning", "members", tuple(odd), text)


def _route(
    group: str, views: Sequence[tuple[Mapping[str, Any], View]], route_leader: str
) -> Iterator[FindingView]:
    ready = [
        (broker, view)
        for broker, view in views
        if leads(view) and (view.get("leaderReady") is not False or view.get("mode") == "classic")
    ]
    if not ready:
        return
    broker, view = max(ready, key=lambda pair: _number(pair[1], "term"))
    if route_leader != broker["address"]:
        known = f"sends clients to {route_leader}" if route_leader else "knows no leader"
        text = f"{group}: {name_of(view)} leads, but this name server {known}"
        yield FindingView(group, "warning", "route", (name_of(view),), text)


def _health(group: str, view: View) -> Iterator[FindingView]:
    name, disk = name_of(view), view.get("disk") or {}
    state = disk.get("state") or "ok"
    if state != "ok":
        reason = f": {disk['reason']}" if disk.get("reason") else ""
        text = f"{group}: the disk of {name} is {state}{reason}"
        severity = "critical" if state in ("failed", "full") else "warning"
        yield FindingView(group, severity, "disk", (name,), text)
    full_in_ms = disk.get("fullInMs")
    if isinstance(full_in_ms, int) and full_in_ms < FULL_SOON_MS:
        by = f"in {full_in_ms // 3_600_000} h {full_in_ms // 60_000 % 60} min"
        text = f"{group}: the disk of {name} is full {by} at this rate"
        yield FindingView(group, "warning", "disk", (name,), text)
    if view.get("clockContradiction"):
        text = f"{group}: {name}: {view['clockContradiction']}"
        yield FindingView(group, "warning", "clock", (name,), text)
    if view.get("logStart"):
        text = f"{group}: {name} lacks older messages of its master: {view['logStart']}"
        yield FindingView(group, "warning", "commitLog", (name,), text)
    if view.get("recovered") is False:
        reason = f": {view['recovering']}" if view.get("recovering") else ""
        text = f"{group}: {name} may have lost promises and does not vote{reason}"
        yield FindingView(group, "warning", "recovered", (name,), text)


def _versions(group: str, nodes: Sequence[View]) -> Iterator[FindingView]:
    yield from _unequal(group, nodes, "version", "replicas run different versions", "notice")
    yield from _unequal(group, nodes, "engine", "replicas run different engines", "critical")


def _unequal(
    group: str, nodes: Sequence[View], field: str, subject: str, severity: str
) -> Iterator[FindingView]:
    reported: dict[str, list[str]] = {}
    for view in nodes:
        reported.setdefault(str(view.get(field)), []).append(name_of(view))
    if len(reported) > 1:
        usual = max(reported, key=lambda value: len(reported[value]))
        odd = [name for value, names in reported.items() if value != usual for name in names]
        each = ", ".join(f"{_and(names)} {value}" for value, names in reported.items())
        yield FindingView(group, severity, field, tuple(odd), f"{group}: {subject} ({each})")


def _number(view: View, field: str) -> int:
    value = view.get(field)
    return value if type(value) is int else 0


def _and(names: Iterable[str]) -> str:
    names = list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
