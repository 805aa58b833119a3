"""Raft's promises (figure 3) and ours, looked at from outside while the real programs run.

- leader append-only: a leader never truncates its log, and nobody what it has applied;
- a configuration is in force from its append on, as long as its frame is in the log; there is one
  change at a time, and nobody campaigns who is no voter;
- log matching: a frame of one (index, term) is the same bytes everywhere, behind the same term;
- leader completeness: a new leader has every frame that was ever applied;
- a leader has the votes of a majority that is recovered, or of all voters;
- what a leader applies of its own term was acknowledged by a majority that is recovered, and is
  durable there, by the bytes that their disks would keep (or, where it may be acknowledged before,
  in their page caches);
- no replica that is recovered votes for two in a term, whichever of its processes does, nor forgets
  for whom it has voted;
- term and commit index of one process never go back, nor does the term of a replica that starts as
  one that has lost nothing;
- what a log is found to hold at a start is durable;
- a replica that is recovered, or says so when it starts, has every committed frame that it ever had
  durable (one that was set back says so until it is told; it counts for nothing till then);
- no connection of a replica of another group is let in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zlib import crc32

from raftmq.broker.broker import Broker
from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.node.ready_loop import Pump
from raftmq.dledger.raft.configuration import decode_configuration
from raftmq.dledger.raft.errors import FrameDamaged
from raftmq.dledger.raft.messages import (
    AppendResponse,
    HeartbeatResponse,
    Role,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.raft.quorum import majority
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.transport.inbound import Incoming
from raftmq.store.frame import Frame, FrameKind
from tests.simulator.cluster import programs
from tests.simulator.cluster.process import Process, here

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld, Group


class RaftChecks:
    """See the module's docstring. `brokers`: of every process of the group, filled by who builds
    them."""

    def __init__(self, world: ClusterWorld, group: Group) -> None:
        self.brokers: dict[Process, Broker] = {}
        self._world = world
        self._group = group
        # (index, term) → (checksum, term of the frame before)
        self._frames: dict[tuple[int, int], tuple[int, int]] = {}
        self._applied: dict[int, int] = {}  # index → term
        self._configurations: dict[tuple[int, int], frozenset[str]] = {}  # voters
        self._votes: dict[tuple[str, int], str] = {}  # of recovered voters
        self._voters: dict[tuple[int, str], set[str]] = {}  # all, by term and candidate
        self._acknowledged: dict[tuple[str, int], int] = {}  # by name and term, while recovered
        self._reached: dict[Process, tuple[int, int]] = {}  # term and commit index
        self._recovered: set[Process] = set()
        self._terms: dict[str, int] = {}  # the highest in which each machine has said anything
        self._kept: dict[str, int] = {}  # what a machine has had applied and durable

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while logs are written, messages sent and connections made."""
        append, truncate, send = RaftLog.append, RaftLog.truncate, Pump._send
        welcome = Incoming.welcome
        checks = self

        def on_append(log: RaftLog, frames: Any) -> None:
            checks._appends(log, frames)
            append(log, frames)

        def on_truncate(log: RaftLog, from_index: int) -> None:
            checks._truncates(from_index)
            truncate(log, from_index)

        def on_send(pump: Pump, messages: Any) -> None:
            checks._sends(pump, messages)
            send(pump, messages)

        def on_welcome(incoming: Incoming, connection: Any, peer: str) -> Any:
            checks._welcomes(connection)
            return welcome(incoming, connection, peer)

        with (
            patch.object(RaftLog, "append", on_append),
            patch.object(RaftLog, "truncate", on_truncate),
            patch.object(Pump, "_send", on_send),
            patch.object(Incoming, "welcome", on_welcome),
        ):
            yield

    def _engine(self, process: Process) -> RaftMember | None:
        """Return the member of a process of this group; None before there is one."""
        broker = self.brokers.get(process)
        engine = None if broker is None else broker.engine
        return engine if isinstance(engine, RaftMember) and engine.has_core else None

    # -- logs -------------------------------------------------------------------------------------

    def _appends(self, log: RaftLog, frames: Any) -> None:
        process = here()
        if process not in self.brokers:
            return
        engine = self._engine(process)
        before = log.index.term_at(frames[0].index - 1)
        for frame in frames:
            now = crc32(frame.data), before
            known = self._frames.setdefault((frame.index, frame.term), now)
            if known != now:
                self._broken(f"log matching: {process} appends another {frame}")
            before = frame.term
            if frame.kind == FrameKind.CONFIGURATION:
                self._configures(process, frame)
            elif engine is not None and frame.index == engine.core.membership.configurations.index:
                self._broken(f"{process} goes by a configuration in the place of {frame}")

    def _configures(self, process: Process, frame: Frame) -> None:
        engine = self._engine(process)
        if engine is not None and engine.core.role is Role.LEADER:
            for at, _ in self._known(engine):
                if engine.core.commit_index < at < frame.index:
                    self._broken(f"{process} changes members at {frame.index}, as at {at}")
        key = frame.index, frame.term
        self._configurations[key] = decode_configuration(frame.payload).voters

    def _known(self, engine: RaftMember) -> list[tuple[int, frozenset[str]]]:
        """Return the configurations in a member's log, each with its frame's index."""
        index = engine.log.index
        result = [(0, frozenset(self._group.founders))]
        for (at, term), voters in sorted(self._configurations.items()):
            if at < index.first_index:
                there = self._applied.get(at) == term
            else:
                there = at <= index.last_index and index.term_at(at) == term
            if there:
                result.append((at, voters))
        return result

    def _truncates(self, from_index: int) -> None:
        process = here()
        engine = self._engine(process)
        if engine is None:
            return
        if engine.core.role is Role.LEADER:
            self._broken(f"leader append-only: {process} truncates at {from_index}")
        applied = engine.parts.pump.applier.applied_index
        if from_index <= applied:
            self._broken(f"{process} truncates {from_index}, applied up to {applied}")

    def applied(self, process: Process, frame: Frame) -> None:
        """Note a frame that is applied."""
        self._applied.setdefault(frame.index, frame.term)

    def batch_applied(self, process: Process, last: Frame) -> None:
        """Check that the last frame of what a leader applies is durable on a majority."""
        engine = self._engine(process)
        if engine is None or engine.core.role is not Role.LEADER or last.term != engine.core.term:
            return
        known = self._known(engine)
        in_force = max(at for at, _ in known if at <= last.index)
        for _, voters in known[[at for at, _ in known].index(in_force) :]:  # or a newer one
            holders = [name for name in voters if self._counts(engine, name, last)]
            if len(holders) >= majority(len(voters)):
                return
        self._broken(f"{process} commits {last}, durable only on {holders} of {sorted(voters)}")

    def _counts(self, leader: RaftMember, name: str, frame: Frame) -> bool:
        """Return whether a replica has acknowledged the frame as one that is recovered, and has its
        bytes. One that may lose its memory may have lost them since."""
        core = leader.core
        if name == core.node_id:
            said = core.recovered
        else:
            said = self._acknowledged.get((name, core.term), 0) >= frame.index
        world = self._world
        loses_memory = name in world.plan.fragile or name in world.emptied
        return said and (loses_memory or self._holds(name, frame))

    def _holds(self, name: str, frame: Frame) -> bool:
        world = self._world
        start = frame.position - frame.position % world.profile.segment_bytes
        path = f"{programs.STORE}/commitlog/{start:020d}"
        disk = world.machine_named(name).disk
        segments = disk.listdir(f"{programs.STORE}/commitlog")
        if segments and min(segments) > f"{start:020d}":  # its log begins later: retention
            return self._applied.get(frame.index) == frame.term
        return disk.holds(path, frame.position - start, frame.data, world.profile.durable)

    # -- votes, roles -----------------------------------------------------------------------------

    def leads(self, process: Process, term: int) -> None:
        """Check who has elected a new leader, and that its log is complete."""
        engine = self._engine(process)
        if engine is None:
            return
        # Its id may be another machine's, by an operator's mistake.
        voters, name = self._known(engine)[-1][1], engine.core.node_id
        recovered = [voter for voter in voters if self._votes.get((voter, term)) == name]
        everybody = self._voters.get((term, name), set()) >= voters - {name}
        if len(recovered) < majority(len(voters)) and not everybody:
            self._broken(f"{process} is elected in term {term} by {recovered} of {sorted(voters)}")
        index = engine.log.index
        for at, of_term in self._applied.items():
            if of_term > term or at < index.first_index:
                continue  # it won late, and is deposed already; or retention took the frame
            if at > index.last_index or index.term_at(at) != of_term:
                self._broken(f"leader completeness: {process} leads {term} without {at}@{of_term}")
                return

    def _sends(self, pump: Pump, messages: Any) -> None:
        process, core = here(), pump.core
        if process not in self.brokers:
            return
        now = core.term, core.commit_index
        if not core.recovered:
            self._world.set_back.discard(process.machine.name)
        # Whatever it says of a past that it has forgotten: nobody may believe it.
        is_set_back = process.machine.name in self._world.set_back
        self._remembers(process, pump, now)
        self._reached[process] = now
        for message in messages:
            if not (isinstance(message, VoteRequest) and message.pre_vote):
                name = process.machine.name
                self._terms[name] = max(self._terms.get(name, 0), message.term)
            if isinstance(message, VoteResponse):
                if message.granted and not message.pre_vote and message.request_incarnation:
                    voted = self._voters.setdefault((message.request_term, message.to), set())
                    voted.add(message.sender)
                    if not message.recovering and not is_set_back:
                        self._votes_for(process, message.request_term, message.to)
            elif isinstance(message, VoteRequest):
                self._campaigns(process)
                if not message.pre_vote and core.recovered and not is_set_back:
                    self._votes_for(process, message.term, message.sender)
            elif isinstance(message, AppendResponse | HeartbeatResponse):
                said = not message.recovering and not is_set_back
                if message.term == message.request_term and said:
                    key = message.sender, message.term
                    known = self._acknowledged.get(key, 0)
                    self._acknowledged[key] = max(known, message.match_index)

    def _campaigns(self, process: Process) -> None:
        """Check that a candidate is a voter, or was until a change that is not committed."""
        engine = self._engine(process)
        if engine is None:
            return
        known, commit_index = self._known(engine), engine.core.commit_index
        committed = max(at for at, _ in known if at <= commit_index)
        if not any(process.machine.name in voters for at, voters in known if at >= committed):
            self._broken(f"{process} campaigns, and is no voter")

    def _remembers(self, process: Process, pump: Pump, now: tuple[int, int]) -> None:
        """Check that a process has forgotten nothing."""
        name, core = process.machine.name, pump.core
        before = self._reached.get(process, now)
        if now[0] < before[0] or now[1] < before[1]:
            self._broken(f"{process} went back from {before} to {now}")
        if name in self._world.set_back:
            return
        term = self._terms.get(name, 0)
        if core.recovered and process not in self._reached and now[0] < term:
            self._broken(f"{process} forgot term {term}, and begins with {now[0]}")
        voted = self._votes.get((name, now[0]))
        begins = core.recovered and process not in self._reached
        if process.machine.was_wiped:
            voted = None  # on the disk before; recovery allows for it (dledger/raft/recovery.py)
        if begins and voted is not None and voted != core.ballot.voted_for:
            self._broken(f"{process} forgot its vote for {voted} in term {now[0]}")
        if begins and self._world.profile.durable:
            self._is_durable(process, pump)
        if not core.recovered:
            return
        kept, index = self._kept.get(name, 0), pump.log.index
        if process not in self._recovered:
            self._recovered.add(process)
            for at in range(index.first_index, kept + 1):
                if at > index.last_index or index.term_at(at) != self._applied[at]:
                    self._broken(f"{process} has lost {at}@{self._applied[at]}, and is recovered")
                    break
        self._kept[name] = max(kept, min(pump.applier.applied_index, core.durable_index))

    def _is_durable(self, process: Process, pump: Pump) -> None:
        """Check that what a process has found in its log, or mended there, is on the platter."""
        log = pump.log
        for at in range(log.index.first_index, pump.core.durable_index + 1):
            try:
                frame = log.frames(at, at)[0]
            except FrameDamaged:
                return  # it rots
            rotted = process.machine.disk.rotted
            where = range(frame.position, frame.end)
            if any(at in where for at in rotted):
                continue  # mended in memory; where that is not durable, power cuts bring it back
            if not self._holds(process.machine.name, frame):
                self._broken(f"{process} counts {frame} as durable, and it is not")
                return

    def _votes_for(self, process: Process, term: int, candidate: str) -> None:
        before = self._votes.setdefault((process.machine.name, term), candidate)
        if before != candidate:
            self._broken(f"{process} votes in term {term} for {candidate}, as for {before}")

    # -- links ------------------------------------------------------------------------------------

    def _welcomes(self, connection: Any) -> None:
        process = here()
        port = connection.line.transport.get_extra_info("peername")[1]
        dialler = self._world.network.diallers[port]
        if (process in self.brokers) != (dialler in self.brokers):
            self._broken(f"{process} lets in {dialler}, which is of another group")

    def _broken(self, reason: str) -> None:
        self._world.broken(reason)
