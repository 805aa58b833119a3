"""Staged rows and plans of a sink, beside the checkpoint or at a URI.

    <location>/raftmq/writer            the generated name of the writer, if none was given
                     /rows/<id>.arrow   a task's staged rows (Arrow IPC stream)
                     /<batch>.<epoch>.json   the batch's plan (spark.plan)
                     /<batch>.done      the batch is written

Files are written once and never changed. Each is complete, and on a local disk durable, before its
name is published. All URIs of `pyarrow.fs` are supported (file, hdfs, s3, gs).
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import fs

from .filesystem import opened

_DIRECTORY = "raftmq"
_PLAN = re.compile(r"(\d+)\.(\d+)\.json")
_DONE = re.compile(r"(\d+)\.done")
_LOCAL = re.compile(r"file:/*(?=/)")


class Staging:
    def __init__(self, location: str) -> None:
        """`location` is a path or a URI. Raises ValueError for an unknown scheme."""
        location = _LOCAL.sub("", location)
        if "://" not in location:
            location = os.path.abspath(location)
        self._fs, root = opened(location)
        self._root = f"{root.rstrip('/')}/{_DIRECTORY}"
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)

    @contextmanager
    def new_rows(self, schema: pa.Schema) -> Iterator[tuple[str, pa.RecordBatchWriter]]:
        """Open a file for a task's rows; yield its name and its writer."""
        name = f"rows/{uuid.uuid4().hex}.arrow"
        self._fs.create_dir(f"{self._root}/rows", recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{name}") as sink:
            with pa.ipc.new_stream(sink, schema) as writer:
                yield name, writer
        self._sync(name)

    @contextmanager
    def rows(self, name: str) -> Iterator[pa.RecordBatchReader]:
        with self._fs.open_input_stream(f"{self._root}/{name}") as source:
            with pa.ipc.open_stream(source) as reader:
                yield reader

    def missing(self, names: Sequence[str]) -> list[str]:
        there = set(self._names("rows"))
        return [name for name in names if name.removeprefix("rows/") not in there]

    def remove_rows(self, name: str) -> None:
        self._remove(name)

    def plan(self, batch: int) -> bytes | None:
        """Return the batch's plan with the highest epoch. Plans of lower epochs were written by
        fenced processes, which sent nothing."""
        epoch = self.planned().get(batch)
        return None if epoch is None else self._read(f"{batch}.{epoch}.json")

    def planned(self) -> dict[int, int]:
        """Return the batches with a plan here, each with the highest epoch of its plans."""
        matches = [match for match in map(_PLAN.fullmatch, self._names()) if match]
        return dict(sorted((int(match[1]), int(match[2])) for match in matches))

    def save_plan(self, batch: int, epoch: int, plan: bytes) -> None:
        self._write(f"{batch}.{epoch}.json", plan)

    def is_done(self, batch: int) -> bool:
        """Return whether a batch is written. Its plan identifies its sink."""
        return f"{batch}.done" in self._names() and batch in self.planned()

    def last_done(self) -> int:
        """Return the highest written batch; -1 if there is none."""
        matches = (_DONE.fullmatch(name) for name in self._names())
        return max((int(one[1]) for one in matches if one is not None), default=-1)

    def done(self, batch: int) -> None:
        self._write(f"{batch}.done", b"")

    def clean(self, batch: int, rows: set[str]) -> None:
        """Remove the files of all batches but this, and all rows but these. Later batches are of a
        checkpoint that was set back, so their numbers will be reused with different rows."""
        for name in self._names():
            match = _PLAN.fullmatch(name) or _DONE.fullmatch(name)
            if match is not None and int(match[1]) != batch:
                self._remove(name)
        for name in self._names("rows"):
            if f"rows/{name}" not in rows:
                self._remove(f"rows/{name}")

    def writer(self) -> str:
        """Return the generated name of this location's writer."""
        name = "writer"
        if name not in self._names():
            self._write(name, f"spark-{uuid.uuid4().hex}".encode())
        return self._read(name).decode()

    def _names(self, directory: str = "") -> list[str]:
        path = f"{self._root}/{directory}".rstrip("/")
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [info.base_name for info in infos if info.is_file]

    def _read(self, name: str) -> bytes:
        with self._fs.open_input_stream(f"{self._root}/{name}") as source:
            data: bytes = source.read()
        return data

    def _write(self, name: str, data: bytes) -> None:
        """Write a file atomically, renamed except in object stores, which show whole files."""
        temporary = f"{name}.{uuid.uuid4().hex}.tmp"
        self._fs.create_dir(self._root, recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{temporary}") as sink:
            sink.write(data)
        self._sync(temporary)
        self._fs.move(f"{self._root}/{temporary}", f"{self._root}/{name}")
        self._sync("")

    def _remove(self, name: str) -> None:
        try:
            self._fs.delete_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass  # another attempt was faster

    def _sync(self, name: str) -> None:
        if not self._is_local:
            return
        for path in (f"{self._root}/{name}", os.path.dirname(f"{self._root}/{name}")):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
