"""Stores are taken for what their files say, not for the names that they are given."""

import os
from pathlib import Path

import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.read.identities import identified as identified_stores
from raftmq.audit.read.store_files import StoreError
from raftmq.store.disk import OsDisk
from raftmq.store.identity import StoreIdentity, record_identity
from tests.audit.run import NAMES, Run


def store(root: Path, name: str, node: str | None, group: str = "broker-a") -> str:
    """A store with a segment, and the identity of `node` if it is not None."""
    (root / name / "commitlog").mkdir(parents=True)
    (root / name / "commitlog" / f"{0:020d}").write_bytes(name.encode())
    if node is not None:
        mode = "raft" if node else "classic"
        record_identity(OsDisk(str(root / name)), StoreIdentity(mode, group, node, 1024))
    return str(root / name)


def identified(directories: dict[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    stores, known = identified_stores(directories)
    return {name: opened.path for name, opened in stores.items()}, known


def test_stores_are_named_by_their_own_files(tmp_path: Path) -> None:
    a, b, c = (store(tmp_path, *each) for each in (("a", "n1"), ("b", "n0"), ("c", None)))
    assert identified({"n0": a, "n1": b, "c": c}) == (
        {"n1": a, "n0": b, "c": c},
        frozenset({"n0", "n1"}),
    )


def test_damaged_identity_names_no_store(tmp_path: Path) -> None:
    path = Path(store(tmp_path, "a", "n1"))
    (path / "identity").write_bytes((path / "identity").read_bytes().replace(b"n1", b"n2"))
    assert identified({"x": str(path)}) == ({"x": str(path)}, frozenset())


def test_classic_master_and_slave_keep_their_names(tmp_path: Path) -> None:
    stores = {name: store(tmp_path, name, "") for name in ("master", "slave")}
    assert identified(stores) == (stores, frozenset())


def test_copies_of_one_store_are_rejected(tmp_path: Path) -> None:
    stores = {name: store(tmp_path, name, "n1") for name in ("a", "b")}
    with pytest.raises(StoreError, match=r"both the store of node n1: copies .* no majority"):
        identified(stores)
    unnamed = {"n1": stores["a"], "b": store(tmp_path, "c", "n2"), "n2": store(tmp_path, "d", None)}
    with pytest.raises(StoreError, match="both the store of node n2"):
        identified(unnamed)


def test_one_directory_twice_and_hard_links_are_rejected(tmp_path: Path) -> None:
    one, other = store(tmp_path, "a", None), store(tmp_path, "b", None)
    linked = Path(other) / "commitlog" / f"{0:020d}"
    linked.unlink()
    os.link(Path(one) / "commitlog" / linked.name, linked)
    (tmp_path / "c").symlink_to(one)
    for again in (one, other, str(tmp_path / "c")):
        with pytest.raises(StoreError, match="are the same files"):
            identified({"n0": one, "n1": again})


def test_stores_of_two_groups_are_rejected(tmp_path: Path) -> None:
    stores = {"n0": store(tmp_path, "a", "n0"), "n1": store(tmp_path, "b", "n1", "broker-b")}
    with pytest.raises(StoreError, match=r"several broker groups \(broker-a, broker-b\)"):
        identified(stores)


def test_right_node_is_blamed_if_stores_are_exchanged(tmp_path: Path) -> None:
    run = Run.plan(tmp_path, count=12).store()
    run.logs["n1"].flip(run.placed(3).position + 90)
    run.write()
    for name, directory in run.stores.items():
        record_identity(OsDisk(directory), StoreIdentity("raft", "broker-a", name))
    exchanged = dict(zip(NAMES, (run.stores[name] for name in ("n1", "n2", "n0")), strict=True))
    report = run_audit(exchanged)
    assert {row["store"] for row in report.check("damage").offenders} == {"n1"}
