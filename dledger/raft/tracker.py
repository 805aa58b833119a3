"""The leader's view of its followers, and the values that a majority has reached.

Invariants: every other member of the configuration in force has a Progress, and so has a removed
member until it was notified or had time to learn of its removal. Only voters count. The argument
`own` is the leader's own value, or None if the leader does not vote.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .config import CoreConfig
from .configuration import Configuration
from .messages import NodeId
from .progress import Progress
from .quorum import majority, reached_by_majority


@dataclass(slots=True, eq=False)
class Tracker:
    """A leader's followers. `voting` lists those that count."""

    _node_id: NodeId
    _config: CoreConfig
    progress: dict[NodeId, Progress] = field(default_factory=dict)
    voting: tuple[Progress, ...] = ()

    def configure(
        self, configuration: Configuration, next_index: int, now_ms: float
    ) -> list[Progress]:
        """Follow a change of members. Return the new members, which are probed at `next_index`."""
        config = self._config
        ids, voters = configuration.ids - {self._node_id}, configuration.voters
        new = [
            Progress(
                peer,
                next_index,
                now_ms,
                config.inflight_messages_max,
                config.inflight_bytes_max,
                config.resend_ms,
            )
            for peer in sorted(ids - self.progress.keys())
        ]
        self.progress.update({progress.peer: progress for progress in new})
        for progress in self.progress.values():
            progress.voter = progress.peer in voters
            if progress.peer in ids:
                progress.departs_ms = None
            elif progress.departs_ms is None:
                progress.departs_ms = now_ms + config.departure_ms
        self.voting = tuple(p for p in self.progress.values() if p.voter)
        return new

    def let_go(self, commit_index: int, configuration_index: int, now_ms: float) -> bool:
        """Forget removed members that know, or had the time; return whether there were any."""
        gone = [
            p.peer
            for p in self.progress.values()
            if p.departs_ms is not None
            and (min(commit_index, p.match_index) >= configuration_index or now_ms >= p.departs_ms)
        ]
        for peer in gone:
            del self.progress[peer]
        return bool(gone)

    def committed(self, own: int | None) -> int:
        """Return the last frame that a majority has durable. Only recovered replicas count."""
        reached = [progress.recovered_index for progress in self.voting]
        if own is not None:
            reached.append(own)
        return reached_by_majority(reached)

    def confirmed_round(self, own: int | None) -> int:
        """Return the last heartbeat round that a majority answered while recovered."""
        rounds = [progress.recovered_round for progress in self.voting]
        if own is not None:
            rounds.append(own)
        return reached_by_majority(rounds)

    def heard_ms(self, own: float | None) -> float:
        """Return the time since when a majority has been heard."""
        heard = [progress.heard_ms for progress in self.voting]
        if own is not None:
            heard.append(own)
        return reached_by_majority(heard)

    def holders(self, index: int) -> int:
        """Return how many recovered voters have acknowledged frame `index`."""
        return sum(not p.recovering and p.recovered_index >= index for p in self.voting)

    def answers(self, progress: Progress, now_ms: float) -> bool:
        """Return whether the follower was heard within the longest configured time-out, and has
        answered since its link was opened. Before that it may be another process without its
        memory."""
        heard = progress.heard_ms > now_ms - self._config.election_ms_max
        return heard and progress.round > progress.link_round

    def good(self, voters: frozenset[NodeId], now_ms: float) -> int:
        """Return the number of followers among `voters` that answer and are recovered."""
        return sum(
            progress.peer in voters and self.answers(progress, now_ms) and progress.said_recovered
            for progress in self.progress.values()
        )

    def full(self, votes: bool, now_ms: float) -> list[NodeId]:
        """Return the followers with full disks if too few voters accept frames because of them,
        else []. Silent followers count as neither. `votes` is true if the leader votes."""
        full = [progress.peer for progress in self.voting if progress.full]
        able = sum(
            not progress.full and progress.heard_ms > now_ms - self._config.election_ms_max
            for progress in self.voting
        )
        return full if votes + able < majority(votes + len(self.voting)) else []

    def successor(self) -> NodeId | None:
        """Return the best successor, preferably willing, with most of the log."""
        best = max(
            self.voting,
            key=lambda p: (not p.recovering, not p.no_room, p.match_index),
            default=None,
        )
        return None if best is None else best.peer
