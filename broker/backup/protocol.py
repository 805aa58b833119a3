"""The messages between a replica and the backup tool besides fields (broker.backup.service).
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import orjson

from raftmq.store.dispatch import QUEUE_ENTRY_BYTES

OVERTAKEN = "OVERTAKEN"  # the log no longer has the requested bytes
GONE = "GONE"  # the session has expired
BEHIND = "BEHIND"  # not yet applied on this replica
CHUNK_BYTES = 256 << 10  # of a parcel
READ_BYTES_MAX = 1 << 20  # of the log, in one answer
DIGEST_BYTES_MAX = 64 << 20  # of the log, in one digest
UNITS_MAX = READ_BYTES_MAX // QUEUE_ENTRY_BYTES  # in one digest, or answer
RUNS_MAX = 2_048  # in one request, whose body may have a MiB


class Facts(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Facts about the replica and its group at frame `index`, when the tables were copied.
    `settings` are those that the store's files depend on (broker.backup.settings)."""

    group: str
    broker: str
    cluster: str
    node: str
    role: str
    members: tuple[str, ...]
    index: int
    term: int
    current_term: int
    start: int
    settings: dict[str, str]
    time_ms: int


Number = Annotated[int, msgspec.Meta(ge=0)]


class UnitRun(msgspec.Struct, frozen=True, array_like=True):
    """`count` ConsumeQueue entries from queue offset `first` on."""

    topic: str
    queue_id: Number
    first: Number
    count: Number


def encode_runs(runs: Sequence[UnitRun]) -> bytes:
    return msgspec.json.encode(runs)


def decode_runs(data: bytes) -> list[UnitRun]:
    """Read runs within the limits. Raises msgspec.MsgspecError."""
    runs = msgspec.json.decode(data, type=list[UnitRun])
    if len(runs) > RUNS_MAX or sum(run.count for run in runs) > UNITS_MAX:
        raise msgspec.ValidationError(f"at most {RUNS_MAX} runs, {UNITS_MAX} entries at once")
    return runs


def encode_facts(facts: Facts) -> bytes:
    return orjson.dumps(facts, msgspec.to_builtins)


def decode_facts(data: bytes) -> Facts:
    """Read facts. Raises orjson.JSONDecodeError, msgspec.ValidationError."""
    return msgspec.convert(orjson.loads(data), Facts)
