"""The stores of an audit, as their own files identify them.

A store of a Raft replica has a file `identity` with its node and group (store.identity), and counts
as that node's, whatever name it was given. Two stores with the same files, or of the same node, are
one copy of the data and prove nothing together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from raftmq.store.identity import IDENTITY_FILE, StoreIdentity, decode_identity

from .files import content_of
from .store_files import Store, StoreError


def identified(directories: Mapping[str, str]) -> tuple[dict[str, Store], frozenset[str]]:
    """Return the stores by the node of each, and the nodes that a file names. A store without an
    intact `identity` keeps its name. Raises OSError, and StoreError if two stores are the same or
    of different groups."""
    identities = {name: _identity(directory) for name, directory in directories.items()}
    owners = {name: each.node for name, each in identities.items() if each and each.node}
    stores = {name: Store(owners.get(name, name), path) for name, path in directories.items()}
    _refuse_same_files(stores)
    groups = {each.group for each in identities.values() if each is not None}
    if len(groups) > 1:
        names = ", ".join(sorted(groups))
        raise StoreError(
            f"these stores are of several broker groups ({names}): audit one at a time"
        )
    by_node: dict[str, Store] = {}
    given: dict[str, str] = {}
    for name, store in stores.items():
        node = store.name
        if node in by_node:
            raise StoreError(
                f"{given[node]} ({by_node[node].path}) and {name} ({store.path}) are both the store"
                f" of node {node}: copies of one store are no majority. Name each replica's own"
                " store"
            )
        by_node[node], given[node] = store, name
    return by_node, frozenset(owners.values())


def _identity(directory: str) -> StoreIdentity | None:
    content = content_of(directory, IDENTITY_FILE)
    return None if content is None else decode_identity(content)


def _refuse_same_files(stores: Mapping[str, Store]) -> None:
    """Raise StoreError if a segment of two stores is one file, by its device and inode or URI."""
    files = {}
    for name, store in stores.items():
        files[name] = {each.file.identity() for each in store.segments}
    for one, other in itertools.combinations(stores, 2):
        if files[one] & files[other]:
            raise StoreError(
                f"{one} ({stores[one].path}) and {other} ({stores[other].path}) are the same files,"
                " which hold each message once. Name each replica's own store"
            )
