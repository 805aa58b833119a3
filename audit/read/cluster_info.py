"""The broker group and mode of an audit's stores, from cluster.json if there is one.

A store made by mqcluster is DIR/<node>/store, and DIR/cluster.json has the cluster's mode and each
node's broker group. Without cluster.json the logs decide the mode, every event of the history is
about this group, and a store's name is its node's (dLegerSelfId).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .store_files import StoreError

RAFT, CLASSIC = "raft", "classic"
MODES = (RAFT, CLASSIC)
FRAMED_MODES = ("raft", "pysyncobj")  # in cluster.json; all other modes are classic


@dataclass(frozen=True, slots=True)
class Subject:
    """The audited group. The logs decide the mode if `mode` is None; `group` is None if there is
    only one. `founders` are its first brokers, as `founded_by` names them, or empty. `nodes` maps
    each store's name to its node. `queues` is False for logs copied from running replicas, which
    have no ConsumeQueues."""

    mode: str | None = None
    group: str | None = None
    founders: frozenset[str] = frozenset()
    nodes: Mapping[str, str] = field(default_factory=dict)
    founded_by: str = "cluster.json"
    queues: bool = True


def subject_of(
    stores: Mapping[str, str], mode: str | None = None, group: str | None = None
) -> Subject:
    """Return the mode and group of these stores; `mode` and `group` override cluster.json.

    Raises StoreError if cluster.json cannot be read or has several groups for the stores.
    """
    modes, groups = set(), set()
    nodes = {name: name for name in stores}
    founders: dict[str, set[str]] = {}  # by group
    for name, directory in stores.items():
        store = Path(directory).absolute()
        described = store.parent.parent / "cluster.json"
        if not described.is_file():
            continue
        description = _read(described)
        modes.add(RAFT if description.get("mode", "raft") in FRAMED_MODES else CLASSIC)
        for node in description.get("nodes", ()):
            if not node.get("group"):
                continue
            if not node.get("joins"):
                founders.setdefault(str(node["group"]), set()).add(str(node["name"]))
            if node.get("name") == store.parent.name:
                groups.add(str(node["group"]))
                nodes[name] = str(node["name"])
    if len(groups) > 1 and group is None:
        names = ", ".join(sorted(groups))
        raise StoreError(
            f"these stores are of several broker groups ({names}): audit one at a time"
        )
    group = group or (groups.pop() if len(groups) == 1 else None)
    return Subject(
        mode or (modes.pop() if len(modes) == 1 else None),
        group,
        frozenset(founders.get(group or "", ())),
        nodes,
    )


def stores_of_run(run: Path, group: str | None = None) -> dict[str, str]:
    """Return the stores that mqchaos left in a run's directory by node name, or those of `group`
    only, which may be a group that was removed in the run. Nodes without a log are left out, and
    the audit reports them as missing. Raises StoreError if there are none."""
    cluster = run / "cluster"
    nodes = {
        str(node.get("name")): node.get("group")
        for node in _read(cluster / "cluster.json").get("nodes", ())
    }
    if group is not None and group not in nodes.values():
        line = re.compile(rf"^brokerName={re.escape(group)}$", re.MULTILINE)
        settings = cluster.glob("*/broker.conf")
        nodes = {path.parent.name: group for path in settings if line.search(path.read_text())}
    stores = {}
    for name, of in sorted(nodes.items()):
        store = cluster / name / "store"
        selected = of if group is None else of == group
        if selected and (store / "commitlog").is_dir():
            stores[name] = str(store)
    if not stores:
        raise StoreError(f"no stores{f' of {group}' if group else ''} under {cluster}")
    return stores


def _read(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{path} is no cluster.json")
    return document
