"""The engines that `mqchaos compare` puts side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..cluster.topology import Shape


@dataclass(frozen=True, slots=True)
class Engine:
    """A row of the comparison."""

    name: str
    description: str
    shape: Shape
    settings: Mapping[str, str]


SYNC, ASYNC = {"flushDiskType": "SYNC_FLUSH"}, {"flushDiskType": "ASYNC_FLUSH"}
# Slaves copy topics, groups and offsets every 10 s, like RocketMQ 4.9 (every 60 s in 5.x).
CLASSIC = ASYNC | {"slaveSyncMetadataIntervalMs": "10000"}
_ALL = (
    Engine("raft-sync", "raft SYNC_FLUSH", Shape("raft"), SYNC),
    Engine("raft-async", "raft ASYNC_FLUSH", Shape("raft"), ASYNC),
    Engine("pysyncobj", "pysyncobj", Shape("pysyncobj"), ASYNC),
    Engine("sync-master", "SYNC_MASTER", Shape("sync"), CLASSIC),
    Engine("async-master", "ASYNC_MASTER", Shape("async"), CLASSIC),
)
ENGINES = {engine.name: engine for engine in _ALL}
