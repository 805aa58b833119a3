"""Enforcement of proofs: a replica stops taking peers that give no proof (peer_auth.py) once every
other voter has proven itself to it. Shell: the note is saved in a thread.

The decision is durable in the file `enforced` (a SlotFile) before it is in force, so a restart does
not undo it. Neither does a change of members: a replica that joins later has to prove itself. To go
back to a program that knows no proofs, stop the replica and remove its file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from raftmq.store.transient_errors import passes

from ..raft.messages import NodeId
from ..storage.two_slot_file import SlotFile, SlotsDamaged
from .peer_auth import Admissions

log = logging.getLogger("raftmq.dledger.transport.peer_auth_enforcement")

ENFORCED_FILE = "enforced"  # in the member's directory
_ENFORCED = b"\1"


class Enforcement:
    """Decides when proofs are enforced. Call `load` before anything listens, `look` periodically,
    and `stop` in the end."""

    def __init__(
        self,
        file: SlotFile,
        admissions: Admissions | None,
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        """If `admissions` is None, no peer is asked for a proof, and nothing is saved."""
        self._file = file
        self._admissions = admissions
        self._on_failed = on_failed
        self._saving: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read the file, and enforce proofs if it says so. Blocking. Raises OSError."""
        if self._admissions is None:
            return
        try:
            noted = self._file.load()
        except SlotsDamaged as error:
            # The file is written only when proofs are enforced, so that is what it said.
            log.error("enforcement_note_damaged %s: taken for what it was", error)
            noted = _ENFORCED
        if noted is not None:
            self._admissions.enforce()

    def look(self, voters: Collection[NodeId], own: NodeId, pool: Executor) -> None:
        """Begin to enforce proofs if every other voter has proven itself."""
        admissions = self._admissions
        if admissions is None or not admissions.accepts_unproven:
            return
        if self._saving is not None or not voters:
            return
        if not admissions.proven.issuperset(set(voters) - {own}):
            return
        loop = asyncio.get_running_loop()
        self._saving = loop.run_in_executor(pool, self._file.save, _ENFORCED)
        self._saving.add_done_callback(self._saved)

    async def stop(self) -> None:
        """Wait for the save in flight, and close the file."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._file.close()

    def _saved(self, done: asyncio.Future[None]) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            log.warning("enforcement_not_noted: %s", error)  # the next look tries again
        elif error is not None:
            self._on_failed("noting that proofs are enforced failed", error)
        else:
            assert self._admissions is not None
            self._admissions.enforce()
            log.warning("proofs_enforced: every voter has proven itself, nobody comes without")
