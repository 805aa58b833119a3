"""Detection of a store that was set back, by the notes of a replica's peers.

Raft assumes that a replica's store never goes back. An operator can set it back by restoring a disk
or a machine from an earlier image, or by starting the old disk of a replica that was rebuilt
elsewhere. Such a store is valid, but without later promises of its replica. Trusted, it could help
to elect a leader without an acknowledged frame.

So replicas keep notes about each other. A *note* about a replica records that in the term `term` it
held the committed frames up to `index`, durably, while it was recovered. Leaders make notes of all
replicas every NOTE_INTERVAL_MS (`Leading.held`), and only of replicas that have a frame of the
leader's own term. So a note of a higher term never has a lower index, unless a majority's disks
were lost, which voids all promises. Leaders send new notes in PeerInfo messages, and every replica
sends its notes first on each new link. In a merge the higher term wins, and within a term the
higher index.

A replica that receives a note about itself with more frames than it holds, or of a term that it has
not reached, has an older store. It recovers from then on (dledger/raft/recovery.py), like a replica
with an empty disk. That is early enough, since all requests and votes of a peer arrive over a link
that starts with the peer's notes.

Not detected are promises after the last note was sent, and notes that only absent replicas have.

The notes are saved in the file `notes` (a SlotFile) soon after each change. Nothing waits for that.
Lost notes are made again, and until then less is detected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor

from raftmq.store.transient_errors import passes

from ..raft.configuration import MEMBERS_MAX
from ..raft.core import RaftCore
from ..raft.messages import NodeId
from ..storage.two_slot_file import SlotFile, SlotsDamaged
from ..transport.peer_info_message import (
    Held,
    Notes,
    PeerInfo,
    PeerInfoError,
    decode_notes,
    encode_notes,
)

log = logging.getLogger("raftmq.dledger.node.rollback_detection")

NOTES_FILE = "notes"  # in the member's directory
NOTE_INTERVAL_MS = 5_000  # between a leader's notes


class Memory:
    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: dict[NodeId, Held] = {}

    def merge(self, notes: Iterable[tuple[NodeId, Held]]) -> set[NodeId]:
        """Merge notes; return the replicas with changed notes."""
        news = {node_id: held for node_id, held in notes if held.replaces(self.notes.get(node_id))}
        self.notes.update(news)
        return set(news)

    def keep(self, members: Collection[NodeId]) -> bool:
        """Forget all replicas but these; return whether that removed a note. A replica that is
        added again under a removed id has promised nothing yet."""
        gone = [node_id for node_id in self.notes if node_id not in members]
        for node_id in gone:
            del self.notes[node_id]
        return bool(gone)

    def outdates(self, node_id: NodeId, held: Held) -> bool:
        """Return whether the note about that replica here is newer than `held`."""
        known = self.notes.get(node_id)
        return known is not None and known.replaces(held)


class RollbackDetection:
    """The notes of one member. Call `load` before anything listens, `open` when the core exists,
    `tick` periodically, and `stop` in the end."""

    def __init__(
        self,
        file: SlotFile,
        *,
        send: Callable[[PeerInfo], None],
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        self._file = file
        self._send = send
        self._on_failed = on_failed
        self._memory = Memory()
        self._core: RaftCore | None = None
        self._lost: Callable[[str], None] | None = None
        self._early: dict[NodeId, PeerInfo] = {}  # arrived before the core existed
        self._due_ms = 0.0  # of a leader's next notes
        self._unsaved = False
        self._saving: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read the file. Blocking. Raises OSError."""
        try:
            content = self._file.load()
            if content is not None:
                self._memory.merge(decode_notes(content).items())
        except (SlotsDamaged, PeerInfoError) as error:
            log.warning("notes_damaged %s: they are made again", error)

    def open(self, core: RaftCore, lost: Callable[[str], None]) -> None:
        """Judge by the log of this core from now on. `lost(reason)` makes it recover."""
        self._core, self._lost = core, lost
        own = self._memory.notes.get(core.node_id)
        if own is not None:
            self._judge(core, own, "its own file of notes")
        for message in self._early.values():
            self.take(message)
        self._early.clear()
        self._send_notes(core, core.membership.peers)  # on links that are open already

    def for_new_link(self) -> Notes | None:
        """Return the notes that a new link starts with; None before the core exists."""
        core = self._core
        if core is None:
            return None
        self._make(core)  # the peer may have been away for less than NOTE_INTERVAL_MS
        return dict(self._memory.notes)

    def take(self, info: PeerInfo) -> None:
        """Judge this store by a peer's notes, and merge them."""
        core, sender, notes = self._core, info.sender, info.notes
        if notes is None:
            return
        if core is None:
            if sender in self._early or len(self._early) < MEMBERS_MAX:
                self._early[sender] = info
            return
        own = notes.get(core.node_id)
        if own is not None and not self._memory.outdates(core.node_id, own):
            self._judge(core, own, sender)
        members = core.membership.configurations.current.ids
        news = self._memory.merge(
            (node_id, held)
            for node_id, held in notes.items()
            if node_id in members and held.term <= info.term
        )
        self._unsaved |= bool(news)
        if sender != core.leader:  # a leader sends its notes to all replicas itself
            self._send_notes(core, sorted(news - {core.node_id, sender}))

    def _judge(self, core: RaftCore, own: Held, source: str) -> None:
        if not core.recovered:
            return
        if not own.exceeds(core.term, core.durable_index):
            core.note_held(own.index)
        else:
            assert self._lost is not None
            self._lost(
                f"its store is older than what it promised: {source} says that in term {own.term}"
                f" it held the frames up to {own.index}; now it is in term {core.term} and holds"
                f" those up to {core.durable_index}"
            )

    def tick(self, now_ms: float, pool: Executor) -> None:
        """Make and send a leader's notes if they are due, and save changes."""
        core = self._core
        if core is None:
            return
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + NOTE_INTERVAL_MS
            self._unsaved |= self._memory.keep(core.membership.configurations.current.ids)
            if self._make(core):
                self._send_notes(core, core.membership.peers)
        if self._unsaved and self._saving is None:
            self._unsaved = False
            content = encode_notes(self._memory.notes)
            loop = asyncio.get_running_loop()
            self._saving = loop.run_in_executor(pool, self._file.save, content)
            self._saving.add_done_callback(self._saved)

    def _make(self, core: RaftCore) -> bool:
        """Make a leader's notes; return whether any changed."""
        held = ((peer, Held(core.term, index)) for peer, index in core.held().items())
        news = bool(self._memory.merge(held))
        self._unsaved |= news
        return news

    def _send_notes(self, core: RaftCore, peers: Iterable[NodeId]) -> None:
        notes = dict(self._memory.notes)
        for peer in peers:
            self._send(PeerInfo(core.node_id, peer, core.term, notes=notes))

    def _saved(self, done: asyncio.Future[None]) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            log.warning("notes_not_saved: %s", error)  # the next change saves again
        elif error is not None:
            self._on_failed("saving the notes failed", error)

    async def stop(self) -> None:
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._file.close()
