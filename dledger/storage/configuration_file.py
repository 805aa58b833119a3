"""The configuration file, and the initial configuration of a replica.

Retention may delete the frame of the configuration in force. So the newest committed configuration
is also kept in a `SlotFile`, saved before retention may pass its frame:

    off size field
    0   8    index      of its frame, int64, big-endian
    8   n    payload    of that frame (dledger/raft/configuration.py)

The founding configuration of broker.conf is in force until the first change. It is saved at a
replica's first start, as that of frame 0. From its first frame on broker.conf must name the same
members, because with fewer members a minority would count as a majority. Old stores without a file
trust broker.conf once. Configurations of frames behind `index` are read from the log. A damaged
file is rebuilt from a log that still has its start; any other log does not have the group's
members, which must not be guessed.
"""

from __future__ import annotations

import struct

from raftmq.store.disk import Disk

from ..raft.configuration import (
    Configuration,
    ConfigurationError,
    Configurations,
    decode_configuration,
    encode_configuration,
)
from ..raft.errors import RaftError
from .log_storage import RaftLog
from .two_slot_file import SlotFile, SlotsDamaged

_INDEX = struct.Struct(">q")


class ConfigurationLost(RaftError):
    """The file is damaged, and the log no longer has its start."""

    code = "CONFIGURATION_LOST"
    retriable = False


class MembersDiffer(RaftError):
    """broker.conf names other founding members than the group has."""

    code = "MEMBERS_DIFFER"
    retriable = False


class ConfigurationFile:
    """The file with the newest committed configuration. Call `load` first, then `save`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._slots = SlotFile(disk, f"{directory}/configuration")
        self.saved_index = 0  # frame of the saved configuration; 0: none
        self.damaged = False  # found so by `load`

    def load(self) -> tuple[int, Configuration] | None:
        """Return the last (index, configuration), or None if damaged. Blocking. Raises OSError."""
        try:
            content = self._slots.load()
            if content is None:
                return None
            (index,) = _INDEX.unpack_from(content)
            configuration = decode_configuration(content[_INDEX.size :])
        except (SlotsDamaged, struct.error, ConfigurationError):
            self.damaged = True
            return None
        self.saved_index = index
        return index, configuration

    def save(self, index: int, configuration: Configuration) -> None:
        """Save the configuration of frame `index`; durable on return. Blocking. Raises OSError."""
        self._slots.save(_INDEX.pack(index) + encode_configuration(configuration))
        self.saved_index = index

    def close(self) -> None:
        self._slots.close()


def starting_configurations(
    saved: tuple[int, Configuration] | None, damaged: bool, founding: Configuration, log: RaftLog
) -> Configurations:
    """Return the configurations of an open log. Blocking. Raises ConfigurationLost if the file is
    damaged and the log has lost its start, FrameDamaged (for frames behind the last committed
    configuration), OSError."""
    if damaged and log.index.first_index > 1:
        raise ConfigurationLost(
            "the configuration file is damaged, and the log begins with frame "
            f"{log.index.first_index}: this replica must be made anew"
        )
    if saved is None or (saved[0] == 0 and founding.members):
        saved = 0, founding  # with the present addresses
    configurations = Configurations(*saved)
    for index in log.configuration_indexes:
        if configurations.index < index <= log.last_index:
            (frame,) = log.frames(index, index)
            configurations.append(index, decode_configuration(frame.payload))
    return configurations
