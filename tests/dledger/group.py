"""A few cores wired by hand: messages lie in a queue until somebody delivers or drops them.

Used by the interaction scripts and by the paper's tests. Frames are durable as soon as they are
written, unless a node is told to hold (`hold`), as with a slow disk.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import (
    AppendOrder,
    AppendRequest,
    HardState,
    Message,
    Ready,
)
from raftmq.store.frame import Frame, FrameKind, seal_frame


def make_frame(index: int, term: int, position: int, payload: bytes = b"") -> Frame:
    kind = FrameKind.COMMAND if payload else FrameKind.NOOP
    return seal_frame(index, term, position, 0, kind, 0, payload)


def make_log(terms: list[int]) -> list[Frame]:
    """Frames 1.. of these terms, one behind the other."""
    frames: list[Frame] = []
    for term in terms:
        position = frames[-1].end if frames else 0
        frames.append(make_frame(len(frames) + 1, term, position, b"x%d" % (len(frames) + 1)))
    return frames


class Member:
    """A core and what its shell would keep: the log and the last hard state."""

    def __init__(
        self,
        name: str,
        names: list[str],
        terms: list[int] | None = None,
        hard_state: HardState | None = None,
        config: CoreConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.names = names
        self.config = config or CoreConfig()
        self.seed = seed
        self.log = make_log(terms or [])
        last_term = self.log[-1].term if self.log else 0
        self.saved = hard_state or HardState(last_term, None)
        self.noted_recovered = self.saved.recovered
        self.holding = False
        self.down = False
        self.now_ms = 0.0
        self.events: list[str] = []
        self.outbox: list[Message] = []
        self.reads: list[tuple[int, int]] = []
        self.failed_reads: list[int] = []
        self.readies: list[Ready] = []
        self.incarnation = 0
        self.boot()

    def boot(self) -> None:
        self.incarnation += 1
        self.index = LogIndex()  # of the core's log
        for frame in self.log:
            self.index.append(frame)
        self.core = RaftCore(
            self.name,
            Configurations(0, founding((name, "") for name in self.names)),
            self.config,
            self.index,
            self.saved,
            Random(self.seed),
            self.now_ms,
            incarnation=self.incarnation,
        )

    def work(self) -> list[Ready]:
        """Perform everything that is ready, in the order of `Ready`."""
        done: list[Ready] = []
        while not self.down:
            ready = self.core.ready()
            if ready is None:
                if not self.core.wants_noop:
                    break
                self.core.propose(self.next_frame(b""))
                continue
            done.append(ready)
            self._perform(ready)
            if not self.holding:
                self.core.durable(len(self.log))
        self.readies += done
        return done

    def _perform(self, ready: Ready) -> None:
        if ready.truncate_from is not None:
            self.events.append(f"{self.name} cuts {ready.truncate_from}")
            del self.log[ready.truncate_from - 1 :]
        for frame in ready.append:
            assert frame.index == len(self.log) + 1, (frame, len(self.log))
            self.log.append(frame)
            self.events.append(f"{self.name} writes {frame.index}@{frame.term}")
        if ready.hard_state is not None:
            self.saved = ready.hard_state
            vote = ready.hard_state.voted_for or "-"
            standing = "" if ready.hard_state.recovered else ", recovering"
            if ready.hard_state.recovered and not self.noted_recovered:
                standing = ", recovered"
            self.noted_recovered = ready.hard_state.recovered
            term = ready.hard_state.term
            self.events.append(f"{self.name} saves term {term} vote {vote}{standing}")
        for message in ready.messages:
            self.outbox.append(self._fill(message) if isinstance(message, AppendOrder) else message)
        if ready.commit_index is not None:
            self.events.append(f"{self.name} commits {ready.commit_index}")
        self.reads += ready.reads
        self.failed_reads += ready.failed_reads
        self.events += [f"{self.name} read {token} at {index}" for token, index in ready.reads]
        self.events += [f"{self.name} read {token} fails" for token in ready.failed_reads]
        if ready.role is not None:
            event = ready.role
            leader = (
                f" of {event.leader}" if event.role.value == "follower" and event.leader else ""
            )
            done = " ready" if event.leader_ready else ""
            self.events.append(
                f"{self.name} is {event.role.value}{leader}{done} in term {event.term}"
                f" ({event.reason})"
            )

    def _fill(self, order: AppendOrder) -> AppendRequest:
        return AppendRequest(
            self.name,
            order.to,
            order.term,
            order.prev_index,
            order.prev_term,
            order.commit_index,
            tuple(self.log[order.first_index - 1 : order.last_index]),
        )

    def next_frame(self, payload: bytes) -> Frame:
        core = self.core
        position = self.log[-1].end if self.log else 0
        return make_frame(core.last_index + 1, core.term, position, payload)

    def propose(self, payload: bytes) -> None:
        self.core.propose(self.next_frame(payload))

    @property
    def terms(self) -> list[int]:
        return [frame.term for frame in self.log]


class Group:
    """Members and the messages between them."""

    def __init__(self, names: str = "abc", config: CoreConfig | None = None) -> None:
        self.names = list(names)
        self.config = config or CoreConfig()
        self.now_ms = 0.0
        self.members: dict[str, Member] = {}
        self.queue: list[Message] = []
        self.dropped: set[tuple[str, str]] = set()
        self.lost: list[Message] = []
        for name in self.names:
            self.add(name)

    def add(
        self, name: str, terms: list[int] | None = None, hard_state: HardState | None = None
    ) -> Member:
        """Put a member with this log in place."""
        seed = ord(name[0])
        member = Member(name, self.names, terms, hard_state, self.config, seed)
        self.members[name] = member
        return member

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def work(self) -> list[str]:
        """Let everybody perform what is ready; returns what happened."""
        events: list[str] = []
        for member in self.members.values():
            member.now_ms = self.now_ms
            member.work()
            events += member.events
            member.events.clear()
            for message in member.outbox:
                if message.to in self.members:
                    self.queue.append(message)
            member.outbox.clear()
        return events

    def deliver_one(self, at: int = 0) -> tuple[Message, bool]:
        """Take the message `at` from the queue; (message, whether it arrived)."""
        message = self.queue.pop(at)
        if (message.sender, message.to) in self.dropped or self.members[message.to].down:
            self.lost.append(message)
            return message, False
        self.members[message.to].core.step(message, self.now_ms)
        return message, True

    def settle(self, limit: int = 2_000) -> list[str]:
        """Deliver until nothing is on the way."""
        events = self.work()
        while self.queue:
            limit -= 1
            assert limit, "messages without end"
            self.deliver_one()
            events += self.work()
        return events

    def run(self, ms: float) -> list[str]:
        """Let time pass while links take no time at all; returns events."""
        return self.tick(ms, self.settle)

    def tick(self, ms: float, work: Callable[[], list[str]] | None = None) -> list[str]:
        """Let time pass, each member ticking when it has something to do; returns events."""
        work = work or self.work
        events = work()
        end_ms = self.now_ms + ms
        cores = [member.core for member in self.members.values() if not member.down]
        while (due_ms := min(core.next_deadline_ms for core in cores)) <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for core in cores:
                if core.next_deadline_ms <= self.now_ms:
                    core.tick(self.now_ms)
                    events += work()
        self.now_ms = end_ms
        return events

    def campaign(self, name: str) -> None:
        """Let `name` find its election time-out over, without time passing for anybody."""
        core = self.members[name].core
        core.timer.due_ms = self.now_ms
        core.tick(self.now_ms)

    def elect(self, name: str) -> None:
        """Make `name` the leader, ready, and known to everybody it reaches."""
        self.elect_unready(name)
        assert self.members[name].core.leader_ready, (name, self.members[name].core.role)

    def elect_unready(self, name: str) -> None:
        """Make `name` campaign as if nobody had heard of a leader for long."""
        self.now_ms += self.config.election_ms_max * 2
        self.campaign(name)
        self.settle()

    def inject(self, message: Message) -> None:
        """Deliver a message that is not on the queue: late, repeated or made up."""
        self.members[message.to].core.step(message, self.now_ms)
