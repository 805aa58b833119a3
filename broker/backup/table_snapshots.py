"""The states in a backup, in the form of a group snapshot (broker.tables.snapshot_install).

A state with an unknown table is rejected, because the table would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from ..errors import StateError
from ..tables.snapshot import FILES, INDEX_KEY, Snapshot
from ..tables.snapshot_install import decode_state
from .manifest import BackupDamaged, BackupError, StateFile


@dataclass(frozen=True, slots=True)
class State:
    """A decoded state as of frame `index`. `queues` are (topic, queue id, offset)."""

    index: int
    tables: Snapshot
    queues: list[tuple[str, int, int]]


def decode(file: StateFile, data: bytes) -> State:
    """Decode a state. Raises BackupDamaged, and BackupError for a later version's."""
    where = f"states/{file.name}"
    try:
        value = orjson.loads(data)
        there = value["tables"]
        index = min(int(table[INDEX_KEY]) for table in there.values())
        unknown = sorted(there.keys() - set(FILES))
        tables, queues = decode_state(data)
    except (KeyError, TypeError, ValueError, AttributeError, StateError) as error:
        raise BackupDamaged(f"{where} cannot be read: {error!r}") from error
    if unknown:
        raise BackupError(
            f"{where} holds {', '.join(unknown)}, which this version does not know: restore it with"
            " the version that took the backup, or a later one"
        )
    if index != file.index:
        raise BackupDamaged(f"{where} is of frame {index}")
    return State(index, tables, queues)
