"""Stores at URIs (s3://bucket/n0/store, hdfs://…, file://…), listed, read and copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from raftmq.spark.filesystem import above, below, opened

NEEDED = ("commitlog", "consumequeue", "index", "config", "raft", "checkpoint", "abort", "identity")
CLUSTER = "cluster.json"  # two directories above a store, if mqcluster made it


def is_uri(store: str) -> bool:
    return "://" in store


def files_in(uri: str) -> list[tuple[str, int]] | None:
    """Return URI and size of each file of a directory; None if it is none. Raises OSError."""
    system, path = _opened(uri)
    if system.get_file_info(path).type != fs.FileType.Directory:
        return None
    infos = system.get_file_info(fs.FileSelector(path))
    files = [each for each in infos if each.type == fs.FileType.File]
    return [(below(uri, each.base_name), each.size) for each in files]


def read(uri: str) -> memoryview | None:
    """Return a file's content; None if there is none. Raises OSError."""
    system, path = _opened(uri)
    if system.get_file_info(path).type != fs.FileType.File:
        return None
    with system.open_input_file(path) as file:
        return memoryview(file.readall())


def fetched(
    stores: Mapping[str, str], directory: Path, progress: Callable[[str], None]
) -> dict[str, str]:
    """Return the stores as directories, those at URIs copied below `directory`. Raises OSError."""
    local = {}
    for name, store in stores.items():
        local[name] = store
        if is_uri(store):
            progress(f"copying {store}")
            target = directory / name / "store"
            _copy(store, target)
            local[name] = str(target)
    return local


def _copy(uri: str, target: Path) -> None:
    target.mkdir(parents=True)
    system, path = _opened(uri)
    for needed in NEEDED:
        source = f"{path.rstrip('/')}/{needed}"
        kind = system.get_file_info(source).type
        if kind == fs.FileType.Directory:
            (target / needed).mkdir()
        if kind != fs.FileType.NotFound:
            fs.copy_files(source, str(target / needed), source_filesystem=system)
    described = read(below(above(uri, 2), CLUSTER))
    if described is not None:
        (target.parent.parent / CLUSTER).write_bytes(described)


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Raises OSError."""
    try:
        return opened(uri)
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"{uri}: {error}") from error
