"""Checks after every event, incrementally: Raft's figure 3, and our promises.

- election safety: at most one leader a term;
- leader append-only: a leader never cuts its log;
- log matching: a frame of one (index, term) is the same bytes everywhere, behind the same frame;
- leader completeness: a new leader has every frame that was ever committed;
- state machine safety: every replica applies the same frame at an index;
- acknowledged is never lost: acknowledged frames are committed ones, and see above;
- nothing is acknowledged that a majority would not have after a power cut (durable on disk);
- a replica that lost promises says so until it is recovered, and never votes, as a recovered one,
  for another than it may have voted for in that term before;
- a replica whose disk is bad neither leads nor tries to, nor does one that is no voter;
- a confirmed read sees everything that was acknowledged before it was asked for;
- term, commit index and vote of one process never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from raftmq.dledger.messages import Role, RoleEvent, VoteResponse
from raftmq.dledger.quorum import majority
from raftmq.store.frame import Frame

if TYPE_CHECKING:
    from tests.simulator.node import SimNode
    from tests.simulator.world import World


class CheckFailed(Exception):
    """A promise is broken."""


class Checker:
    """Knows everything that happened in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, tuple[str, int]] = {}  # term -> (node, incarnation)
        # (index, term) -> (frame, term of the one before)
        self._frames: dict[tuple[int, int], tuple[Frame, int]] = {}
        self._committed: list[Frame] = []  # at index - 1: what some replica applied
        self._acked: list[Frame] = []
        self._seen: dict[str, tuple[int, int, str | None]] = {}  # term, commit, vote
        self._kept_by: dict[str, int] = {}  # what a node applied and had durable
        self.acked_max = 0  # highest acknowledged index
        self.elections = 0
        self._votes: dict[tuple[str, int], str] = {}  # (recovered voter, term) -> candidate
        self._recovered_since: dict[str, int] = {}  # the term in which it recovered last

    def fail(self, reason: str) -> NoReturn:
        world = self._world
        raise CheckFailed(
            f"seed {world.seed} at {world.now_ms:.2f} ms: {reason}\n"
            f"replay: python -m tests.simulator{world.flags} --verbose {world.seed}"
        )

    # -- logs -------------------------------------------------------------------------------------

    def started(self, node: SimNode) -> None:
        """A recovered log is made of frames that somebody wrote."""
        term, vote = node.core.term, node.core.ballot.voted_for
        old_term, _, old_vote = self._seen.get(node.name, (0, 0, None))
        if node.lost and node.core.recovered:
            self.fail(f"{node.name} lost promises and believes that it is recovered")
        if node.votes_lost:
            old_term, old_vote = 0, None
            self._seen.pop(node.name, None)
        if term < old_term:
            self.fail(f"{node.name} forgot its term {old_term}: {term}")
        if term == old_term and old_vote is not None and vote != old_vote:
            self.fail(f"{node.name} forgot its vote for {old_vote} in term {term}")
        # What it says now counts once it has said it to somebody: after its first event.
        self._seen[node.name] = (old_term, 0, old_vote)
        self._same_frames(node)
        self._kept(node)

    def _kept(self, node: SimNode) -> None:
        """A replica that is recovered still has every committed frame that it ever had durable."""
        if node.lost:
            self._kept_by[node.name] = 0
        index = node.log.index
        for frame in self._committed[: self._kept_by.get(node.name, 0)]:
            if frame.index < index.first_index:
                continue  # retention took it
            if frame.index > index.last_index or index.term_at(frame.index) != frame.term:
                self.fail(f"{node.name} had {frame} durable, is without it, and is recovered")

    def _same_frames(self, node: SimNode) -> None:
        """Check that what it recovered was written once, behind the same frame, and is durable."""
        index = node.log.index
        for at in range(index.first_index, index.last_index + 1):
            term, previous_term = index.term_at(at), index.term_at(at - 1)
            known = self._frames.get((at, term))
            if known is None or known[1] != previous_term:
                self.fail(f"{node.name} recovered {at}@{term} behind {previous_term}: {known}")
            frame = known[0]
            durable = self._world.profile.durable
            if not node.holds(frame, durable) and not self._world.damage.lacks(node, frame):
                self.fail(f"{node.name} recovered {frame}, but does not hold it")

    def frames_known(self) -> list[Frame]:
        """Every frame that was ever written anywhere."""
        return [frame for frame, _ in self._frames.values()]

    def is_committed(self, frame: Frame) -> bool:
        """Whether some replica applied it."""
        return frame in self._committed[frame.index - 1 : frame.index]

    def log_of(self, node: SimNode) -> list[Frame]:
        """The frames of a node's log as they should be."""
        index = node.log.index
        indexes = range(index.first_index, index.last_index + 1)
        return [self._frames[(at, index.term_at(at))][0] for at in indexes]

    def appending(self, node: SimNode, frames: Sequence[Frame]) -> None:
        """Log matching, by induction over what is behind each frame."""
        previous_term = node.log.index.term_at(frames[0].index - 1)
        for frame in frames:
            known, behind = self._frames.setdefault(
                (frame.index, frame.term), (frame, previous_term)
            )
            if (known.data, behind) != (frame.data, previous_term):
                self.fail(f"log matching: {node.name} appends {frame}, known as {known}")
            previous_term = frame.term
            self._world.members.appended(frame)

    def truncating(self, node: SimNode, from_index: int) -> None:
        if node.core.role is Role.LEADER:
            self.fail(f"leader append-only: {node.name} cuts its log at {from_index}")
        if from_index <= node.applied:
            self.fail(f"{node.name} cuts {from_index}, applied up to {node.applied}")

    # -- roles ------------------------------------------------------------------------------------

    def recovered(self, node: SimNode) -> None:
        """From now on it votes as if it had never lost anything."""
        self._recovered_since[node.name] = node.core.term

    def voted(self, node: SimNode, vote: VoteResponse) -> None:
        """A promise that counts, if its giver is recovered."""
        if vote.recovering:
            return
        before = self._votes.setdefault((node.name, vote.request_term), vote.to)
        if before != vote.to and vote.request_term <= self._recovered_since[node.name]:
            self.fail(
                f"{node.name} votes for {vote.to} in term {vote.request_term} as for {before}"
            )

    def role_changed(self, node: SimNode, event: RoleEvent) -> None:
        if (node.stalled or node.full) and event.role is not Role.FOLLOWER:
            self.fail(f"{node.name} is {event.role.value} with a bad disk")
        if event.role is not Role.FOLLOWER:
            index, configuration = self._world.members.of_log(node)[0]
            if index <= node.core.commit_index and node.name not in configuration.voters:
                self.fail(f"{node.name} is {event.role.value} and no voter of {configuration}")
        if event.role is not Role.LEADER:
            return
        me = (node.name, node.incarnation)
        known = self._leaders.get(event.term)
        if known is None:
            self._leaders[event.term] = me
            self.elections += 1
            self._leader_complete(node)
            self._world.plan.elected(node)
            self._world.members.elected(node)
        elif known != me:
            self.fail(f"election safety: {known} and {me} lead term {event.term}")

    def _leader_complete(self, node: SimNode) -> None:
        index = node.log.index
        for frame in self._committed:
            if frame.term > node.core.term:
                continue  # it was stopped, won its term's election late, and is deposed already
            if frame.index >= index.first_index and (
                frame.index > index.last_index or index.term_at(frame.index) != frame.term
            ):
                lost = "acknowledged" if frame in self._acked else "committed"
                self.fail(f"leader completeness: {node.name} leads without {lost} {frame}")

    # -- state machine, clients -------------------------------------------------------------------

    def applied(self, node: SimNode, frame: Frame) -> None:
        committed = self._committed
        if frame.index == len(committed) + 1:
            committed.append(frame)
            self._world.members.applied(frame)
        elif frame.index > len(committed) or committed[frame.index - 1].data != frame.data:
            self.fail(f"state machine safety: {node.name} applies {frame}")

    def acknowledged(self, node: SimNode, frame: Frame) -> None:
        self._acked.append(frame)
        self.acked_max = max(self.acked_max, frame.index)
        members = self._world.members.of_log(node)
        # Applied late, for it was damaged: another configuration may be in force by now.
        judges = members[:2] if self._world.rots else members[:1]
        for _, configuration in judges:
            voters = configuration.voters
            nodes = (n for n in self._world.nodes.values() if n.name in voters)
            holders = [n.name for n in nodes if self._holds_durably(n, frame)]
            if len(holders) >= majority(len(voters)):
                return
        self.fail(f"{node.name} acknowledges {frame}, durable only on {holders} of {voters}")

    def _holds_durably(self, node: SimNode, frame: Frame) -> bool:
        """Ground truth: the bytes are on the platter (or in the page cache, with async flush), or
        were when it acknowledged them, and rotted since."""
        if self._world.damage.lacks(node, frame) or node.has_let_go(frame):
            return True
        return node.holds(frame, durable=self._world.profile.durable)

    def read(self, node: SimNode, acked_before: int, applied: int) -> None:
        if applied < acked_before:
            self.fail(f"stale read at {node.name}: sees {applied}, acknowledged {acked_before}")

    # -- every event ------------------------------------------------------------------------------

    def after_event(self, node: SimNode) -> None:
        core = node.core
        commit = core.commit_index
        kept = min(node.applied, core.durable_index)
        if kept > self._kept_by.get(node.name, 0):
            self._kept_by[node.name] = kept
        now = (core.term, commit, core.ballot.voted_for)
        before = self._seen[node.name]
        if now == before:
            return
        if core.term < before[0] or commit < before[1]:
            self.fail(f"{node.name} went back from {before} to {now}")
        if core.term == before[0] and before[2] not in (None, core.ballot.voted_for):
            self.fail(f"{node.name} changed its vote in term {core.term}: {before[2]}")
        if commit > node.log.index.last_index:
            self.fail(f"{node.name} commits {commit}, which it does not have")
        self._seen[node.name] = now

    def at_end(self) -> None:
        """Everything acknowledged is in the log of a majority, read back from the files."""
        for frame in self._acked:
            if self._committed[frame.index - 1].data != frame.data:
                self.fail(f"acknowledged {frame} is not what was committed there")
        for node in self._world.members.current():
            for frame in self.log_of(node):
                if not node.holds_for_good(frame):
                    self.fail(f"{node.name} does not hold {frame} in the end")
            if node.core.role is Role.LEADER:
                self._leader_complete(node)
            progress = node.core.progress.values()
            if not self._world.losses and any(p.regressions for p in progress):
                self.fail(f"{node.name} thinks that a follower forgot: {list(progress)}")
