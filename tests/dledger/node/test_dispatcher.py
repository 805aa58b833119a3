"""Messages from peers reach the right part, before the core runs and while it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from raftmq.dledger.node.dispatcher import Inbox
from raftmq.dledger.node.ready_loop import Life
from raftmq.dledger.raft.clock import StallAwareClock
from raftmq.dledger.raft.errors import MessageRefused, OtherHistory


class Repair:
    pass


class Install:
    pass


class Vote:
    pass


class World:
    """An inbox, and what happened because of it."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.life = Life()
        note = self.seen.append
        self.clock = StallAwareClock(lambda: 5.0, 75.0)
        self.inbox = Inbox(
            "n0",
            self.life,
            {Repair: lambda _: note("repair")},
            opened=lambda peer: note(("introduce to", peer)),
            refuse=lambda peer, reason: note(("refuse", peer)),
            disconnect=lambda peer, reason: note(("part", peer)),
            fail=lambda reason, error: note(("fail", reason)),
            disk_failed=lambda reason, error: note(("disk failed", reason)),
        )

    def open(self, step: object) -> None:
        core = SimpleNamespace(step=step, peer_closed="closed")
        pump = SimpleNamespace(
            core=core,
            link_opened="opened",
            core_ms=self.clock,
            run=lambda: self.seen.append("run") if self.life.running else None,
            drive=lambda *call: self.seen.append(call),
            alarm=SimpleNamespace(
                soon=lambda: self.seen.append("look at the clock"),
                now=lambda: self.seen.append("look at the clock now"),
            ),
        )
        self.inbox.open(cast(Any, pump), {Install: lambda _: self.seen.append("install")})
        self.life.running = True

    def receive(self, *messages: object) -> list[object]:
        self.seen.clear()
        self.inbox.on_messages(cast(Any, list(messages)))
        return list(self.seen)


def test_dispatcher_handles_only_repair_messages_before_the_core_runs() -> None:
    world = World()
    assert world.receive(Vote(), Repair(), Install()) == ["repair"]
    world.life.failure = "over"
    assert world.receive(Repair()) == []


def test_dispatcher_steps_the_core_and_then_runs_the_pump() -> None:
    world = World()
    world.open(lambda message, now_ms: world.seen.append((type(message), now_ms)))
    assert world.receive(Vote(), Repair(), Install(), Vote()) == [
        (Vote, 5.0),
        "repair",
        "install",
        (Vote, 5.0),
        "run",
    ]
    world.life.running = False  # it stops
    assert world.receive(Vote(), Repair(), Install()) == ["repair"]


def test_message_that_violates_the_protocol_closes_its_sender_s_connection() -> None:
    world = World()

    def step(message: object, now_ms: float) -> None:
        raise MessageRefused("n1", "because")

    world.open(step)
    assert world.receive(Vote(), Vote()) == [("refuse", "n1"), "run"]


def test_dispatcher_disconnects_a_sender_with_another_history() -> None:
    world = World()

    def step(message: object, now_ms: float) -> None:
        raise OtherHistory("n1", "because")

    world.open(step)
    assert world.receive(Vote(), Vote()) == [("part", "n1"), "run"]


def test_broken_invariant_ends_the_member() -> None:
    world = World()
    world.open(lambda message, now_ms: 1 // 0)
    assert world.receive(Vote()) == [("fail", "a message broke an invariant")]


def test_disk_error_during_dispatch_is_reported_as_a_disk_error() -> None:
    def step(message: object, now_ms: float) -> None:
        raise OSError(5, "cannot read")

    world = World()
    world.open(step)
    assert world.receive(Vote()) == [("disk failed", "the disk failed at a message")]


def test_dispatcher_reads_the_clock_at_a_message_when_a_turn_is_due() -> None:
    world = World()
    world.open(lambda message, now_ms: world.seen.append("step"))
    assert world.receive(Vote()) == ["step", "run"]
    world.clock.turn_due_ms = 5.0
    assert world.receive(Vote(), Vote()) == ["look at the clock now", "step", "step", "run"]


def test_dispatcher_reports_links_to_the_core_only_once_it_runs() -> None:
    world = World()
    world.inbox.on_opened("n1")
    assert world.seen == [("introduce to", "n1")]
    world.open(None)
    world.inbox.on_opened("n1")
    world.inbox.on_closed("n1")
    assert world.seen[1:] == [
        *(("introduce to", "n1"), ("opened", "n1")),
        *(("closed", "n1", 5.0), "look at the clock"),
    ]
