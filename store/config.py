"""The configuration of a store, built where the process reads its settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum

from .commitlog.commitlog import SEGMENT_SIZE_BYTES
from .consumequeue.consumequeue import ENTRIES_PER_FILE, TAIL_ENTRIES_MAX, TAILS_BYTES_MAX
from .dispatch import DELAY_LEVELS_MS
from .file_cache import OPEN_FILES_MAX
from .index.index_limits import IndexLimits

# All that this package keeps in a store's directory.
FILES = (
    *("abort", "checkpoint", "commitlog", "consumequeue", "consumequeue.manifest", "identity"),
    *("index", "lock"),
)
HOT_MEMORY_RATIO = 0.4  # accessMessageInMemoryMaxRatio: assumed share of the page cache


class StoreMode(Enum):
    """The contents of a store's log, plain records (CLASSIC), or Raft frames around records."""

    CLASSIC = "classic"
    RAFT = "raft"


def hot_span_bytes(ratio: float = HOT_MEMORY_RATIO) -> int:
    """Return the size of the log's tail that counts as in memory, by its share of all memory."""
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return int(pages * page_size * ratio)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store's configuration, with Apache's names in comments. Paths are below the root."""

    mode: StoreMode = StoreMode.RAFT
    directory: str = ""  # below the disk's root; "" is the root itself
    segment_size_bytes: int = SEGMENT_SIZE_BYTES  # mappedFileSizeCommitLog
    entries_per_file: int = ENTRIES_PER_FILE  # mappedFileSizeConsumeQueue / 20
    tail_entries_max: int = TAIL_ENTRIES_MAX
    tails_bytes_max: int = TAILS_BYTES_MAX
    open_files_max: int = OPEN_FILES_MAX
    cold_count_max: int = 8  # maxTransferCountOnMessageInDisk
    cold_bytes_max: int = 64 << 10  # maxTransferBytesOnMessageInDisk
    hot_span_bytes: int = field(default_factory=hot_span_bytes)
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    zero_ahead: bool = False  # see store.commitlog.commitlog
    index_enable: bool = True  # messageIndexEnable
    index_limits: IndexLimits = field(default_factory=IndexLimits)  # maxHashSlotNum, maxIndexNum

    def path(self, name: str) -> str:
        assert name.partition("/")[0] in FILES, name
        return f"{self.directory}/{name}" if self.directory else name
