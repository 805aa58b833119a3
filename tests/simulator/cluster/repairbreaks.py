"""Planted breaks of repair and of refilling: each takes one rule away."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from raftmq.broker.tables import snapshot
from raftmq.broker.tables import snapshot_install as snapshotinstall
from raftmq.broker.tables.snapshot import Snapshot
from raftmq.dledger.raft.repair import DamagedFrame, Patch, RepairResponse, StartRepair
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.snapshot.transfer import Installer
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.startup_state import Promises
from raftmq.store.config import StoreConfig
from raftmq.store.disk import Disk
from raftmq.store.frame import HEADER, HEADER_SIZE_BYTES, Frame, FrameError, parse_header
from tests.simulator.cluster.planting import instead, replaced
from tests.simulator.disk import SimFile

Planted = AbstractContextManager[Any]
Queues = list[tuple[str, int, int]]


def repaired_with_uncommitted() -> Planted:
    """A. Any frame of a peer that fits is taken for the one that was damaged."""
    return instead(StartRepair, "_is_committed", lambda self, frame, response: True)


def repaired_unchecked() -> Planted:
    """B. Neither checksum nor term of what a peer sends is looked at."""

    def takes(
        self: StartRepair, response: RepairResponse, data: bytes, wanted: DamagedFrame
    ) -> Patch | None:
        try:
            _, _, index, term, position, stamp, length, count, kind, _, _ = parse_header(data)
        except FrameError:
            return None
        size = HEADER_SIZE_BYTES + length
        frame = Frame(index, term, position, stamp, kind, count, data[:size])
        fits = position in (wanted.position, self._log.segment_end(wanted.position))
        if len(data) < size or index != wanted.index or not fits:
            return None
        return Patch((frame,), True, response.sender)

    return instead(StartRepair, "_patch", takes)


def damage_cut() -> Planted:
    """C. Damage is cut as if it were a torn tail."""

    def broken(recover: Any) -> Any:
        def recovers(self: RaftLog) -> None:
            if recover(self) is not None:
                self.cut_damaged()

        return recovers

    return replaced(RaftLog, "recover", broken)


def patches_unsynced() -> Planted:
    """D. A patch is not synced."""

    def broken(mend: Any) -> Any:
        def mends(self: RaftLog, *patch: Any) -> Any:
            with instead(SimFile, "sync", lambda file: None):
                return mend(self, *patch)

        return mends

    return replaced(RaftLog, "repair", broken)


def cut_without_a_note() -> Planted:
    """E. It gives up frames, and does not note that it may have lost promises."""
    return instead(Promises, "give_up", lambda self, reason: None)


def frames_taken_unchecked() -> Planted:
    """F. A follower writes frames without looking at their checksums."""

    def parses(data: bytes, at: int = 0) -> Frame:
        fields = HEADER.unpack_from(data, at)
        _, _, index, term, position, stamp, length, count, kind, _, _ = fields
        complete = bytes(data[at : at + HEADER_SIZE_BYTES + length])
        return Frame(index, term, position, stamp, kind, count, complete)

    return patch("raftmq.dledger.transport.wire.parse_frame", parses)


def messages_taken_unchecked() -> Planted:
    """G. What replicas say to each other has no checksum; frames have their own."""
    return patch("raftmq.dledger.transport.wire.crc32c", lambda data: 0)


# -- refilling -------------------------------------------------------------------------------------


def decoded(change: Any) -> Planted:
    """Plant a change of the tables and queues that an installing replica reads."""

    def broken(decode: Any) -> Any:
        def decodes(data: bytes) -> tuple[Snapshot, Queues]:
            taken, queues = decode(data)
            result: tuple[Snapshot, Queues] = change(taken, queues)
            return result

        return decodes

    return replaced(snapshotinstall, "decode_state", broken)


def installs_no_queues() -> Planted:
    """a. Queues whose messages are gone begin at 0 again."""
    return decoded(lambda taken, queues: (taken, []))


def installs_no_tables() -> Planted:
    """b. The tables are not installed."""

    def change(taken: Snapshot, queues: Queues) -> tuple[Snapshot, Queues]:
        for _, table in taken.tables:
            table.load(type(table)().to_json(), table.applied_index)
        return taken, queues

    return decoded(change)


def applies_twice() -> Planted:
    """c. Frames that the installed tables reflect are applied to them again."""

    def change(taken: Snapshot, queues: Queues) -> tuple[Snapshot, Queues]:
        for _, table in taken.tables:
            table.applied_index -= 20
        return taken, queues

    return decoded(change)


def installs_over_more() -> Planted:
    """d. A log is thrown away that holds frames the group snapshot does not stand for."""
    return instead(Installer, "_is_needed", lambda self, first_index, previous_term: True)


def marker_goes_first() -> Planted:
    """e. What is noted is forgotten before it is carried out: a kill leaves a mixture."""
    return carried_out(marker_behind=0)


def marker_goes_too_early() -> Planted:
    """f. The log is new when the marker goes, the state is not: killed then, it is a mixture."""
    return carried_out(marker_behind=1)


def carried_out(marker_behind: int) -> Planted:
    """Plant an installation whose marker goes behind so many of its steps."""

    def carries_out(disk: Disk, config: StoreConfig, directory: str) -> None:
        noted = snapshotmarker.read(disk, directory)
        tables, queues = snapshotinstall.decode_state(noted.state)
        log, checkpoint = config.path("commitlog"), config.path("checkpoint")
        if marker_behind == 0:
            snapshotmarker.done(disk, directory)
        snapshotinstall.remove_derived(disk, config)
        snapshotmarker.write_empty_log(disk, directory, noted, log, checkpoint)
        if marker_behind == 1:
            snapshotmarker.done(disk, directory)
        snapshotinstall.create_queues(disk, config, queues)
        snapshot.write(disk, tables)

    return instead(snapshotinstall, "carry_out", carries_out)


def snapshots_taken_unchecked() -> Planted:
    """I. Whatever parses in a file of the tables' snapshot is taken."""

    class Anything(int):
        def __ne__(self, other: object) -> bool:
            return False

    return instead(snapshot, "_checksum", lambda value: Anything())
