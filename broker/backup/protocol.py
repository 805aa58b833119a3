"""The messages between a replica and a backup tool besides fields (service.py). Pure."""

from __future__ import annotations

import msgspec
import orjson

OVERTAKEN = "OVERTAKEN"  # the bytes asked for are not in the log any more
GONE = "GONE"  # the session is forgotten
BEHIND = "BEHIND"  # this replica has not applied that much yet
CHUNK_BYTES = 256 << 10  # of a parcel
READ_BYTES_MAX = 1 << 20  # of the log, in one answer


class Facts(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Facts about the replica and its group when the tables were copied, with frame `index`.
    `settings`: the configuration that the store's files depend on (settings.py)."""

    group: str
    broker: str
    cluster: str
    node: str
    role: str
    members: tuple[str, ...]
    index: int
    term: int
    current_term: int
    begin: int
    settings: dict[str, str]
    time_ms: int


def encode_facts(facts: Facts) -> bytes:
    return orjson.dumps(facts, msgspec.to_builtins)


def decode_facts(data: bytes) -> Facts:
    """Read facts. Raises orjson.JSONDecodeError, msgspec.ValidationError."""
    return msgspec.convert(orjson.loads(data), Facts)
