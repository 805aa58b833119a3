"""The states in a backup, in the form of a group snapshot (broker.tables.snapshot_install).

A table missing in the backup starts empty at frame 0, and the commands in the log are applied to
it. A state with an unknown table is rejected, because the table would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from ..errors import StateError
from ..tables import snapshot
from ..tables.snapshot import INDEX_KEY, Snapshot
from ..tables.snapshot_install import decode_state
from ..tables.state import BrokerState
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
    empty = snapshot.capture(BrokerState()).to_json()
    try:
        value = orjson.loads(data)
        there = value["tables"]
        index = min(int(table[INDEX_KEY]) for table in there.values())
        unknown = sorted(there.keys() - empty.keys())
        whole = orjson.dumps({**value, "tables": {**empty, **there}})
        tables, queues = decode_state(whole)
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
