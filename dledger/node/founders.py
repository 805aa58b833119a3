"""Compares with what the replicas of a group found it: with which members and segments. Shell.

The founding configuration comes from each replica's own broker.conf and is in no frame, so replicas
may have different ones. One whose file names it alone founds a group at once, and acknowledges
alone what its operator believes to have three copies. So the replicas tell each other the ids of
the founding configuration while it is in force (`TOLD_AS`, among the settings of their
Circumstances). Two lists concern each other if one has the other's replica in it. If such lists
differ,

- both replicas say so to operators, whoever of them is right;
- one without a frame neither founds nor votes, and takes no frames by the wrong list: its file can
  still be corrected (`RaftCore.founders_differ`). One with frames goes on.

Nobody waits to be told: a group of one founds at once. From the first change of members on the log
says who they are, and nothing is told or compared; nor by a replica that is to join. Addresses may
differ.

The same holds for the size of segments, which says where frames may stand: a replica with another
one would vote and acknowledge until the first segment is full, and refuse every frame from then on.
A replica without a frame waits until its size and that of every founder are alike, or, if it is to
join, that of everybody who tells it. With frames it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..raft.core import RaftCore
from ..raft.messages import NodeId

TOLD_AS = "founders"  # no setting has this name
SEGMENT_SIZE = "mappedFileSizeCommitLog"
_APART = ";"  # as in dLegerPeers; no id has it
_SIZE_MAX = 256  # characters of a list; what is behind is neither told nor compared
TOLD_BY_MAX = 32  # replicas that differ; more are not looked at

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Heard:
    """The settings that a peer has told last, its founders among them, and when it told them."""

    settings: Settings
    at_ms: float


class Founders:
    """The founders of one replica's group, against those of its peers' groups."""

    def __init__(
        self,
        core: RaftCore,
        settings: Callable[[], Settings],
        differ: Callable[[NodeId, str], None],
        known_ms: float,
    ) -> None:
        """`settings` returns this replica's. `differ(peer, text)` is called whenever a peer tells
        what differs, which is believed for `known_ms`, and with no text when it does not any
        more."""
        self._core = core
        self._settings = settings
        self._differ = differ
        self._known_ms = known_ms
        self._heard: dict[NodeId, _Heard] = {}  # from the peers that differ

    @property
    def told(self) -> dict[str, str]:
        """What this replica tells its peers, as a setting."""
        own = self._own
        return {TOLD_AS: _told(own)} if own else {}

    @property
    def differing(self) -> list[NodeId]:
        """The peers that differ; not all of them are members."""
        return list(self._heard)

    def take(self, sender: NodeId, settings: Settings, now_ms: float) -> None:
        """Note what a peer has told: its settings, with its founders."""
        text = self._text(sender, settings)
        if not text:
            self._forget(sender)
        elif sender in self._heard or len(self._heard) < TOLD_BY_MAX:
            self._heard[sender] = _Heard(settings, now_ms)
            self._differ(sender, text)
        self._decide()

    def look(self, now_ms: float) -> None:
        """Forget those that are silent, and those that differ no more: the log says who the members
        are, or there is one."""
        for peer, heard in list(self._heard.items()):
            if now_ms - heard.at_ms >= self._known_ms or not self._text(peer, heard.settings):
                self._forget(peer)
        self._decide()

    @property
    def _own(self) -> frozenset[NodeId]:
        configurations = self._core.membership.configurations
        return frozenset() if configurations.index else configurations.current.ids

    def _forget(self, peer: NodeId) -> None:
        if self._heard.pop(peer, None) is not None:
            self._differ(peer, "")

    def _decide(self) -> None:
        self._core.election.founders_differ = bool(self._heard)

    def _text(self, peer: NodeId, settings: Settings) -> str:
        """Return what differs at a peer, and what follows; "" if nothing does."""
        own, told = self._own, settings.get(TOLD_AS, "")
        theirs = frozenset(told.split(_APART)) if told else frozenset[NodeId]()
        concerned = bool(own and theirs) and (peer in own or self._core.node_id in theirs)
        if concerned and told != _told(own):
            return self._lists_differ(peer, own, theirs)
        if not own or peer in own:
            return self._sizes_differ(peer, settings)
        return ""

    def _lists_differ(self, peer: NodeId, own: frozenset[NodeId], theirs: frozenset[NodeId]) -> str:
        node_id = self._core.node_id
        text = f"dLegerPeers names {_listed(theirs)} at {peer}, and {_listed(own)} at {node_id}"
        if not self._core.last_index:
            return f"{text}: {node_id} founds no group until both are alike"
        lacking = f" without {peer}" if peer not in own else ""
        return f"{text}, which has founded its group{lacking}: correct the wrong one"

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


def _told(ids: frozenset[NodeId]) -> str:
    return _APART.join(sorted(ids))[:_SIZE_MAX]


def _listed(ids: frozenset[NodeId]) -> str:
    return ", ".join(sorted(ids))
