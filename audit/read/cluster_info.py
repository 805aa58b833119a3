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

from raftmq.spark.filesystem import above, below, name_of

from .files import content_of, is_uri
from .store_files import StoreError

RAFT, CLASSIC = "raft", "classic"
MODES = (RAFT, CLASSIC)
DESCRIPTION = "cluster.json"  # two directories above a store
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

    Raises StoreError if cluster.json cannot be parsed or has several groups for the stores, and
    OSError.
    """
    modes, groups = set(), set()
    nodes = {name: name for name in stores}
    founders: dict[str, set[str]] = {}  # by group
    for name, directory in stores.items():
        location = directory if is_uri(directory) else str(Path(directory).absolute())
        node, description = name_of(above(location, 1)), _described(above(location, 2))
        if description is None:
            continue
        modes.add(RAFT if description.get("mode", "raft") in FRAMED_MODES else CLASSIC)
        for each in description.get("nodes", ()):
            if not each.get("group"):
                continue
            if not each.get("joins"):
                founders.setdefault(str(each["group"]), set()).add(str(each["name"]))
            if each.get("name") == node:
                groups.add(str(each["group"]))
                nodes[name] = node
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
    description = _described(str(cluster))
    if description is None:
        raise StoreError(f"{cluster} has no {DESCRIPTION}")
    nodes = {str(node.get("name")): node.get("group") for node in description.get("nodes", ())}
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


def _described(directory: str) -> dict[str, Any] | None:
    """Return the description in a directory, a path or URI; None if there is none."""
    content = content_of(directory, DESCRIPTION)
    if content is None:
        return None
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise StoreError(f"{below(directory, DESCRIPTION)} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{below(directory, DESCRIPTION)} is no cluster.json")
    return document
