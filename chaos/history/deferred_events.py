"""The events of a history about messages that consumers get later, if ever, and of locks. Pure.

A transaction, a delayed message or a retry is consumed at a position that differs from the
acknowledged position, so it is no `Send`. Each record is an event by itself; the records of an
operation share its number. `work` names the workload. Format: docs/history.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from .events import History, Kind, Outcome, Send

COMMIT = "commit"
ROLLBACK = "rollback"
UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Post:
    """The start (`outcome` OPEN) or end of a message's send."""

    t_ns: int
    outcome: Outcome
    work: str
    id: str
    topic: str
    delay_ms: int  # how long consumers have to wait for it; 0: not at all
    attempts: int  # stored at most so often; 0 while open
    error: str = ""
    process: str = ""
    op: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A producer's decision on a half message, by itself (OPEN: starts; OK: the broker has it;
    UNKNOWN: not certain), or at a broker's check-back (`check`: its answer)."""

    t_ns: int
    outcome: Outcome
    id: str
    decision: str  # COMMIT, ROLLBACK, UNDECIDED
    check: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """A listener was given the message at this position. `times`: how often it had been given back
    when it was stored; `accepted`: it was not given back this time."""

    t_ns: int
    process: str
    work: str
    group: str
    topic: str  # the stored topic: %RETRY%…, %DLQ%…
    broker: str
    queue: int
    offset: int
    id: str
    store_ms: int  # by the wall clock of the broker that stored it
    times: int
    accepted: bool

    @property
    def position(self) -> tuple[str, str, int, int]:
        return (self.broker, self.topic, self.queue, self.offset)


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A consumer gives a message back (OPEN), and the broker has it (OK) or perhaps (UNKNOWN).

    `times`: as stored; `seen`: as the client counts, which is more if it redelivered the message by
    itself. `tries`: requests sent, each of which may have stored it once. `dead`: it was tried
    often enough, and becomes a dead letter.
    """

    t_ns: int
    outcome: Outcome
    work: str
    id: str
    times: int
    seen: int
    tries: int
    dead: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A record found in a topic of the broker's own, when that was read at the end. `born_ms`: the
    born time of a delayed message that another broker group may have moved here, else 0."""

    t_ns: int
    work: str
    id: str
    broker: str
    queue: int
    offset: int
    store_ms: int
    born_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scanned:
    """The broker's own topic was read to its end; the records found precede this event."""

    t_ns: int
    work: str
    records: int


@dataclass(frozen=True, slots=True)
class Worked:
    """An orderly consumer worked on messages [first, last] of a queue, from `began_ns` to `t_ns`;
    `done`: it finished them."""

    t_ns: int
    process: str
    group: str
    topic: str
    broker: str
    queue: int
    began_ns: int
    first: int
    last: int
    done: bool


@dataclass(frozen=True, slots=True)
class LockRequested:
    """A request for a queue's lock, or an unlock (`unlock`): started (OPEN), answered (OK:
    `granted`, or owned by another client), or not sent (FAIL)."""

    t_ns: int
    outcome: Outcome
    op: int
    process: str
    group: str
    topic: str
    broker: str
    queue: int
    unlock: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class Popped:
    """A consumer popped a message, with a request sent at `began_ns` (the history's clock); the
    message is invisible from some time since then on. `times` counts earlier deliveries."""

    t_ns: int
    process: str
    work: str
    group: str
    topic: str
    id: str
    began_ns: int
    invisible_ms: int
    times: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An acknowledgement of a popped message (`what` ack) or a change of its invisible time
    (change): started (OPEN), answered (OK), rejected with a void handle (FAIL), or unknown."""

    t_ns: int
    outcome: Outcome
    op: int
    process: str
    work: str
    id: str
    what: str
    invisible_ms: int


def all_sends(history: History) -> list[Send]:
    """Return all sends, for figures and charts, with posts as sends."""
    posts: dict[int, Send] = {}
    for kind, event in history.later:
        if kind is not Kind.POSTED:
            continue
        send = posts.get(event.op)
        if send is None:
            posts[event.op] = Send(
                event.op, event.process, event.id, event.topic, event.id, "", 0,
                event.t_ns, event.t_ns,
            )  # fmt: skip
        else:
            send.outcome, send.done_ns, send.attempts = event.outcome, event.t_ns, event.attempts
    return [*history.sends, *posts.values()]
