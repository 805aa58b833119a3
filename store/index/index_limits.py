"""The sizes of an index file, which configurations need without the arrays of `index_file`."""

from __future__ import annotations

from dataclasses import dataclass

HASH_SLOTS = 5_000_000  # maxHashSlotNum
INDEX_ENTRIES = 20_000_000  # maxIndexNum
SLOTS_MAX, ENTRIES_MAX = 100_000_000, 50_000_000
HEADER_SIZE_BYTES = 40
SLOT_SIZE_BYTES = 4
ENTRY_SIZE_BYTES = 20


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The size of a file. `entries` counts the unused entry 0."""

    slots: int = HASH_SLOTS
    entries: int = INDEX_ENTRIES

    @property
    def file_size_bytes(self) -> int:
        return HEADER_SIZE_BYTES + self.slots * SLOT_SIZE_BYTES + self.entries * ENTRY_SIZE_BYTES
