"""The stores of an audit, as their own files identify them.

A store of a Raft replica has a file `identity` with its node and group (store.identity), and counts
as that node's, whatever name it was given. Two stores with the same files, or of the same node, are
one copy of the data and prove nothing together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from raftmq.store.identity import IDENTITY_FILE, StoreIdentity, decode_identity

from .store_files import Store, StoreError


def identified(stores: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Return the directories by the node of each, and the nodes that a file names. A store without
    an intact `identity` keeps its name. Raises OSError, and StoreError if two stores are the same
    or of different groups."""
    _refuse_same_files(stores)
    identities = {name: _identity(Path(directory)) for name, directory in stores.items()}
    owners = {name: each.node for name, each in identities.items() if each and each.node}
    groups = {each.group for each in identities.values() if each is not None}
    if len(groups) > 1:
        names = ", ".join(sorted(groups))
        raise StoreError(
            f"these stores are of several broker groups ({names}): audit one at a time"
        )
    by_node: dict[str, str] = {}
    given: dict[str, str] = {}
    for name in stores:
        node = owners.get(name, name)
        if node in by_node:
            raise StoreError(
                f"{given[node]} ({by_node[node]}) and {name} ({stores[name]}) are both the store of"
                f" node {node}: copies of one store are no majority. Name each replica's own store"
            )
        by_node[node], given[node] = stores[name], name
    return by_node, frozenset(owners.values())


def _identity(store: Path) -> StoreIdentity | None:
    path = store / IDENTITY_FILE
    return decode_identity(path.read_bytes()) if path.is_file() else None


def _refuse_same_files(stores: Mapping[str, str]) -> None:
    """Raise StoreError if a segment of two stores is one file, by its device and inode."""
    files = {}
    for name, directory in stores.items():
        stats = [Path(each.path).stat() for each in Store(name, directory).segments]
        files[name] = {(stat.st_dev, stat.st_ino) for stat in stats}
    for one, other in itertools.combinations(stores, 2):
        if files[one] & files[other]:
            raise StoreError(
                f"{one} ({stores[one]}) and {other} ({stores[other]}) are the same files on disk,"
                " which hold each message once. Name each replica's own store"
            )
