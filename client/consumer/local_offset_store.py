"""Offsets of broadcasting consumers, stored by each member.

The file has the format of Java's LocalFileOffsetStore and its place below the home directory, so
that a Java member can replace ours and vice versa:
<directory>/<ip>@<instance name>/<group>/offsets.json
{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12}}
The previous version is in offsets.json.bak, which is read if the file is damaged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.remoting.threads import in_thread_to_its_end

from ..instance import ClientInstance, local_address
from ..message import MessageModel, MessageQueue
from .offsets import OffsetTable
from .remote_offset_store import Offsets, OffsetStore, OnCommit

logger = logging.getLogger(__name__)

INSTANCE_NAME = "DEFAULT"


class OffsetStorage(Protocol):
    """Storage for a broadcasting consumer's offsets, which users may implement. Both methods are
    called in a thread, never concurrently. An error of `save` is logged, and saving is retried."""

    def load(self) -> Mapping[MessageQueue, int]: ...

    def save(self, offsets: Mapping[MessageQueue, int]) -> None: ...


def offset_file(group: str, address: str, directory: Path | None = None) -> Path:
    """Return Java's path for the group's offsets."""
    root = directory or Path.home() / ".rocketmq_offsets"
    return root / f"{address}@{INSTANCE_NAME}" / group / "offsets.json"


class OffsetFile:
    """An offsets.json with its backup."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[MessageQueue, int]:
        """Return the last saved offsets, or the previous ones if those are damaged; {} without a
        file. Raises OSError."""
        for path in (self.path, self._backup):
            try:
                return parse_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except ValueError as error:
                logger.warning("offset_file_damaged path=%s error=%s", path, error)
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".tmp")
        with open(fresh, "wb") as file:
            file.write(offsets_json(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)

    @property
    def _backup(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")


def offsets_json(offsets: Mapping[MessageQueue, int]) -> bytes:
    return dumps({"offsetTable": dict(offsets)})


def parse_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Parse an offset file. Raises ValueError for a wrong format."""
    try:
        table = loads_object(data)["offsetTable"]
        if not all(isinstance(queue, MessageQueue) for queue in table):
            raise TypeError("not every key is a queue")
        return {queue: int(offset) for queue, offset in table.items()}
    except (RemotingError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an offset file: {error!r}") from error


class LocalOffsetStore:
    """OffsetStore's interface on an OffsetStorage."""

    def __init__(self, storage: OffsetStorage) -> None:
        self.table = OffsetTable()
        self._storage = storage
        self._saved: dict[MessageQueue, int] | None = None
        self._one = asyncio.Lock()

    async def committed(self, queue: MessageQueue) -> int | None:
        return (await self._load()).get(queue)

    async def commit_oneway(self) -> None:
        await self.commit_confirmed()

    async def commit_confirmed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Save and return the changed offsets; {} on a logged failure, retried later."""
        dirty = self.table.dirty(queues)
        if not dirty:
            return {}
        saved = await self._load()
        async with self._one:
            merged = {**saved, **dirty}
            try:
                await in_thread_to_its_end(self._storage.save, merged)
            except Exception as error:  # a user's storage may raise anything
                logger.error("offsets_not_saved error=%r", error)
                return {}
            saved.update(dirty)
        for queue, offset in dirty.items():
            self.table.sent(queue, offset)
        return dirty

    async def _load(self) -> dict[MessageQueue, int]:
        async with self._one:
            if self._saved is None:
                self._saved = dict(await in_thread_to_its_end(self._storage.load))
            return self._saved


def offsets_of(
    group: str,
    instance: ClientInstance,
    model: MessageModel,
    storage: OffsetStorage | None,
    on_commit: OnCommit | None = None,
    on_committing: OnCommit | None = None,
) -> Offsets:
    """Make an offset store, on the brokers, or for broadcasting in `storage` (None: file)."""
    if model is not MessageModel.BROADCASTING:
        return OffsetStore(group, instance, on_commit, on_committing)
    if storage is None:
        storage = OffsetFile(offset_file(group, socket.inet_ntoa(local_address())))
    return LocalOffsetStore(storage)
