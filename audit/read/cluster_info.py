"""The subject of an audit: one broker group and its mode, read from cluster.json if there is one.

A store made by mqcluster lies at DIR/<node>/store, and DIR/cluster.json has the cluster's mode and
each node's broker group. Stores of other origin have no cluster.json; then the mode is recognised
from the logs, every event of the history is taken to be about this group, and a store's name is
taken to be its node's (dLegerSelfId).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .store_files import StoreError

RAFT, CLASSIC = "raft", "classic"
MODES = (RAFT, CLASSIC)
FRAMED_MODES = ("raft", "pysyncobj")  # of cluster.json; all others are classic


@dataclass(frozen=True, slots=True)
class Subject:
    """The audited group. `mode` None: the logs tell it. `group` None: the only group there is.
    `founders`: its brokers as `founded_by` names them, without those that joined later; empty if
    nothing does. `nodes`: the node that each store is of, by the store's name. `queues`: whether
    ConsumeQueues are beside the logs; there are none where a log was copied from a running replica.
    """

    mode: str | None = None
    group: str | None = None
    founders: frozenset[str] = frozenset()
    nodes: Mapping[str, str] = field(default_factory=dict)
    founded_by: str = "cluster.json"
    queues: bool = True


def subject_of(
    stores: Mapping[str, str], mode: str | None = None, group: str | None = None
) -> Subject:
    """Find out the mode and group of these stores; a `mode` or `group` given wins.

    Raises StoreError if cluster.json cannot be read or says that the stores are of several groups.
    """
    modes, groups = set(), set()
    nodes = {name: name for name in stores}
    founders: dict[str, set[str]] = {}  # of each group
    for name, directory in stores.items():
        store = Path(directory).absolute()
        described = store.parent.parent / "cluster.json"
        if not described.is_file():
            continue
        found = _read(described)
        modes.add(RAFT if found.get("mode", "raft") in FRAMED_MODES else CLASSIC)
        for node in found.get("nodes", ()):
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
    """Return the stores that mqchaos left under a run's directory, by node name; with `group`, only
    those of that broker group. A node without a log is left out here; the audit misses its store.
    Raises StoreError if there are none."""
    cluster = run / "cluster"
    found = {}
    for node in _read(cluster / "cluster.json").get("nodes", ()):
        store = cluster / str(node.get("name")) / "store"
        wanted = node.get("group") if group is None else node.get("group") == group
        if wanted and (store / "commitlog").is_dir():
            found[str(node["name"])] = str(store)
    if not found:
        raise StoreError(f"no stores{f' of {group}' if group else ''} under {cluster}")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path} is no cluster.json")
    return found
