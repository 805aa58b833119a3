"""The owner of a store directory: which node of which group, and in which mode.

If another node got the directory by mistake (a copied broker.conf, a wrong volume), it would vote
and answer with somebody else's promises. So the file `identity`, beside the log, is compared with
the configuration at each start, before recovery:

    mode=raft            or classic
    group=broker-a       the Raft group, or the broker name
    node=n1              the replica's id; empty in classic mode
    crc32c=0a1b2c3d      of the lines above

In classic mode a directory belongs to a broker name: which of its brokers serves it, and in which
role, is changed by hand when a master is lost, and is not compared.

A store without the file, or with a damaged one, is taken for what the configuration says, once:
`note_identity` writes it down, and the caller logs that. To give a directory to another node
deliberately, its operator removes the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from google_crc32c import value as crc32c

from raftmq.store.disk import Disk
from raftmq.store.errors import StoreError

IDENTITY_FILE = "identity"
SIZE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The owner of a store directory."""

    mode: str  # raft or classic
    group: str
    node: str

    def __str__(self) -> str:
        kind = "the Raft group" if self.mode == "raft" else "the classic broker"
        return f"node {self.node} of {kind} {self.group}" if self.node else f"{kind} {self.group}"


class WrongIdentity(StoreError):
    """The directory belongs to another node."""

    code = "WRONG_IDENTITY"


def check_identity(disk: Disk, root: str, own: StoreIdentity) -> bool:
    """Return whether the directory says that it is ours; False: it has no readable identity, and
    the caller must note one. `root` is the operator's name for it. Raises WrongIdentity,
    OSError."""
    found = read_identity(disk)
    if found is None:
        return False
    if found != own:
        raise WrongIdentity(
            f"the store {root} is that of {found}, and this is configured to be {own}. Correct the"
            " configuration (dLegerSelfId, dLegerGroup, brokerName, enableDLegerCommitLog), or set"
            f" another storePathRootDir; if the store is to become that of {own}, remove its file"
            f" {IDENTITY_FILE}"
        )
    return True


def read_identity(disk: Disk) -> StoreIdentity | None:
    """Return the directory's identity; None if there is none, or it is damaged. Raises OSError."""
    if not disk.exists(IDENTITY_FILE):
        return None
    file = disk.open(IDENTITY_FILE)
    try:
        data = file.pread(0, SIZE_BYTES_MAX)
    finally:
        file.close()
    body, mark, checksum = data.rpartition(b"crc32c=")
    if not mark or checksum != b"%08x\n" % crc32c(body):
        return None
    lines = dict(line.split("=", 1) for line in body.decode().splitlines())
    return StoreIdentity(lines["mode"], lines["group"], lines["node"])


def note_identity(disk: Disk, own: StoreIdentity) -> None:
    """Write the identity; durable on return. Raises OSError."""
    body = f"mode={own.mode}\ngroup={own.group}\nnode={own.node}\n".encode()
    beside = f"{IDENTITY_FILE}.new"
    file = disk.open(beside)
    try:
        file.truncate(0)
        file.pwrite(0, body + b"crc32c=%08x\n" % crc32c(body))
        file.sync()
    finally:
        file.close()
    disk.rename(beside, IDENTITY_FILE)
    disk.sync_directory("")
