"""The messages between a replica and the backup tool besides fields (broker.backup.service).
Pure."""

from __future__ import annotations

import msgspec
import orjson

OVERTAKEN = "OVERTAKEN"  # the log no longer has the requested bytes
GONE = "GONE"  # the session has expired
BEHIND = "BEHIND"  # not yet applied on this replica
CHUNK_BYTES = 256 << 10  # of a parcel
READ_BYTES_MAX = 1 << 20  # of the log, in one answer
DIGEST_BYTES_MAX = 64 << 20  # of the log, in one digest


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


def encode_facts(facts: Facts) -> bytes:
    return orjson.dumps(facts, msgspec.to_builtins)


def decode_facts(data: bytes) -> Facts:
    """Read facts. Raises orjson.JSONDecodeError, msgspec.ValidationError."""
    return msgspec.convert(orjson.loads(data), Facts)
