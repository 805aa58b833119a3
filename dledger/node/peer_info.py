"""What the replicas of a group tell each other of their circumstances, and what follows. Shell.

Each says its wall clock, where its log begins, what of it has expired by its clock and settings,
and those settings that should be alike: on a new link, when its expired position changes, and every
TOLD_MS. A difference is told to operators; it ends nothing. What a peer does not repeat for
KNOWN_MS is forgotten.

Retention follows a majority: one replica whose clock is ahead, or whose file says a shorter time,
would otherwise delete what the others keep, and hide it when it comes to lead. So a log is trimmed
by age only as far as it has expired on a majority of voters, this replica being one of those that
have to agree. What counts is age alone: what a full disk made another replica delete has not
expired there. A voter that has told nothing lately agrees to nothing; one whose program is too old
to tell does not count.

A majority may be wrong, too. A replica whose clock is not the time of its own log (store.retention)
sends by how much, and its clock is no evidence against another's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..raft.core import RaftCore
from ..raft.messages import NodeId
from ..storage.log_storage import RaftLog
from ..transport.network import FROM_PEER
from ..transport.wire import (
    CIRCUMSTANCES_VERSION,
    SETTINGS_SIZE_BYTES_MAX,
    Circumstances,
)
from .founders import Founders, Settings
from .standstill import Extent, decode_extent

log = logging.getLogger("raftmq.dledger.node.peer_info")

EXTENT = "extent"  # of the sender's log, among the settings; no setting has this name
TOLD_MS = 5_000
KNOWN_MS = 6 * TOLD_MS
CLOCKS_APART_MS = 60_000  # next to hours of age and delays of minutes, less does not matter
LEAD = "clockAheadOfLogMs"  # sent among the settings; no setting has this name
VALUE_SIZE_MAX = 256  # characters of a setting's value; what is behind is not compared


@dataclass(slots=True)
class _Peer:
    """What one peer told last."""

    told: Circumstances
    ahead_ms: int  # by so much its clock is ahead of this one's
    last_ahead_ms: int = 0  # the same of its last messages alone
    heard_ms: float = 0.0  # the last one, by the clock that never goes back
    judged_ms: float = 0.0  # the last one that its clock was judged by
    is_apart: bool = False  # its clock
    is_doubted: bool = False  # its clock, by its own log
    differing: dict[str, tuple[str, str]] = field(default_factory=dict)  # key → (there, here)


class Surroundings:
    """The circumstances of one member and its peers. All methods run on the loop."""

    def __init__(
        self,
        core: RaftCore,
        log: RaftLog,
        settings: Callable[[], Settings],
        wall_ms: Callable[[], int],
        version: Callable[[NodeId], int],
        send: Callable[[Circumstances], None],
        founders_differ: Callable[[NodeId, str], None],
    ) -> None:
        """`settings` returns this replica's, which may change. `version(peer)` is that of the
        peer's protocol, 0 if it was never reached. `founders_differ` is for `Founders`."""
        self._core = core
        self._log = log
        self._settings = settings
        self._wall_ms = wall_ms
        self._version = version
        self._send = send
        self._founders = Founders(core, settings, founders_differ, KNOWN_MS)
        self._peers: dict[NodeId, _Peer] = {}
        self.extents: dict[NodeId, Extent] = {}  # of the peers, as reported last
        self._expired_position = 0
        self._agreed_position = 0  # so far a majority has agreed since the start
        self._lead_ms = 0  # by so much this clock is ahead of the log's own time
        self._doubted_ms = 0.0  # when that was 0 last, or first
        self._now_ms = 0.0
        self._due_ms = 0.0

    def opened(self, peer: NodeId) -> None:
        """Tell the peer on a new link."""
        self._tell((peer,))

    def look(self, now_ms: float) -> None:
        """Tell all peers, if it is time, and forget those that are silent, or no members any
        more."""
        self._now_ms = now_ms
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + TOLD_MS
            peers = self._core.membership.peers
            self._peers = {
                name: peer
                for name, peer in self._peers.items()
                if name in peers and now_ms - peer.heard_ms < KNOWN_MS
            }
            self._founders.look(now_ms)
            self._tell(dict.fromkeys((*peers, *self._founders.differing)))

    def agree(self, expired_position: int) -> int:
        """Note up to which position this log has expired by this replica's clock and settings; 0:
        nothing of it has. Return up to which it has, or had, for a majority of voters, too."""
        own = max(expired_position, self._agreed_position)
        if own != self._expired_position:
            self._expired_position = own
            self._due_ms = 0.0
        node_id, voters = self._core.node_id, self._core.membership.voters
        able = [
            v for v in voters if v == node_id or not 0 < self._version(v) < CIRCUMSTANCES_VERSION
        ]
        expired = [own if voter == node_id else self._expired(voter) for voter in able]
        expired.sort(reverse=True)
        agreed = min(own, expired[len(expired) // 2]) if expired else own
        self._agreed_position = max(self._agreed_position, agreed)
        return self._agreed_position

    def doubt_clock(self, lead_ms: int) -> None:
        """Note by how much this replica's clock is ahead of the log's own time; 0: they agree."""
        if bool(lead_ms) != bool(self._lead_ms):
            self._due_ms, self._doubted_ms = 0.0, self._now_ms
        self._lead_ms = lead_ms

    @property
    def clock_is_confirmed(self) -> bool:
        """True if the clocks of other replicas, a majority of all voters, agree with this one and
        with their own logs. Clocks may jump together, so only messages count that were sent some
        time after the doubt began."""
        voters = self._core.membership.voters
        if self._now_ms - self._doubted_ms < KNOWN_MS:
            return False
        since_ms = self._doubted_ms + 2 * TOLD_MS
        agreeing = [
            name
            for name, peer in self._peers.items()
            if name in voters
            and peer.heard_ms >= since_ms
            and not peer.is_doubted
            and abs(peer.ahead_ms) <= CLOCKS_APART_MS
        ]
        return 2 * len(agreeing) > len(voters)

    @property
    def clock_is_wrong(self) -> bool:
        """True if this replica's clock is wrong (`is_wrong_at`)."""
        return self.is_wrong_at(self._core.node_id)

    def is_wrong_at(self, node_id: NodeId) -> bool:
        """Return whether the clocks of a majority of voters are with each other, and that replica's
        is not with them; or its own log contradicts it, and another replica's clock is apart from
        it and agrees with its log. Elsewhere nobody can tell who is right."""
        told = {name: peer.ahead_ms for name, peer in self._peers.items()}
        told[self._core.node_id] = 0
        doubted = {name for name, peer in self._peers.items() if peer.is_doubted}
        if self._lead_ms:
            doubted.add(self._core.node_id)
        voters = self._core.membership.voters
        ahead = [at for name, at in told.items() if name in voters and name not in doubted]
        needed = 0 if node_id in doubted else len(voters) // 2
        return node_id in told and any(
            sum(abs(other - one) <= CLOCKS_APART_MS for other in ahead) > needed
            for one in ahead
            if abs(one - told[node_id]) > CLOCKS_APART_MS
        )

    def take(self, told: Circumstances) -> None:
        """Note what a peer tells."""
        sender, settings = told.sender, decode_settings(told.data)
        self._founders.take(sender, settings, self._now_ms)
        if sender not in self._core.membership.peers:
            return
        ahead_ms, before = told.wall_ms - self._wall_ms(), self._peers.get(sender)
        peer = self._peers[sender] = before or _Peer(told, ahead_ms, ahead_ms)
        peer.told, peer.heard_ms = told, self._now_ms
        peer.is_doubted = settings.get(LEAD, "0") != "0"
        extent = decode_extent(settings.get(EXTENT, ""))
        if extent is not None:
            self.extents[sender] = extent
        self._compare_clocks(sender, peer, ahead_ms)
        self._compare_settings(sender, peer, settings)

    @property
    def own_extent(self) -> Extent:
        """How far this replica's log reaches."""
        core = self._core
        return Extent(core.last_term, core.last_index, core.recovered)

    def status(self, peer: NodeId) -> dict[str, object]:
        """Return what is known of a peer: `ahead_ms`, its clock's lead over this one;
        `first_position`, where its log begins; `settings_differ`, key → (there, here)."""
        known = self._peers.get(peer)
        return {
            "ahead_ms": None if known is None else known.ahead_ms,
            "first_position": None if known is None else known.told.first_position,
            "settings_differ": {} if known is None else dict(known.differing),
        }

    def _expired(self, voter: NodeId) -> int:
        known = self._peers.get(voter)
        return 0 if known is None else known.told.expired_position

    def _compare_clocks(self, sender: NodeId, peer: _Peer, ahead_ms: int) -> None:
        """Judge by two messages that came at different times: one that lay here or there for long,
        as while a process was frozen, looks like a clock that is behind."""
        least = min(peer.last_ahead_ms, ahead_ms, key=abs)
        if self._now_ms - peer.judged_ms < TOLD_MS / 2:
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

    def _compare_settings(self, sender: NodeId, peer: _Peer, there: Settings) -> None:
        here = _cut(self._settings())
        differing = {
            key: (there[key], value)
            for key, value in here.items()
            if key in there and there[key] != value
        }
        if differing and differing != peer.differing:
            words = "; ".join(
                f"{key} is {a!r} there, {b!r} here" for key, (a, b) in differing.items()
            )
            log.warning("settings_differ peer=%s %s", sender, words, extra=FROM_PEER)
        elif peer.differing and not differing:
            log.info("settings_agree peer=%s", sender, extra=FROM_PEER)
        peer.differing = differing

    def _tell(self, peers: Iterable[NodeId]) -> None:
        first, expired = self._log.commitlog.min_offset, self._expired_position
        reach = {EXTENT: self.own_extent.encode()}
        lead = {LEAD: str(self._lead_ms)} if self._lead_ms else {}
        data = encode_settings({**reach, **self._founders.told, **lead, **self._settings()})
        wall_ms = self._wall_ms()
        for peer in peers:
            self._send(Circumstances(self._core.node_id, peer, wall_ms, first, expired, data))


def encode_settings(settings: Settings) -> bytes:
    """Encode settings as lines `key=value`, as many as have room."""
    lines: list[bytes] = []
    size = 0
    for key, value in _cut(settings).items():
        line = f"{key}={value}\n".encode()
        size += len(line)
        if size > SETTINGS_SIZE_BYTES_MAX:
            break
        lines.append(line)
    return b"".join(lines)


def decode_settings(data: bytes) -> dict[str, str]:
    """Return the settings of such lines; whatever is no such line is left out."""
    pairs = [line.split("=", 1) for line in data.decode(errors="replace").split("\n")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _cut(settings: Settings) -> dict[str, str]:
    return {key: value.replace("\n", " ")[:VALUE_SIZE_MAX] for key, value in settings.items()}
