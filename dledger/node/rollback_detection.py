"""Keeps one replica's notes of what it and its peers have held, and recognises by them that its own
store is older (dledger/raft/recollection.py). Shell: notes are saved in a thread.

A replica's notes lie in the file `notes` (a SlotFile), and are saved soon after they have changed.
Nothing waits for that: notes that are lost are made again, and until then less is recognised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from raftmq.store.transient_errors import passes

from ..raft.configuration import MEMBERS_MAX
from ..raft.core import RaftCore
from ..raft.messages import NodeId
from ..raft.recollection import (
    Held,
    Memory,
    NotesError,
    Recollection,
    decode_notes,
    encode_notes,
)
from ..storage.two_slot_file import SlotFile, SlotsDamaged

log = logging.getLogger("raftmq.dledger.node.rollback_detection")

NOTES_FILE = "notes"  # in the member's directory
MADE_MS = 5_000  # between two looks of a leader at what its followers hold


class OldStores:
    """The notes of one member. Call `load` before anything listens, `open` when the core is there,
    `look` periodically, and `stop` in the end."""

    def __init__(
        self,
        file: SlotFile,
        *,
        send: Callable[[Recollection], None],
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        self._file = file
        self._send = send
        self._on_failed = on_failed
        self._memory = Memory()
        self._core: RaftCore | None = None
        self._lost: Callable[[str], None] | None = None
        self._early: dict[NodeId, Recollection] = {}  # came before the core was there
        self._made_ms = 0.0  # a leader looks again so much later
        self._unsaved = False
        self._saving: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read the file. Blocking. Raises OSError."""
        try:
            content = self._file.load()
            if content is not None:
                self._memory.learn(decode_notes(content).items())
        except (SlotsDamaged, NotesError) as error:
            log.warning("notes_damaged %s: they are made again", error)

    def open(self, core: RaftCore, lost: Callable[[str], None]) -> None:
        """Judge by what this core holds from now on. `lost(reason)` makes it recover."""
        self._core, self._lost = core, lost
        own = self._memory.notes.get(core.node_id)
        if own is not None:
            self._judge(core, own, "its own file of notes")
        for message in self._early.values():
            self.on_message(message)
        self._early.clear()
        self._tell(core, core.membership.peers)  # on links that are open already

    def opened(self, peer: NodeId) -> None:
        """Tell a peer on a new link, before anything else is said on it."""
        core = self._core
        if core is not None:
            self._make(core)  # the peer may have been away for less than MADE_MS
            self._tell(core, (peer,))

    def on_message(self, message: Recollection) -> None:
        """Take a peer's notes: judge whether this store is older, and learn what is new."""
        core, sender = self._core, message.sender
        if core is None:
            if sender in self._early or len(self._early) < MEMBERS_MAX:
                self._early[sender] = message
            return
        told = message.notes
        own = told.get(core.node_id)
        if own is not None and not self._memory.outdates(core.node_id, own):
            self._judge(core, own, sender)
        members = core.membership.configurations.current.ids
        news = self._memory.learn(
            (node_id, held)
            for node_id, held in told.items()
            if node_id in members and held.term <= message.term
        )
        self._unsaved |= bool(news)
        if sender != core.leader:  # which tells everybody itself
            self._tell(core, sorted(news - {core.node_id, sender}))

    def _judge(self, core: RaftCore, own: Held, teller: str) -> None:
        if not core.recovered:
            return
        if not own.exceeds(core.term, core.durable_index):
            core.note_held(own.index)
        else:
            assert self._lost is not None
            self._lost(
                f"its store is older than what it promised: {teller} says that in term {own.term}"
                f" it held the frames up to {own.index}; now it is in term {core.term} and holds"
                f" those up to {core.durable_index}"
            )

    def look(self, now_ms: float, pool: Executor) -> None:
        """Do what is due: a leader makes notes and tells them; what is new is saved."""
        core = self._core
        if core is None:
            return
        if now_ms >= self._made_ms:
            self._made_ms = now_ms + MADE_MS
            self._unsaved |= self._memory.keep(core.membership.configurations.current.ids)
            if self._make(core):
                self._tell(core, core.membership.peers)
        if self._unsaved and self._saving is None:
            self._unsaved = False
            content = encode_notes(self._memory.notes)
            loop = asyncio.get_running_loop()
            self._saving = loop.run_in_executor(pool, self._file.save, content)
            self._saving.add_done_callback(self._saved)

    def _make(self, core: RaftCore) -> bool:
        """Make notes of what a leader knows now; return whether there was news."""
        held = ((peer, Held(core.term, index)) for peer, index in core.held().items())
        news = bool(self._memory.learn(held))
        self._unsaved |= news
        return news

    def _tell(self, core: RaftCore, peers: Iterable[NodeId]) -> None:
        notes = dict(self._memory.notes)
        for peer in peers:
            self._send(Recollection(core.node_id, peer, core.term, notes))

    def _saved(self, done: asyncio.Future[None]) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            log.warning("notes_not_saved: %s", error)  # with the next ones
        elif error is not None:
            self._on_failed("saving the notes failed", error)

    async def stop(self) -> None:
        """Wait for the save in flight, and close the file."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._file.close()
