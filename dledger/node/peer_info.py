"""Peer information that the replicas of a group exchange, and the conclusions from it.

Each replica sends a PeerInfo (dledger/transport/peer_info_message.py) to its peers on a new link,
when its expired position or the doubt about its clock changes, and every SEND_INTERVAL_MS. A peer's
report is forgotten after KNOWN_MS without another report.

**Expiry.** Retention follows a majority. Otherwise a replica with a fast clock or a short retention
time would delete messages that the others keep, and hide them once it leads. So a log is trimmed by
age only as far as it has expired on a majority of voters, this replica among them. Only age counts.
Messages that a replica deleted because of a full disk have not expired there.

**Clocks.** If a replica's clock contradicts the time of its own log (store.retention), it reports
by how much, and its clock is no evidence against other clocks. Differences are logged.

**Settings** that should be equal in a group are compared, and differences are logged.

**Founders.** The founding configuration comes from each replica's own broker.conf and is in no
frame, so replicas may have different founders. A replica with only itself in its file would found a
group at once, and acknowledge alone messages that should have three copies. So replicas report
their founders until the first change of members. Two lists are compared if one contains the other
list's replica. If they differ, both replicas log it, and a replica without a frame neither founds
nor votes nor accepts frames, because its file can still be corrected. A replica with frames
continues. A replica that is to join has no founders, and addresses may differ. Replicas without
frames also wait while the segment sizes differ, because a replica with a different size would
refuse all frames behind the first segment.

**Committed frames.** A leader's `PrevFrame` (dledger.raft.follower) is compared where its frames
join a follower's. Two followers would never compare, and yet one may repair the other's log. So
each report has the last committed frame. If the receiver has committed a different frame of that
index, the two have different histories and disconnect (dledger.transport.group_id).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..raft.configuration import MEMBERS_MAX
from ..raft.core import RaftCore
from ..raft.errors import other_history
from ..raft.messages import NodeId
from ..storage.log_storage import RaftLog
from ..transport.network import FROM_PEER
from ..transport.peer_info_message import (
    CommittedFrame,
    PeerInfo,
    ReplicaState,
    Settings,
    cut_settings,
)
from .standstill import Extent

log = logging.getLogger("raftmq.dledger.node.peer_info")

SEND_INTERVAL_MS = 5_000
KNOWN_MS = 6 * SEND_INTERVAL_MS
CLOCKS_APART_MS = 60_000  # small next to hours of retention and delays of minutes
SEGMENT_SIZE = "mappedFileSizeCommitLog"
DIFFERING_MAX = 32  # peers with other founders; more are ignored


@dataclass(slots=True)
class _Peer:
    """The last report of a peer."""

    state: ReplicaState
    ahead_ms: int  # lead of the peer's clock over this replica's
    last_ahead_ms: int = 0  # the same, by the last messages alone
    heard_ms: float = 0.0  # the last report, by the clock that never goes back
    judged_ms: float = 0.0  # the last report by which the clock was judged
    is_apart: bool = False  # its clock
    settings_differ: dict[str, tuple[str, str]] = field(default_factory=dict)  # key → (there, here)


class PeerInfoExchange:
    """Exchanges PeerInfo messages for one member. All methods run on the loop."""

    def __init__(
        self,
        core: RaftCore,
        log: RaftLog,
        settings: Callable[[], Settings],
        wall_ms: Callable[[], int],
        committed: Callable[[], int],
        send: Callable[[PeerInfo], None],
        founders_differ: Callable[[NodeId, str], None],
    ) -> None:
        """`settings` returns this replica's, which may change. `committed()` is the last committed
        frame in the log's files, which may be behind the core's (Applier.commit_index).
        `founders_differ` is for `Founders`."""
        self._core = core
        self._log = log
        self._settings = settings
        self._wall_ms = wall_ms
        self._committed = committed
        self._send = send
        self._founders = Founders(core, settings, founders_differ, KNOWN_MS)
        self._peers: dict[NodeId, _Peer] = {}
        self.extents: dict[NodeId, Extent] = {}  # of the peers' logs, by their last reports
        self._expired_position = 0
        self._agreed_position = 0  # a majority has agreed up to here since the start
        self._lead_ms = 0  # of this clock over the time of the log
        self._doubted_ms = 0.0  # the last time when that was 0, or the first
        self._now_ms = 0.0
        self._due_ms = 0.0

    def completed(self, info: PeerInfo) -> PeerInfo:
        """Return the message with this replica's state and last committed frame."""
        core = self._core
        return replace(info, term=core.term, state=self._state(), committed=self._committed_frame())

    def tick(self, now_ms: float) -> None:
        """Report to all peers if that is due, and forget silent peers and former members."""
        self._now_ms = now_ms
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + SEND_INTERVAL_MS
            peers = self._core.membership.peers
            self._peers = {
                name: peer
                for name, peer in self._peers.items()
                if name in peers and now_ms - peer.heard_ms < KNOWN_MS
            }
            self._founders.tick(now_ms)
            info = self.completed(PeerInfo(self._core.node_id, ""))
            for peer in dict.fromkeys((*peers, *self._founders.differing)):
                self._send(replace(info, to=peer))

    def take(self, info: PeerInfo) -> None:
        """Handle a peer's report. Raises OtherHistory."""
        if info.state is not None:
            self._take_state(info.sender, info.state)
        if info.committed is not None:
            self._compare_committed(info.sender, info.committed)

    @property
    def own_extent(self) -> Extent:
        core = self._core
        return Extent(core.last_term, core.last_index, core.recovered)

    def status(self, peer: NodeId) -> dict[str, object]:
        """Return the last report of a peer: `ahead_ms`, its clock's lead over this clock;
        `first_position`, the start of its log; `settings_differ`, key → (there, here)."""
        known = self._peers.get(peer)
        return {
            "ahead_ms": None if known is None else known.ahead_ms,
            "first_position": None if known is None else known.state.first_position,
            "settings_differ": {} if known is None else dict(known.settings_differ),
        }

    # -- expiry -----------------------------------------------------------------------------

    def agree(self, expired_position: int) -> int:
        """Note the position up to which this log has expired by this replica's clock and settings,
        or 0. Return the position up to which it has also expired for a majority of voters."""
        own = max(expired_position, self._agreed_position)
        if own != self._expired_position:
            self._expired_position = own
            self._due_ms = 0.0
        node_id, voters = self._core.node_id, self._core.membership.voters
        expired = [own if voter == node_id else self._expired(voter) for voter in voters]
        expired.sort(reverse=True)
        agreed = min(own, expired[len(expired) // 2]) if expired else own
        self._agreed_position = max(self._agreed_position, agreed)
        return self._agreed_position

    def _expired(self, voter: NodeId) -> int:
        known = self._peers.get(voter)
        return 0 if known is None else known.state.expired_position

    # -- clocks -----------------------------------------------------------------------------

    def doubt_clock(self, lead_ms: int) -> None:
        """Note the lead of this replica's clock over the time of its log, or 0."""
        if bool(lead_ms) != bool(self._lead_ms):
            self._due_ms, self._doubted_ms = 0.0, self._now_ms
        self._lead_ms = lead_ms

    @property
    def clock_is_confirmed(self) -> bool:
        """True if the clocks of other replicas, a majority of all voters, agree with this clock and
        with their own logs. Clocks may jump together, so only messages count that were sent some
        time after the doubt arose."""
        voters = self._core.membership.voters
        if self._now_ms - self._doubted_ms < KNOWN_MS:
            return False
        since_ms = self._doubted_ms + 2 * SEND_INTERVAL_MS
        agreeing = [
            name
            for name, peer in self._peers.items()
            if name in voters
            and peer.heard_ms >= since_ms
            and not peer.state.clock_lead_ms
            and abs(peer.ahead_ms) <= CLOCKS_APART_MS
        ]
        return 2 * len(agreeing) > len(voters)

    @property
    def clock_is_wrong(self) -> bool:
        """True if this replica's clock is wrong (`is_wrong_at`)."""
        return self.is_wrong_at(self._core.node_id)

    def is_wrong_at(self, node_id: NodeId) -> bool:
        """Return whether a replica's clock is wrong.

        It is wrong if the clocks of a majority of voters agree with each other and not with it. It
        is also wrong if its own log contradicts it, and a clock that differs from it agrees with
        its own log."""
        ahead_ms = {name: peer.ahead_ms for name, peer in self._peers.items()}
        ahead_ms[self._core.node_id] = 0
        doubted = {name for name, peer in self._peers.items() if peer.state.clock_lead_ms}
        if self._lead_ms:
            doubted.add(self._core.node_id)
        voters = self._core.membership.voters
        ahead = [at for name, at in ahead_ms.items() if name in voters and name not in doubted]
        needed = 0 if node_id in doubted else len(voters) // 2
        return node_id in ahead_ms and any(
            sum(abs(other - one) <= CLOCKS_APART_MS for other in ahead) > needed
            for one in ahead
            if abs(one - ahead_ms[node_id]) > CLOCKS_APART_MS
        )

    def _compare_clocks(self, sender: NodeId, peer: _Peer, ahead_ms: int) -> None:
        """Judge by two messages that arrived at different times. A message that was delayed, as
        while a process was frozen, looks like a slow clock."""
        least = min(peer.last_ahead_ms, ahead_ms, key=abs)
        if self._now_ms - peer.judged_ms < SEND_INTERVAL_MS / 2:
            peer.last_ahead_ms = least
            return
        peer.ahead_ms, peer.last_ahead_ms, peer.judged_ms = least, ahead_ms, self._now_ms
        is_apart = abs(peer.ahead_ms) > CLOCKS_APART_MS
        if is_apart and not peer.is_apart:
            log.warning(
                "clocks_differ peer=%s ahead_s=%+d: one of the two is wrong",
                sender,
                peer.ahead_ms // 1000,
                extra=FROM_PEER,
            )
        elif peer.is_apart and not is_apart:
            log.info("clocks_agree peer=%s", sender, extra=FROM_PEER)
        peer.is_apart = is_apart

    # -- the replicas' states ---------------------------------------------------------------

    def _state(self) -> ReplicaState:
        extent = self.own_extent
        return ReplicaState(
            self._wall_ms(),
            self._lead_ms,
            self._log.commitlog.min_offset,
            self._expired_position,
            extent.term,
            extent.index,
            extent.recovered,
            self._founders.sent,
            self._settings(),
        )

    def _take_state(self, sender: NodeId, state: ReplicaState) -> None:
        self._founders.take(sender, state, self._now_ms)
        if sender not in self._core.membership.peers:
            return
        ahead_ms, before = state.wall_ms - self._wall_ms(), self._peers.get(sender)
        peer = self._peers[sender] = before or _Peer(state, ahead_ms, ahead_ms)
        peer.state, peer.heard_ms = state, self._now_ms
        self.extents[sender] = Extent(state.last_term, state.last_index, state.recovered)
        self._compare_clocks(sender, peer, ahead_ms)
        self._compare_settings(sender, peer, state.settings)

    def _compare_settings(self, sender: NodeId, peer: _Peer, there: Settings) -> None:
        here = cut_settings(self._settings())
        differences = {
            key: (there[key], value)
            for key, value in here.items()
            if key in there and there[key] != value
        }
        if differences and differences != peer.settings_differ:
            text = "; ".join(
                f"{key} is {a!r} there, {b!r} here" for key, (a, b) in differences.items()
            )
            log.warning("settings_differ peer=%s %s", sender, text, extra=FROM_PEER)
        elif peer.settings_differ and not differences:
            log.info("settings_agree peer=%s", sender, extra=FROM_PEER)
        peer.settings_differ = differences

    # -- committed frames -------------------------------------------------------------------

    @property
    def _committed_index(self) -> int:
        return min(self._committed(), self._log.index.last_index)

    def _committed_frame(self) -> CommittedFrame | None:
        index = self._committed_index
        crc = self._log.header_crc(index)
        return None if crc is None else CommittedFrame(index, self._log.index.term_at(index), crc)

    def _compare_committed(self, sender: NodeId, frame: CommittedFrame) -> None:
        log, index = self._log.index, frame.index
        if not log.first_index <= index <= self._committed_index:
            return
        term, own = log.term_at(index), self._log.header_crc(index)
        if term != frame.term or (own is not None and own != frame.header_crc):
            raise other_history(sender, self._core.node_id, index, frame.term, term)


@dataclass(frozen=True, slots=True)
class _Report:
    """The last report of a peer with different founders or segments."""

    state: ReplicaState
    at_ms: float


class Founders:
    """Compares the founders of one replica's group with those that peers report."""

    def __init__(
        self,
        core: RaftCore,
        settings: Callable[[], Settings],
        differ: Callable[[NodeId, str], None],
        known_ms: float,
    ) -> None:
        """`settings` returns this replica's. `differ(peer, text)` is called for each report that
        differs, which counts for `known_ms`, and without a text when nothing differs any more."""
        self._core = core
        self._settings = settings
        self._differ = differ
        self._known_ms = known_ms
        self._reports: dict[NodeId, _Report] = {}  # from the peers that differ

    @property
    def sent(self) -> tuple[NodeId, ...]:
        """The founders that this replica reports; empty once the log defines the members."""
        configurations = self._core.membership.configurations
        ids: Iterable[NodeId] = () if configurations.index else configurations.current.ids
        return tuple(sorted(ids))[:MEMBERS_MAX]

    @property
    def differing(self) -> list[NodeId]:
        """The peers that differ; not all of them are members."""
        return list(self._reports)

    def take(self, sender: NodeId, state: ReplicaState, now_ms: float) -> None:
        text = self._difference(sender, state)
        if not text:
            self._forget(sender)
        elif sender in self._reports or len(self._reports) < DIFFERING_MAX:
            self._reports[sender] = _Report(state, now_ms)
            self._differ(sender, text)
        self._decide()

    def tick(self, now_ms: float) -> None:
        """Forget silent peers, and peers that no longer differ because the log has changed."""
        for peer, report in list(self._reports.items()):
            if now_ms - report.at_ms >= self._known_ms or not self._difference(peer, report.state):
                self._forget(peer)
        self._decide()

    def _forget(self, peer: NodeId) -> None:
        if self._reports.pop(peer, None) is not None:
            self._differ(peer, "")

    def _decide(self) -> None:
        self._core.election.founders_differ = bool(self._reports)

    def _difference(self, peer: NodeId, state: ReplicaState) -> str:
        own, theirs = self.sent, state.founders
        concerned = bool(own and theirs) and (peer in own or self._core.node_id in theirs)
        if concerned and theirs != own:
            return self._lists_differ(peer, own, theirs)
        if not own or peer in own:
            return self._sizes_differ(peer, state.settings)
        return ""

    def _lists_differ(
        self, peer: NodeId, own: tuple[NodeId, ...], theirs: tuple[NodeId, ...]
    ) -> str:
        node_id = self._core.node_id
        text = f"dLegerPeers names {', '.join(theirs)} at {peer}, and {', '.join(own)} at {node_id}"
        if not self._core.last_index:
            return f"{text}: {node_id} founds no group until both are alike"
        missing = f" without {peer}" if peer not in own else ""
        return f"{text}, which has founded its group{missing}: correct the wrong one"

    def _sizes_differ(self, peer: NodeId, settings: Settings) -> str:
        node_id = self._core.node_id
        here = self._settings().get(SEGMENT_SIZE, "")
        there = settings.get(SEGMENT_SIZE, here)
        if self._core.last_index or not here or there == here:
            return ""
        return (
            f"{SEGMENT_SIZE} is {there} at {peer}, and {here} at {node_id}: {node_id}, which is"
            " empty, takes no part until both are alike"
        )
