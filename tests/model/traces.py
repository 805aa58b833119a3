"""Records what the real core does in a run of the simulator, as events of the model.

The world is the simulator's, with its faults; a recorder listens where the checker does. Each event
is a step of the model that RecoveryTrace.tla names, and after each step of the core its state is
compared (`is`). Worlds whose files rot are left out: the model has no damage that a peer mends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raftmq.dledger.configuration import decode_configuration
from raftmq.dledger.messages import AppendResponse, HeartbeatResponse, Role, VoteResponse
from raftmq.dledger.wire import PeerMessage
from raftmq.store.frame import Frame, FrameKind
from tests.simulator.checks import Checker
from tests.simulator.node import SimNode
from tests.simulator.world import World

NOBODY = "nobody"
Event = tuple[object, ...]


@dataclass(slots=True)
class Seen:
    """A replica as the events so far make it. `terms`: of its frames; `kept`: how many of them it
    has said to be durable."""

    term: int = 0
    vote: str = NOBODY
    recovered: bool = False
    terms: list[int] = field(default_factory=list)
    kept: int = 0
    commit: int = 0
    said: tuple[int, bool, int] = (0, False, 0)  # term, recovered, index acknowledged
    writing: tuple[Frame, ...] = ()  # its process may die of it
    writing_term: int = 0  # of the leader whose frames it writes, or makes room for; 0: none
    leads: bool = False  # it is itself that leader
    compared: Event = ()


class Recorder:
    """The events of one world, in the order in which they happened."""

    def __init__(self, world: World) -> None:
        self.events: list[Event] = []
        self._seen = {name: Seen() for name in world.members.names}
        self._candidates: dict[tuple[int, str], int] = {}  # (term, name) -> incarnation
        self._won: set[tuple[int, str, int]] = set()
        self._met: set[tuple[object, ...]] = set()

    def _note(self, *event: object) -> None:
        self.events.append(event)

    # -- beginnings of processes ----------------------------------------------------------------

    def started(self, node: SimNode) -> None:
        """Its process is there again, with what it finds on its disk."""
        seen, core, name = self._seen[node.name], node.core, node.name
        index, incarnation = node.log.index, node.incarnation
        terms = [index.term_at(at) for at in range(1, index.last_index + 1)]
        length = len(terms)
        torn = 0
        if terms != seen.terms[:length] or length < seen.kept:
            if seen.leads or 0 < seen.writing_term <= core.term:
                self._written(name, seen)
            else:
                torn = seen.writing_term
        seen.writing, seen.writing_term = (), 0
        if not torn and core.term >= seen.term and core.recovered >= seen.recovered:
            self._keep_up(node, seen)
            vote = core.ballot.voted_for
            if vote not in (None, name, seen.vote) and (core.term, vote) in self._candidates:
                self._note("grant", name, core.term, vote, self._candidates[core.term, vote])
        saved = node.saved or (0, node.founding)
        file = (saved[0], saved[1].voters)
        if torn and core.recovered == seen.recovered:
            self._note("torn", name, incarnation, torn, length, file)
        elif (
            (core.recovered, core.term) == (seen.recovered, seen.term)
            and seen.kept <= length
            and seen.terms[:length] == terms
        ):
            self._note("restart", name, incarnation, length, file)
        else:
            vote = core.ballot.voted_for or NOBODY
            self._note("lose", name, incarnation, length, core.term, vote, file)
        kept = min(seen.kept, length)
        self._seen[name] = Seen(core.term, NOBODY, core.recovered, terms, kept)
        self._is(node)

    # -- steps ----------------------------------------------------------------------------------

    def truncating(self, node: SimNode) -> None:
        seen = self._keep_up(node)
        seen.writing_term = node.core.term

    def appending(self, node: SimNode, frames: Sequence[Frame]) -> None:
        """Its process writes frames; noted once it has, since it may die of that."""
        seen = self._keep_up(node)
        seen.writing, seen.writing_term = tuple(frames), node.core.term
        seen.leads = node.core.role is Role.LEADER

    def voted(self, node: SimNode, vote: VoteResponse) -> None:
        self._keep_up(node)
        self._note("grant", node.name, vote.request_term, vote.to, vote.request_incarnation)

    def sent(self, node: SimNode, message: PeerMessage) -> None:
        seen = self._keep_up(node)
        if isinstance(message, AppendResponse) and not message.success:
            return
        if isinstance(message, AppendResponse | HeartbeatResponse):
            if message.request_term == message.term:
                self._acknowledge(node, seen, message.match_index)

    def after_step(self, node: SimNode) -> None:
        seen = self._keep_up(node)
        if node.core.commit_index > seen.commit:
            seen.commit = node.core.commit_index
            self._note("commit", node.name, seen.commit)
        self._is(node)

    def _keep_up(self, node: SimNode, seen: Seen | None = None) -> Seen:
        """Note what its core has done since the last event."""
        core, name = node.core, node.name
        seen = seen or self._seen[name]
        self._written(name, seen)
        term, me = core.term, (core.term, name, core.ballot.incarnation)
        if term > seen.term:
            if core.ballot.voted_for == name:
                self._candidates[term, name] = core.ballot.incarnation
                self._note("campaign", name, term)
            else:
                self._note("observe", name, term)
            seen.term, seen.vote = term, NOBODY
        if core.role is Role.LEADER:
            self._lead(node, seen, me)
        if core.recovered and not seen.recovered:
            self._note("recover", name)
            seen.recovered = True
            if core.role is Role.LEADER:  # now its own copy counts
                self._acknowledge(node, seen, core.durable_index)
        return seen

    def _lead(self, node: SimNode, seen: Seen, me: tuple[int, str, int]) -> None:
        if me not in self._won:
            self._won.add(me)
            self._note("win", node.name)
        for peer, progress in node.core.progress.items():
            barrier = progress.barrier_index
            met = (*me, peer, progress.recovering, barrier)
            if progress.recovering and barrier and met not in self._met:
                self._met.add(met)
                self._note("meet", node.name, peer, progress.recovering, barrier)
        self._acknowledge(node, seen, node.core.durable_index)

    def _written(self, name: str, seen: Seen) -> None:
        frames, term = seen.writing, seen.writing_term
        seen.writing, seen.writing_term = (), 0
        if not frames:
            return
        del seen.terms[frames[0].index - 1 :]
        seen.terms += [frame.term for frame in frames]
        seen.kept = min(seen.kept, frames[0].index - 1)
        if not seen.leads:
            self._note("follow", name, term, frames[-1].index)
            seen.term = max(seen.term, term)
            return
        for frame in frames:
            configures = frame.kind == FrameKind.CONFIGURATION
            voters = decode_configuration(frame.payload).voters if configures else frozenset()
            self._note("propose", name, voters)

    def _acknowledge(self, node: SimNode, seen: Seen, index: int) -> None:
        term, recovered, before = seen.said
        now = (node.core.term, seen.recovered)
        if index > (before if (term, recovered) == now else 0):
            seen.said = (*now, index)
            seen.kept = max(seen.kept, index)
            self._note("acknowledge", node.name, index)

    def _is(self, node: SimNode) -> None:
        """Compare its state, if it is another one."""
        core, index, seen = node.core, node.log.index, self._seen[node.name]
        seen.vote = core.ballot.voted_for or NOBODY
        voters = core.membership.voters
        state = (core.term, seen.vote, core.recovered, index.last_index, index.last_term, voters)
        if state != seen.compared:
            seen.compared = state
            self._note("is", node.name, *state)


class _Listener(Checker):
    """The simulator's checker, which tells the recorder, too."""

    def started(self, node: SimNode) -> None:
        super().started(node)
        _recorder(node).started(node)

    def truncating(self, node: SimNode, from_index: int) -> None:
        super().truncating(node, from_index)
        _recorder(node).truncating(node)

    def appending(self, node: SimNode, frames: Sequence[Frame]) -> None:
        super().appending(node, frames)
        _recorder(node).appending(node, frames)

    def voted(self, node: SimNode, vote: VoteResponse) -> None:
        super().voted(node, vote)
        _recorder(node).voted(node, vote)

    def after_event(self, node: SimNode) -> None:
        super().after_event(node)
        _recorder(node).after_step(node)


class TracedWorld(World):
    """A world with a recorder."""

    checker_class = _Listener

    def __init__(self, seed: int, **named: Any) -> None:
        super().__init__(seed, **named)
        self.recorder = Recorder(self)

    def send(self, message: PeerMessage) -> None:
        self.recorder.sent(self.nodes[message.sender], message)
        super().send(message)


def _recorder(node: SimNode) -> Recorder:
    assert isinstance(node.world, TracedWorld)
    return node.world.recorder


def text(value: object) -> str:
    """A value as TLA+ writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, frozenset):
        return "{" + ", ".join(map(text, sorted(value))) + "}"
    if isinstance(value, tuple | list):
        return "<<" + ", ".join(map(text, value)) + ">>"
    return f'"{value}"' if isinstance(value, str) else str(value)
