"""The subject of an audit: one broker group and its mode, read from cluster.json if there is one.

A store made by mqcluster lies at DIR/<node>/store, and DIR/cluster.json has the cluster's mode and
each node's broker group. Stores of other origin have no cluster.json; then the mode is recognised
from the logs, and every event of the history is taken to be about this group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from raftmq.audit.files import StoreError
from raftmq.audit.limits import CLASSIC, RAFT

FRAMED_MODES = ("raft", "pysyncobj")  # of cluster.json; all others are classic


@dataclass(frozen=True, slots=True)
class Subject:
    """The audited group. `mode` None: the logs tell it. `group` None: the only group there is."""

    mode: str | None = None
    group: str | None = None


def subject_of(
    stores: Mapping[str, str], mode: str | None = None, group: str | None = None
) -> Subject:
    """Find out the mode and group of these stores; a `mode` or `group` given wins.

    Raises StoreError if cluster.json cannot be read or says that the stores are of several groups.
    """
    modes, groups = set(), set()
    for directory in stores.values():
        store = Path(directory).absolute()
        described = store.parent.parent / "cluster.json"
        if not described.is_file():
            continue
        found = _read(described)
        modes.add(RAFT if found.get("mode", "raft") in FRAMED_MODES else CLASSIC)
        for node in found.get("nodes", ()):
            if node.get("name") == store.parent.name and node.get("group"):
                groups.add(str(node["group"]))
    if len(groups) > 1 and group is None:
        names = ", ".join(sorted(groups))
        raise StoreError(
            f"these stores are of several broker groups ({names}): audit one at a time"
        )
    return Subject(
        mode or (modes.pop() if len(modes) == 1 else None),
        group or (groups.pop() if len(groups) == 1 else None),
    )


def stores_of_run(run: Path, group: str | None = None) -> dict[str, str]:
    """Return the stores that mqchaos left under a run's directory, by node name; with `group`, only
    those of that broker group. Raises StoreError if there are none."""
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
