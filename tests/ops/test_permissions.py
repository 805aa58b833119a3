"""Files that processes write are readable by owner and group only; what others can read is
logged."""

import os

import pytest

from raftmq.ops.permissions import keep_from_others, warn_if_others_read


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("had", "has"), [(0o000, 0o027), (0o022, 0o027), (0o077, 0o077)])
def test_stricter_umask_is_kept(umask, had, has):
    os.umask(had)
    keep_from_others()
    assert os.umask(0o022) == has


@pytest.mark.parametrize(
    ("mode", "open_to_others"), [(0o600, False), (0o640, False), (0o644, True), (0o642, True)]
)
def test_file_readable_by_others_is_reported(tmp_path, caplog, mode, open_to_others):
    path = tmp_path / "secret"
    path.touch()
    path.chmod(mode)
    assert warn_if_others_read(str(path), "it holds secrets") is open_to_others
    assert (f"path={path} mode={mode:04o}" in caplog.text) is open_to_others


@pytest.mark.parametrize(
    ("mode", "open_to_others"), [(0o700, False), (0o750, False), (0o755, True)]
)
def test_directory_open_to_others_is_reported(tmp_path, mode, open_to_others):
    tmp_path.chmod(mode)
    assert warn_if_others_read(str(tmp_path), "it holds messages") is open_to_others


def test_missing_file_is_not_reported_as_open(tmp_path):
    assert not warn_if_others_read(str(tmp_path / "nowhere"), "nothing")
