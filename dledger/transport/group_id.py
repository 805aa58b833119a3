"""The id of the group that this replica belongs to. Two groups may have one name and the same node
ids: a copy beside its original, two clusters of tests on one machine, an address that was used
before. Their logs must never meet.

A group has an id, 16 random bytes, in its log: the application proposes it and reports what it
applied (`applied`). This replica keeps its group's id in the file `group` (a SlotFile), because it
must be known before the log is: links begin with it (wire). The rules, for two replicas that meet:

- Both know an id, and the ids differ: both close the connection, no matter which one dialled.
- One or both know none: they talk. A replica that has frames learns its id from them. If a link was
  made before an id was known, the id is announced over it, and the first rule holds from then on.
- Both know the same id, but have different frames of one index and term (dledger.raft.follower):
  who
  notices closes both connections, and lets none come up for PARTED_MS. So the replicas that agree
  elect a leader without the other one.
- This replica knows none and its log is empty: it joins the group of the first replica that it
  *dials* and that knows an id. That is durable in its file before any message passes between them,
  so it never takes frames of two groups that have ids. A peer that dials it with an id has to wait
  until then: otherwise a stray replica with a wrong address would decide. (A peer that was dialled
  before it knew an id is dialled again when it dials in with one. A replica that dials nobody,
  because it was given no peers, believes whoever dials it.)

A damaged file counts as no id; applying the log tells the id again. An id that is applied while the
file says another (frames of a restored log, from before it was restored) changes nothing here.

Not promised: anything between groups that have no ids yet, and between exact copies of one
replica's files, as long as their logs are the same. Shell: the file is saved in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from raftmq.store.disk import Disk
from raftmq.store.transient_errors import RETRY_S, passes

from ..raft.messages import NodeId
from ..storage.two_slot_file import SlotFile, SlotsDamaged
from .network import FROM_PEER
from .peer_info_message import GROUP_ID_SIZE_BYTES

log = logging.getLogger("raftmq.dledger.transport.group_id")

FILE = "group"  # in the member's directory
FOREIGN_MS = 30_000  # since it was refused last; diallers come back within half a second
FOREIGN_MAX = 32  # remembered at a time
PARTED_MS = 30_000  # a store that was emptied meanwhile is welcome then


@dataclass(frozen=True, slots=True)
class Meeting:
    """This replica and a peer, each with its address (host:port), and the peer's group id."""

    own: NodeId
    own_address: str
    peer: NodeId
    peer_address: str
    theirs: bytes  # empty: it knows no id yet
    dialled: bool  # by this replica
    alone: bool = False  # this replica dials nobody


class GroupIdentity:
    """This replica's group id. Call `load`, then `start`, and `stop` in the end. Without a file the
    id is not saved, and none is taken from a peer."""

    def __init__(
        self,
        file: SlotFile | None = None,
        is_empty: Callable[[], bool] = lambda: False,
        on_failed: Callable[[str, BaseException], None] = lambda reason, error: None,
    ) -> None:
        """`is_empty` returns whether the log certainly has no frame. `on_failed` is called if the
        file cannot be saved."""
        self.group_id = b""  # empty: not known yet
        self._file = file
        self._is_empty = is_empty
        self._on_failed = on_failed
        self._listeners: list[Callable[[], None]] = []
        self._taken = b""  # from a peer; counts when it is durable
        self._saved = b""
        self._saving: asyncio.Future[None] | None = None
        self._pool: Executor | None = None
        self._parted: dict[NodeId, tuple[float, str]] = {}  # of another history; until when, why
        self._foreign: dict[tuple[NodeId, bytes, bool], tuple[float, str]] = {}

    def load(self) -> None:
        """Read the id from the file. Blocking. Raises OSError."""
        assert self._file is not None
        try:
            content = self._file.load() or b""
        except SlotsDamaged as error:
            log.error("group_id_lost %s: what is applied will say it again", error)
            return
        assert len(content) in (0, GROUP_ID_SIZE_BYTES), content
        self.group_id = self._saved = content
        log.info("group_id id=%s", content.hex() or "none")

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` from now on when the id becomes known or changes."""
        self._listeners.append(listener)

    def start(self, pool: Executor) -> None:
        """Save in this pool from now on."""
        self._pool = pool

    async def stop(self) -> None:
        """Wait for the saves in flight, and close the file."""
        while self._saving is not None:
            await asyncio.wait([self._saving])
        self._pool = None
        if self._file is not None:
            self._file.close()

    def applied(self, before: bytes, now: bytes) -> None:
        """Note that the log's group id, as applied, changed from `before` to `now` (empty:
        none)."""
        if self.group_id in (b"", before) and now:
            changed = self.group_id != now
            self.group_id = now
            self._save()
            if changed:
                self._known()
        elif now != self.group_id:
            log.warning(
                "group_id_differs noted=%s applied=%s", self.group_id.hex(), now.hex() or "none"
            )

    def judge(self, meeting: Meeting, now_ms: float) -> str:
        """Return why the two may not talk; empty if they may. May begin to adopt the peer's id."""
        until_ms, reason = self._parted.get(meeting.peer, (0.0, ""))
        if now_ms < until_ms:
            return reason
        theirs = meeting.theirs
        if not theirs:
            return ""
        if self.group_id:
            return "" if theirs == self.group_id else self._part(meeting, now_ms)
        if not self._is_empty() or self._file is None:
            return ""
        if not self._taken:
            if not meeting.dialled and not meeting.alone:
                return f"{meeting.own} is empty, and learns of which group it is from whom it dials"
            log.info(
                "group_id_taken node=%s id=%s peer=%s", meeting.own, theirs.hex(), meeting.peer
            )
            self._taken = theirs
            self._save()
        return f"{meeting.own} is empty, and first notes that it is of group id {self._taken.hex()}"

    def part(self, peer: NodeId, reason: str, now_ms: float) -> None:
        """Let no connection with `peer` come up for PARTED_MS: it has another history."""
        self._parted[peer] = now_ms + PARTED_MS, reason
        if self._note((peer, b"", True), reason, now_ms):
            log.error("other_history %s", reason, extra=FROM_PEER)

    def parted(self, now_ms: float) -> set[NodeId]:
        """Return the peers whose connections are kept from coming up for their history."""
        return {peer for peer, (until_ms, _) in self._parted.items() if now_ms < until_ms}

    def doubled(self, peer: NodeId, addresses: tuple[str, str], now_ms: float) -> None:
        """Note that two processes say that they are `peer`, from these addresses (host:port)."""
        text = (
            f"two processes say that they are {peer}, from {addresses[0]} and {addresses[1]}: stop"
            " the one whose dLegerSelfId is wrong"
        )
        if self._note((peer, b"", False), text, now_ms):
            log.warning("same_id_twice %s", text, extra=FROM_PEER)

    def founders_differ(self, peer: NodeId, text: str, now_ms: float) -> None:
        """Note that a peer founds, or has founded, by other members (dledger/node/peer_info.py);
        without a text that it does not any more."""
        key = peer, b"founders", False
        if not text:
            self._foreign.pop(key, None)
        elif self._note(key, text, now_ms):
            log.warning("founders_differ %s", text, extra=FROM_PEER)

    def foreign(self, now_ms: float) -> list[str]:
        """Return the reasons for which this replica refused peers of other groups, which ids two
        processes have, and which founders differ, of the last FOREIGN_MS."""
        for key, (seen_ms, _) in list(self._foreign.items()):
            if now_ms - seen_ms > FOREIGN_MS:
                del self._foreign[key]
        return [text for _, text in self._foreign.values()]

    def status(self, now_ms: float) -> dict[str, object]:
        """Return `group_id` in hex (None: not known yet) and `foreign`, for the status."""
        return {"group_id": self.group_id.hex() or None, "foreign": self.foreign(now_ms)}

    def _part(self, meeting: Meeting, now_ms: float) -> str:
        text = (
            f"{meeting.peer} at {meeting.peer_address} is of group id {meeting.theirs.hex()},"
            f" {meeting.own} at {meeting.own_address} is of group id {self.group_id.hex()}: these"
            " are two groups of one name; correct the address in dLegerPeers. If a replica is to"
            " join the other group, compare the stores with mqbroker rescue and keep a copy of its"
            " store before it starts with an empty one"
        )
        if self._note((meeting.peer, meeting.theirs, meeting.dialled), text, now_ms):
            log.error("foreign_group %s", text)  # once, and not at each of its attempts
        return text

    def _note(self, key: tuple[NodeId, bytes, bool], text: str, now_ms: float) -> bool:
        """Return whether this is new."""
        self.foreign(now_ms)
        new = key not in self._foreign
        if new and len(self._foreign) >= FOREIGN_MAX:
            del self._foreign[next(iter(self._foreign))]
        self._foreign[key] = now_ms, text
        return new

    def _known(self) -> None:
        for listener in self._listeners:
            listener()

    def _save(self) -> None:
        wanted = self.group_id or self._taken
        if self._file is None or self._pool is None or self._saving is not None:
            return
        if wanted == self._saved:
            return
        loop = asyncio.get_running_loop()
        self._saving = loop.run_in_executor(self._pool, self._file.save, wanted)
        self._saving.add_done_callback(lambda done: self._saved_it(done, wanted))

    def _saved_it(self, done: asyncio.Future[None], content: bytes) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            # As with the log: a shortage is waited out. Until then the id is known from what is
            # applied, and none is taken from a peer.
            log.warning("group_id_not_saved: %s", error)
            asyncio.get_running_loop().call_later(RETRY_S, self._save)
            return
        if error is not None:
            self._on_failed("saving the group id failed", error)
            return
        self._saved = content
        if not self.group_id:
            self.group_id = content
            self._known()
        self._save()


def file_of(disk: Disk, directory: str) -> SlotFile:
    """Return the group id's file of the replica whose directory (dledger.settings) this is."""
    return SlotFile(disk, f"{directory}/{FILE}")
