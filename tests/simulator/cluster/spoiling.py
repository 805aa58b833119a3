"""Damage to the files of the tables' snapshot: which may be struck, and what becomes of them.

The promise covers one bad file of a table: its copy takes its place, and the log has the rest. So
what is struck has a whole copy, or is the copy of a whole one; or the next start finds a log that
still has its beginning, and needs neither.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from raftmq.broker.tables import snapshot
from tests.simulator.cluster import programs

if TYPE_CHECKING:
    from tests.simulator.disk import SimDisk

MARK = b',"%b":' % snapshot.CHECKSUM_KEY.encode()
WAYS = ("flip", "flip", "flip", "cut", "zeros", "gone")


def is_whole(data: bytes) -> bool:
    """Return whether a file of a snapshot has the checksum that is in it."""
    content, mark, checksum = data.rpartition(MARK)
    return bool(mark) and checksum == b"%d}" % crc32c(content + b"}")


def spoil_snapshot(disk: SimDisk, rng: Random, is_down: bool) -> list[str]:
    """Damage the files of one table or of some, or their copies; return what was done."""
    again = is_down and disk.exists(f"{programs.STORE}/commitlog/{0:020d}")
    tables = rng.sample(snapshot.FILES, rng.choice((1, 1, 3, len(snapshot.FILES))))
    done = []
    for name in tables:
        path = f"{programs.STORE}/{snapshot.DIRECTORY}/{name}"
        copy = path + snapshot.COPY
        path, other = rng.choice(((path, copy), (path, copy), (copy, path)))
        way = rng.choice(WAYS)
        if (again or is_whole(disk.durable(other))) and _spoil(disk, rng, path, way):
            done.append(f"{path} {way}")
    return done


def _spoil(disk: SimDisk, rng: Random, path: str, way: str) -> bool:
    size = len(disk.durable(path))
    if way == "gone":
        return disk.lose_file(path)
    if not size:
        return False
    at = rng.randrange(size)
    if way == "flip":
        bit = 1 << rng.randrange(8)
        return disk.spoil(path, at, lambda rest: bytes((rest[0] ^ bit,)) + rest[1:])
    if way == "cut":
        return disk.spoil(path, at, lambda _: b"")
    return disk.spoil(path, at, lambda rest: bytes(len(rest)))
