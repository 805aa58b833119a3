"""The configuration that a replica starts with: from its file, its log, or broker.conf.

Retention may take the frame that holds the configuration in force. So the newest one that is known
to be committed also stands in a `SlotFile`, saved before retention may pass its frame:

    off size field
    0   8    index      of its frame, int64, big-endian
    8   n    payload    of that frame (configuration.py)

There is no file as long as no change was ever made: then the founding configuration is in force.
The frames behind `index` come from the log. A damaged file is made anew from a log that still has
its beginning; without that, nobody knows who is in the group, and the replica must not guess.
"""

from __future__ import annotations

import struct

from raftmq.dledger.configuration import (
    Configuration,
    ConfigurationError,
    Configurations,
    decode_configuration,
    encode_configuration,
)
from raftmq.dledger.errors import RaftError
from raftmq.dledger.log import RaftLog
from raftmq.dledger.slots import SlotFile, SlotsDamaged
from raftmq.store.disk import Disk

_INDEX = struct.Struct(">q")


class ConfigurationLost(RaftError):
    """The file is damaged, and the log does not go back to its beginning."""

    code = "CONFIGURATION_LOST"
    retriable = False


class ConfigurationFile:
    """`load` first; then `save` whatever is committed."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._slots = SlotFile(disk, f"{directory}/configuration")
        self.saved_index = 0  # of the frame whose configuration is durable here; 0: none
        self.damaged = False  # found so by `load`

    def load(self) -> tuple[int, Configuration] | None:
        """What was saved last: (index, configuration). None if nothing was, or if it is damaged.
        Blocking. Raises OSError."""
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
        """Durable on return. Blocking. Raises OSError."""
        self._slots.save(_INDEX.pack(index) + encode_configuration(configuration))
        self.saved_index = index

    def close(self) -> None:
        self._slots.close()


def starting_configurations(
    saved: tuple[int, Configuration] | None, damaged: bool, founding: Configuration, log: RaftLog
) -> Configurations:
    """Those of a log that is open. Blocking. Raises ConfigurationLost, FrameDamaged (only what is
    behind the last committed configuration is read), OSError."""
    if damaged and log.index.first_index > 1:
        raise ConfigurationLost(
            "the configuration file is damaged, and the log begins with frame "
            f"{log.index.first_index}: this replica must be made anew"
        )
    configurations = Configurations(*(saved or (0, founding)))
    for index in log.configuration_indexes:
        if configurations.index < index <= log.last_index:
            (frame,) = log.frames(index, index)
            configurations.append(index, decode_configuration(frame.payload))
    return configurations
