"""The identity of a store directory, its node, group, mode and segment size.

A directory on the wrong node (a copied broker.conf, a wrong volume) would vote and answer with a
different node's promises. The file `identity`, next to the log, is therefore compared with the
configuration at each start, before recovery:

    mode=raft            or classic
    group=broker-a       the Raft group, or the broker name
    node=n1              the replica's id; empty in classic mode
    segment=1073741824   bytes of a segment of the log; absent before the log was first opened
    crc32c=0a1b2c3d      of the lines above

In classic mode a directory belongs to a broker name. Its broker id and role are not compared,
because an operator changes them after the loss of a master.

A store without the file, or with a damaged file, gets the configured identity once:
`record_identity` writes it, and the caller logs that. An operator can thus assign a directory to a
new node by removing the file. A replica that adopts a store recovers before it votes
(broker/startup.py), because the store does not have that replica's promises. The segment size
is recorded after the log was first opened, because the replicas of a group place their frames by
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from google_crc32c import value as crc32c

from .disk import Disk
from .errors import StoreError

IDENTITY_FILE = "identity"
SIZE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The owner of a store directory."""

    mode: str  # raft or classic
    group: str
    node: str
    segment_size_bytes: int = 0  # 0 if not recorded

    def __str__(self) -> str:
        kind = "the Raft group" if self.mode == "raft" else "the classic broker"
        return f"node {self.node} of {kind} {self.group}" if self.node else f"{kind} {self.group}"


class WrongIdentity(StoreError):
    """The directory belongs to a different node."""

    code = "WRONG_IDENTITY"


def check_identity(
    disk: Disk, root: str, own: StoreIdentity, *, empty: bool = False
) -> StoreIdentity | None:
    """Return the directory's identity, which is ours; None if it has no readable identity and the
    caller must write it. `root` is the operator's name for the directory. With `empty`, the log has
    no segment, and its size may change. Raises WrongIdentity, OSError."""
    identity = read_identity(disk)
    if identity is None:
        return None
    size = identity.segment_size_bytes
    if identity != replace(own, segment_size_bytes=size):
        raise WrongIdentity(
            f"the store {root} is that of {identity}, and this is configured to be {own}."
            " Correct the configuration (dLegerSelfId, dLegerGroup, brokerName,"
            " enableDLegerCommitLog), or set another storePathRootDir. The store may have"
            " messages that no other has: copy it"
            f" before you change anything. If it is to become that of {own}, remove its file"
            f" {IDENTITY_FILE}; a replica then recovers before it votes"
        )
    if not empty and size not in (0, own.segment_size_bytes):
        raise WrongIdentity(
            f"the log in the store {root} has segments of {size} bytes, and this is configured to"
            f" have segments of {own.segment_size_bytes}: set mappedFileSizeCommitLog={size}, as it"
            " was. If the other replicas of the group have the size configured here, and a leader,"
            " keep a copy of this store and start with an empty one instead"
        )
    return identity


def read_identity(disk: Disk) -> StoreIdentity | None:
    """Return the directory's identity; None if it is missing or damaged. Raises OSError."""
    if not disk.exists(IDENTITY_FILE):
        return None
    file = disk.open(IDENTITY_FILE)
    try:
        data = file.pread(0, SIZE_BYTES_MAX)
    finally:
        file.close()
    return decode_identity(data)


def decode_identity(data: bytes) -> StoreIdentity | None:
    """Return the identity in a file's content; None if it is damaged."""
    body, mark, checksum = data.rpartition(b"crc32c=")
    if not mark or checksum != b"%08x\n" % crc32c(body):
        return None
    lines = dict(line.split("=", 1) for line in body.decode().splitlines())
    size = int(lines.get("segment", 0))
    return StoreIdentity(lines["mode"], lines["group"], lines["node"], size)


def record_identity(disk: Disk, own: StoreIdentity) -> None:
    """Write the identity; durable on return. Raises OSError."""
    text = f"mode={own.mode}\ngroup={own.group}\nnode={own.node}\n"
    if own.segment_size_bytes:
        text += f"segment={own.segment_size_bytes}\n"
    body = text.encode()
    temporary = f"{IDENTITY_FILE}.new"
    file = disk.open(temporary)
    try:
        file.truncate(0)
        file.pwrite(0, body + b"crc32c=%08x\n" % crc32c(body))
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, IDENTITY_FILE)
    disk.sync_directory("")
