"""Records what the real program does in a world of the simulator, as events of the model.

The world is a cluster of brokers with its faults; a recorder listens to their Raft members. Each
event is a step of the model that RecoveryTrace.tla names, and after each step of a core its state
is compared (`is`). No file rots there: the model has no damage that a peer mends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from unittest.mock import patch

from raftmq.dledger.node.dispatcher import Inbox
from raftmq.dledger.node.node import Parts, RaftMember
from raftmq.dledger.node.ready_loop import Pump
from raftmq.dledger.raft.configuration import Configuration, decode_configuration
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.messages import (
    AppendResponse,
    HardState,
    HeartbeatResponse,
    Outgoing,
    Ready,
    Role,
    VoteResponse,
)
from raftmq.dledger.storage.hard_state_writer import HardStateSaver
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.transport.wire import PeerMessage
from raftmq.store.frame import Frame, FrameKind
from tests.simulator.cluster.faults import FaultPlan
from tests.simulator.cluster.machine import Machine
from tests.simulator.cluster.planting import Plant
from tests.simulator.cluster.process import Process, here
from tests.simulator.cluster.world import ClusterWorld, Wish

FAULTS = ("kill", "kill_leader", "crash_in_operation", "isolate", "split", "cut_one_way", "freeze",
          "stop_planned", "wipe", "power_cut_fragile")  # fmt: skip
NOBODY = "nobody"
Event = tuple[object, ...]


class Kind(Enum):
    """The faults of a world."""

    LOSING = FAULTS
    OPERATED = FAULTS[:-2]  # members come and go instead of memories
    SET_BACK = (*FAULTS[:-2], "set_back", "set_back")


@dataclass(frozen=True, slots=True)
class Node:
    """A replica's process. `saved`: its configuration file when it started, or the founding one."""

    name: str
    core: RaftCore
    log: RaftLog
    saved: tuple[int, Configuration]


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
    set_back: bool = False  # its disk was, and no process has started with it yet
    compared: Event = ()


class Recorder:
    """The events of one world, in the order in which they happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seen: dict[str, Seen] = defaultdict(Seen)
        self._incarnations: dict[int, int] = {}  # those of the cores, numbered
        self._candidates: dict[tuple[int, str], int] = {}  # (term, name) -> incarnation
        self._won: set[tuple[int, str, int]] = set()
        self._met: set[tuple[object, ...]] = set()

    def _note(self, *event: object) -> None:
        self.events.append(event)

    def _incarnation(self, core: int) -> int:
        """Return a small number for an incarnation; 0 stays 0."""
        return self._incarnations.setdefault(core, len(self._incarnations) + 1) if core else 0

    # -- beginnings of processes ----------------------------------------------------------------

    def set_back(self, name: str) -> None:
        """Its disk is an earlier image of itself."""
        self._seen[name] = Seen(set_back=True)

    def started(self, node: Node) -> None:
        """Its process is there again, with what it finds on its disk."""
        seen, core, name = self._seen[node.name], node.core, node.name
        index, incarnation = node.log.index, self._incarnation(core.ballot.incarnation)
        terms = [index.term_at(at) for at in range(1, index.last_index + 1)]
        length = len(terms)
        file = (node.saved[0], node.saved[1].voters)
        if seen.set_back:
            state = (length, index.last_term, core.term, core.ballot.voted_for or NOBODY, file)
            self._note("set back", name, incarnation, *state)
            self._seen[name] = Seen(core.term, NOBODY, core.recovered, terms)
            self._is(node)
            return
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

    def truncating(self, node: Node) -> None:
        seen = self._keep_up(node)
        seen.writing_term = node.core.term

    def appending(self, node: Node, frames: Sequence[Frame]) -> None:
        """Its process writes frames; noted once it has, since it may die of that."""
        seen = self._keep_up(node)
        seen.writing, seen.writing_term = tuple(frames), node.core.term
        seen.leads = node.core.role is Role.LEADER

    def voted(self, node: Node, vote: VoteResponse) -> None:
        self._keep_up(node)
        incarnation = self._incarnation(vote.request_incarnation)
        self._note("grant", node.name, vote.request_term, vote.to, incarnation)

    def sent(self, node: Node, message: AppendResponse | HeartbeatResponse) -> None:
        seen = self._keep_up(node)
        if isinstance(message, AppendResponse) and not message.success:
            return
        if message.request_term == message.term:
            self._acknowledge(node, seen, message.match_index)

    def after_step(self, node: Node) -> None:
        seen = self._keep_up(node)
        if node.core.commit_index > seen.commit:
            seen.commit = node.core.commit_index
            self._note("commit", node.name, seen.commit)
        self._is(node)

    def _keep_up(self, node: Node, seen: Seen | None = None) -> Seen:
        """Note what its core has done since the last event."""
        core, name = node.core, node.name
        seen = seen or self._seen[name]
        self._written(name, seen)
        incarnation = self._incarnation(core.ballot.incarnation)
        if seen.recovered and not core.recovered:
            self._note("recognise", name, incarnation)
            seen.recovered = False
        term, me = core.term, (core.term, name, incarnation)
        if term > seen.term:
            if core.ballot.voted_for == name:
                self._candidates[term, name] = incarnation
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

    def _lead(self, node: Node, seen: Seen, me: tuple[int, str, int]) -> None:
        if me not in self._won:
            self._won.add(me)
            self._note("win", node.name)
        for peer, progress in node.core.progress.items():
            barrier = progress.barrier_index
            recovering = self._incarnation(progress.recovering or 0)
            met = (*me, peer, recovering, barrier)
            if recovering and barrier and met not in self._met:
                self._met.add(met)
                self._note("meet", node.name, peer, recovering, barrier)
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

    def _acknowledge(self, node: Node, seen: Seen, index: int) -> None:
        term, recovered, before = seen.said
        now = (node.core.term, seen.recovered)
        if index > (before if (term, recovered) == now else 0):
            seen.said = (*now, index)
            seen.kept = max(seen.kept, index)
            self._note("acknowledge", node.name, index)

    def _is(self, node: Node) -> None:
        """Compare its state, if it is another one."""
        core, index, seen = node.core, node.log.index, self._seen[node.name]
        seen.vote = core.ballot.voted_for or NOBODY
        voters = core.membership.voters
        state = (core.term, seen.vote, core.recovered, index.last_index, index.last_term, voters)
        if state != seen.compared:
            seen.compared = state
            self._note("is", node.name, *state)


class TracedWorld(ClusterWorld):
    """A cluster with a recorder, a light load, and no damage. Each message arrives by itself, and
    term and vote are saved in one piece with what comes of them: so what is sent belongs to the
    state in which the core is then."""

    def __init__(self, seed: int, kind: Kind, planted: Plant = nullcontext) -> None:
        operated = kind is Kind.OPERATED
        profile = {"operated": operated, "refilled": False, "timed": False, "pace": 0.2}
        wish = Wish(("metadata",), kind.value, profile, planted)
        super().__init__(seed, wish=wish)
        self.recorder = Recorder()

    @contextmanager
    def surrounded(self) -> Iterator[None]:
        with super().surrounded(), listening(self.recorder):
            yield


@contextmanager
def listening(recorder: Recorder) -> Iterator[None]:
    """Tell the recorder what the members of all processes do."""
    take_part, take = RaftMember._participate, Inbox.on_messages
    run, perform, send = Pump.run, Pump._perform, Pump._send
    put_back = FaultPlan._put_back
    nodes: dict[Process, Node] = {}

    async def on_start(member: RaftMember, parts: Parts) -> None:
        roster, core = member._roster, parts.pump.core
        saved = roster._saved or (0, roster.founding)
        node = nodes[here()] = Node(here().machine.name, core, member.log, saved)
        recorder.started(node)
        await take_part(member, parts)

    def on_run(pump: Pump) -> None:
        busy = pump._busy
        run(pump)
        if not busy and here().alive and pump.life.running:
            recorder.after_step(nodes[here()])

    def on_perform(pump: Pump, ready: Ready) -> None:
        node = nodes[here()]
        if ready.truncate_from is not None:
            recorder.truncating(node)
        if ready.append:
            recorder.appending(node, ready.append)
        perform(pump, ready)

    def on_send(pump: Pump, messages: tuple[Outgoing, ...]) -> None:
        node = nodes[here()]
        for message in messages:
            if isinstance(message, VoteResponse):
                if message.granted and not message.pre_vote and message.request_incarnation:
                    recorder.voted(node, message)
            elif isinstance(message, AppendResponse | HeartbeatResponse):
                recorder.sent(node, message)
        send(pump, messages)

    def on_put_back(plan: FaultPlan, machine: Machine, *taken: Any) -> None:
        disk = machine.disk
        put_back(plan, machine, *taken)
        if machine.disk is not disk:
            recorder.set_back(machine.name)

    def on_messages(inbox: Inbox, messages: list[PeerMessage]) -> None:
        for message in messages:
            take(inbox, [message])

    def at_once(
        saver: HardStateSaver, state: HardState, then: Callable[[BaseException | None], None]
    ) -> None:
        saver._file.save(state)
        then(None)

    with (
        patch.object(RaftMember, "_participate", on_start),
        patch.object(Pump, "run", on_run),
        patch.object(Pump, "_perform", on_perform),
        patch.object(Pump, "_send", on_send),
        patch.object(Inbox, "on_messages", on_messages),
        patch.object(FaultPlan, "_put_back", on_put_back),
        patch.object(HardStateSaver, "save", at_once),
    ):
        yield


def text(value: object) -> str:
    """A value as TLA+ writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, frozenset):
        return "{" + ", ".join(map(text, sorted(value))) + "}"
    if isinstance(value, tuple | list):
        return "<<" + ", ".join(map(text, value)) + ">>"
    return f'"{value}"' if isinstance(value, str) else str(value)
