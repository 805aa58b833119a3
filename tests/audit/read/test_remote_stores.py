"""Stores that a URI names, through pyarrow.fs; here file://, which goes the way of all others."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from raftmq.audit.api import run_audit
from raftmq.audit.cli import main
from raftmq.audit.read.store_files import Store, StoreError
from tests.audit.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.plan(tmp_path_factory.mktemp("places")).store().write()


def uris(run: Run) -> dict[str, str]:
    return {name: Path(store).as_uri() for name, store in run.stores.items()}


def test_audit_copies_stores_named_by_uri(run: Run, tmp_path: Path) -> None:
    reported: list[str] = []
    report = run_audit(uris(run), run.history_path, scratch=tmp_path, progress=reported.append)
    assert report.ok
    assert report.figures["stored"] == 60
    assert f"copying {uris(run)['n0']}" in reported
    assert not [*tmp_path.iterdir()]


def test_uri_without_a_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no commitlog directory"):
        print(Store("n0", tmp_path.as_uri()).segments)
    with pytest.raises(OSError, match="nowhere"):
        print(Store("n0", "nowhere://bucket/n0/store").segments)
    done = CliRunner().invoke(main, ["--store", "n0=nowhere://bucket/n0/store"])
    assert done.exit_code == 2
    assert "nowhere" in done.output
