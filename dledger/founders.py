"""Compares by which members the replicas of a group found it. Shell.

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
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.dledger.core import RaftCore
from raftmq.dledger.messages import NodeId

TOLD_AS = "founders"  # no setting has this name
_APART = ";"  # as in dLegerPeers; no id has it
_SIZE_MAX = 256  # characters of a list; what is behind is neither told nor compared
TOLD_BY_MAX = 32  # replicas whose lists differ; more are not looked at


class Founders:
    """The founders of one replica's group, against those of its peers' groups."""

    def __init__(
        self, core: RaftCore, differ: Callable[[NodeId, str], None], known_ms: float
    ) -> None:
        """`differ(peer, text)` is called whenever a peer tells of other founders, which is
        believed for `known_ms`, and with no text when it does not any more."""
        self._core = core
        self._differ = differ
        self._known_ms = known_ms
        self._heard_ms: dict[NodeId, float] = {}  # the peers that have others; when they said so

    @property
    def told(self) -> dict[str, str]:
        """What this replica tells its peers, as a setting."""
        own = self._own
        return {TOLD_AS: _told(own)} if own else {}

    @property
    def differing(self) -> list[NodeId]:
        """The peers whose founders are others; not all of them are members."""
        return list(self._heard_ms)

    def take(self, sender: NodeId, told: str, now_ms: float) -> None:
        """Note the founders that a peer has told; "": none."""
        node_id, own = self._core.node_id, self._own
        theirs = frozenset(told.split(_APART)) if told else frozenset[NodeId]()
        concerned = bool(own and theirs) and (sender in own or node_id in theirs)
        if not concerned or told == _told(own):
            self._forget(sender)
        elif sender in self._heard_ms or len(self._heard_ms) < TOLD_BY_MAX:
            self._heard_ms[sender] = now_ms
            self._differ(sender, self._text(sender, own, theirs))
        self._decide()

    def look(self, now_ms: float) -> None:
        """Forget those that are silent, and all once the log says who the members are."""
        for peer, heard_ms in list(self._heard_ms.items()):
            if not self._own or now_ms - heard_ms >= self._known_ms:
                self._forget(peer)
        self._decide()

    @property
    def _own(self) -> frozenset[NodeId]:
        configurations = self._core.membership.configurations
        return frozenset() if configurations.index else configurations.current.ids

    def _forget(self, peer: NodeId) -> None:
        if self._heard_ms.pop(peer, None) is not None:
            self._differ(peer, "")

    def _decide(self) -> None:
        self._core.founders_differ = bool(self._heard_ms)

    def _text(self, peer: NodeId, own: frozenset[NodeId], theirs: frozenset[NodeId]) -> str:
        node_id = self._core.node_id
        text = f"dLegerPeers names {_listed(theirs)} at {peer}, and {_listed(own)} at {node_id}"
        if not self._core.last_index:
            return f"{text}: {node_id} founds no group until both are alike"
        lacking = f" without {peer}" if peer not in own else ""
        return f"{text}, which has founded its group{lacking}: correct the wrong one"


def _told(ids: frozenset[NodeId]) -> str:
    return _APART.join(sorted(ids))[:_SIZE_MAX]


def _listed(ids: frozenset[NodeId]) -> str:
    return ", ".join(sorted(ids))
