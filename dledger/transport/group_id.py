"""Group ids, by which replicas of different groups with equal names disconnect.

Two groups may share them after a copy, in tests on the same machine, or when an address is reused.
Their logs must never meet. A group's id, 16 random bytes, is in its log. The application proposes
it and reports the applied id (`applied`). This replica also keeps it in the file `group` (a
SlotFile), because links start with it, before the log is known. The rules for two replicas:

- If both have an id, and the ids differ, both close the connection.
- If an id is missing, they exchange messages. A replica with frames learns its id from its log. If
  a link was made before that, the id is announced over it, and the first rule applies.
- If both have the same id, but different frames of the same index and term (dledger.raft.follower),
  the replica that detects it closes both connections, and accepts none for PARTED_MS. So the
  replicas that agree elect a leader without it.
- If this replica has none and its log is empty, it joins the group of the first replica with an id
  that it *dials*. The id is durable before any message passes, so it never accepts frames of two
  groups. A peer with an id that dials it has to wait until then, so that a stray replica with a
  wrong address does not decide. (A peer that was dialled before it had an id is dialled again when
  it dials in with an id. A replica without peers to dial trusts whichever peer dials it.)

A damaged file counts as no id; the log supplies it again. An applied id that differs from the
file's (frames of a restored log, from before the restoration) changes nothing here.

Not covered are groups without ids, and exact copies of a replica's files, as long as their logs are
the same. The file is saved in a thread.
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
FOREIGN_MS = 30_000  # after the last refusal; diallers retry within half a second
FOREIGN_MAX = 32  # remembered at a time
PARTED_MS = 30_000  # then an emptied store is accepted


@dataclass(frozen=True, slots=True)
class Meeting:
    """This replica and a peer, with their addresses (host:port), and the peer's group id."""

    own: NodeId
    own_address: str
    peer: NodeId
    peer_address: str
    theirs: bytes  # empty: unknown
    dialled: bool  # by this replica
    alone: bool = False  # this replica dials nobody


class GroupIdentity:
    """This replica's group id. Call `load`, then `start`, and `stop` in the end. Without a file the
    id is not saved, and no id is accepted from a peer."""

    def __init__(
        self,
        file: SlotFile | None = None,
        is_empty: Callable[[], bool] = lambda: False,
        on_failed: Callable[[str, BaseException], None] = lambda reason, error: None,
    ) -> None:
        """`is_empty`: the log certainly has no frame. `on_failed`: the file cannot be saved."""
        self.group_id = b""  # empty: unknown
        self._file = file
        self._is_empty = is_empty
        self._on_failed = on_failed
        self._listeners: list[Callable[[], None]] = []
        self._taken = b""  # from a peer; counts when it is durable
        self._saved = b""
        self._saving: asyncio.Future[None] | None = None
        self._pool: Executor | None = None
        self._parted: dict[NodeId, tuple[float, str]] = {}  # of another history: end time, reason
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

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the id becomes known or changes."""
        self._listeners.append(listener)

    def start(self, pool: Executor) -> None:
        self._pool = pool

    async def stop(self) -> None:
        while self._saving is not None:
            await asyncio.wait([self._saving])
        self._pool = None
        if self._file is not None:
            self._file.close()

    def applied(self, before: bytes, now: bytes) -> None:
        """Note that the applied group id changed from `before` to `now` (empty: none)."""
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
        """Return why the two must disconnect, or "". May start to adopt the peer's id."""
        until_ms, reason = self._parted.get(meeting.peer, (0.0, ""))
        if now_ms < until_ms:
            return reason
        theirs = meeting.theirs
        if not theirs:
            return ""
        if self.group_id:
            return "" if theirs == self.group_id else self._refuse_foreign(meeting, now_ms)
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

    def disconnect(self, peer: NodeId, reason: str, now_ms: float) -> None:
        """Accept no connection with `peer` for PARTED_MS, because it has another history."""
        self._parted[peer] = now_ms + PARTED_MS, reason
        if self._note((peer, b"", True), reason, now_ms):
            log.error("other_history %s", reason, extra=FROM_PEER)

    def parted(self, now_ms: float) -> set[NodeId]:
        """Return the peers that are disconnected for their history."""
        return {peer for peer, (until_ms, _) in self._parted.items() if now_ms < until_ms}

    def doubled(self, peer: NodeId, addresses: tuple[str, str], now_ms: float) -> None:
        """Note that two processes use the id `peer`, from these addresses (host:port)."""
        text = (
            f"two processes say that they are {peer}, from {addresses[0]} and {addresses[1]}: stop"
            " the one whose dLegerSelfId is wrong"
        )
        if self._note((peer, b"", False), text, now_ms):
            log.warning("same_id_twice %s", text, extra=FROM_PEER)

    def founders_differ(self, peer: NodeId, text: str, now_ms: float) -> None:
        """Note that a peer has different founders (dledger/node/peer_info.py), or with an empty
        text that they agree now."""
        key = peer, b"founders", False
        if not text:
            self._foreign.pop(key, None)
        elif self._note(key, text, now_ms):
            log.warning("founders_differ %s", text, extra=FROM_PEER)

    def foreign(self, now_ms: float) -> list[str]:
        """Return the texts of the last FOREIGN_MS about refused peers of other groups, ids of two
        processes, and different founders."""
        for key, (seen_ms, _) in list(self._foreign.items()):
            if now_ms - seen_ms > FOREIGN_MS:
                del self._foreign[key]
        return [text for _, text in self._foreign.values()]

    def status(self, now_ms: float) -> dict[str, object]:
        """Return `group_id` in hex (None if unknown) and `foreign`, for the status."""
        return {"group_id": self.group_id.hex() or None, "foreign": self.foreign(now_ms)}

    def _refuse_foreign(self, meeting: Meeting, now_ms: float) -> str:
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
        group_id = self.group_id or self._taken
        if self._file is None or self._pool is None or self._saving is not None:
            return
        if group_id == self._saved:
            return
        loop = asyncio.get_running_loop()
        self._saving = loop.run_in_executor(self._pool, self._file.save, group_id)
        self._saving.add_done_callback(lambda done: self._saved_it(done, group_id))

    def _saved_it(self, done: asyncio.Future[None], content: bytes) -> None:
        self._saving = None
        error = done.exception()
        if passes(error):
            # As with the log, wait for resources. Until then the id is the applied id, and none is
            # accepted from a peer.
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
    """Return the group id's file in a replica's directory (dledger.settings)."""
    return SlotFile(disk, f"{directory}/{FILE}")
