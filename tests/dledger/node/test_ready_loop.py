"""The order of a pump's effects, with parts that only note what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.ready_loop import Life, Pump
from raftmq.dledger.raft.errors import NotLeader
from raftmq.dledger.raft.messages import (
    AppendOrder,
    HardState,
    Ready,
    Role,
    RoleEvent,
    TimeoutNow,
    VoteResponse,
)
from raftmq.dledger.transport.wire import MessageReader
from tests.dledger.group import make_log
from tests.waiting import until

FRAMES = tuple(make_log([1, 1]))
EVENT = RoleEvent(Role.LEADER, 1, "n0", False, "")
ORDER = AppendOrder("n1", 1, 0, 0, 1, 2, 1)
TRANSFER = TimeoutNow("n0", "n2", 1)


class World:
    """A pump whose core wants what is put into `damaged_frame`; `trace` is what was done."""

    def __init__(self) -> None:
        self.trace: list[Any] = []
        self.damaged_frame: list[Ready] = []
        self.then: Callable[[BaseException | None], None] | None = None
        self.write_error: OSError | None = None
        self.sent: list[list[str]] = []  # kinds of the messages that may be dropped, by write
        self.takes = True
        note = self.note
        core = SimpleNamespace(
            node_id="n0",
            ready=lambda: self.damaged_frame.pop(0) if self.damaged_frame else None,
            wants_noop=False,
            recovered=True,
            leader="n0",
            term=1,
            commit_index=2,
            last_index=2,
            step_down=note("step down"),
            lose_promises=note("lose promises"),
            peer_opened=note("opened"),
        )
        self.log = log = SimpleNamespace(
            last_index=2,
            index=SimpleNamespace(first_index=1),
            frames=lambda first, last: FRAMES[first - 1 : last],
            header_crc=lambda index: FRAMES[index - 1].header_crc if index else None,
        )
        self.saver = SimpleNamespace(busy=False, save=self.save)
        self.applier = SimpleNamespace(
            applied_index=1, advance=note("apply"), stop=note("stop applying")
        )
        self.pump = Pump(
            life=Life(running=True),
            core=cast(Any, core),
            core_ms=cast(Any, None),
            log=cast(Any, log),
            writer=cast(Any, SimpleNamespace(append=self.append, truncate=note("truncate"))),
            promises=cast(Any, SimpleNamespace(recovering=None)),
            saver=cast(Any, self.saver),
            disk=cast(
                Any,
                SimpleNamespace(
                    written=note("sync"),
                    full=note("full"),
                    failed=note("disk failed"),
                ),
            ),
            links=cast(
                Any,
                SimpleNamespace(send=self.send, abort=note("abort")),
            ),
            applier=cast(Any, self.applier),
            proposer=cast(
                Any,
                SimpleNamespace(
                    frame_due=False,
                    propose_change=lambda: False,
                    propose_next=lambda: False,
                    close=note("close proposals"),
                ),
            ),
            reads=cast(
                Any,
                SimpleNamespace(
                    confirmed=note("read"), failed=note("no read"), close=note("close reads")
                ),
            ),
            roles=cast(
                Any, SimpleNamespace(serving=False, changed=note("role"), end=note("role ends"))
            ),
            on_members=note("members"),
            on_fatal=note("fatal"),
        )

    def note(self, what: str) -> Callable[..., None]:
        return lambda *about, **_: self.trace.append((what, *about) if about else what)

    def append(self, frames: object) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.trace.append("append")

    def save(self, state: HardState, then: Callable[[BaseException | None], None]) -> None:
        self.trace.append(("save", state.term))
        self.saver.busy, self.then = True, then

    def saved(self, error: BaseException | None = None) -> None:
        assert self.then is not None
        self.saver.busy, then = False, self.then
        then(error)

    def send(self, peer: str, buffers: list[bytes], droppable: bool) -> bool:
        self.trace.append(("send", peer, "frames" if droppable else "control"))
        if droppable:
            reader = MessageReader("n0", peer)
            self.sent.append([type(m).__name__ for m in reader.receive_data(b"".join(buffers))])
        return self.takes


NOTHING = Ready(
    truncate_from=None,
    append=(),
    hard_state=None,
    messages=(),
    commit_index=None,
    reads=(),
    failed_reads=(),
    role=None,
)
EVERYTHING = Ready(
    hard_state=HardState(1, "n0"),
    truncate_from=1,
    append=FRAMES,
    messages=(ORDER, TRANSFER),
    commit_index=2,
    reads=((7, 2),),
    failed_reads=(8,),
    role=EVENT,
    configuration_changed=True,
)
PERSISTED = [("truncate", 1), "append", ("save", 1)]
SENT = [("send", "n2", "control"), ("send", "n1", "frames")]
ACKNOWLEDGED = ["sync", "members", ("read", 7, 2, 1), ("no read", 8, "n0"), ("role", EVENT, 2, 1)]


def test_pump_persists_then_sends_then_acknowledges_then_applies() -> None:
    world = World()
    world.damaged_frame = [EVERYTHING, replace(NOTHING, messages=(TRANSFER,))]
    world.pump.run()
    assert world.trace == PERSISTED  # nothing further while term and vote are being saved
    world.pump.run()
    assert world.trace == PERSISTED
    world.saved()
    more = [("send", "n2", "control"), ("apply", 2)]
    assert world.trace == PERSISTED + SENT + ACKNOWLEDGED + more


def test_append_names_its_preceding_frame_only_where_the_peer_needs_it() -> None:
    world = World()

    def sent(prev: int, term: int = 1) -> list[str]:
        world.sent.clear()
        order = AppendOrder("n1", term, prev, prev and 1, prev + 1, prev + 1, 1)
        world.damaged_frame = [replace(NOTHING, messages=(order,))]
        world.pump.run()
        (kinds,) = world.sent
        return kinds

    append, both = ["AppendRequest"], ["PrevFrame", "AppendRequest"]
    assert (sent(0), sent(1)) == (append, append)  # behind nothing, and behind that
    assert (sent(1), sent(1, term=2)) == (both, both)
    sent(0)
    world.pump.link_opened("n1")
    assert sent(1) == both
    sent(0)
    world.takes = False
    assert (sent(1), sent(1)) == (append, both)  # the first one was dropped


def test_frames_deleted_by_retention_during_a_vote_save_are_not_sent() -> None:
    world = World()
    world.damaged_frame = [EVERYTHING]
    world.pump.run()
    world.log.index.first_index = 2
    world.saved()
    assert world.trace == [*PERSISTED, SENT[0], *ACKNOWLEDGED, ("apply", 2)]


def test_pump_sends_nothing_after_a_failed_hard_state_save() -> None:
    world = World()
    world.damaged_frame = [EVERYTHING]
    world.pump.run()
    world.saved(OSError("broken"))
    failure = world.pump.life.failure
    assert failure is not None and failure.startswith("saving term and vote failed")
    assert world.trace == [
        *PERSISTED,
        ("disk failed", failure),
        "stop applying",
        ("step down", failure),
        "abort",
        ("role ends", 1, failure),
        ("close proposals", failure),
        "close reads",
        ("fatal", failure),
    ]
    world.damaged_frame = [EVERYTHING]
    world.pump.run()
    assert world.damaged_frame == [EVERYTHING]


def test_replica_that_lost_promises_sends_no_message_of_the_saved_vote() -> None:
    world = World()
    vote = VoteResponse("n0", "n1", 1, 1, pre_vote=False, granted=True)
    world.damaged_frame = [replace(NOTHING, hard_state=HardState(1, "n1"), messages=(vote,))]
    world.pump.run()
    world.pump.lose_promises(5, "the clock")
    world.saved()
    assert world.trace == [("save", 1), ("lose promises", 5, "the clock")]


def test_failed_write_ends_the_member_and_sends_no_message_of_its_batch() -> None:
    world = World()
    world.write_error = OSError("broken")
    world.damaged_frame = [EVERYTHING]
    world.pump.run()
    assert not world.pump.life.running
    assert not [what for what in world.trace if what[0] in ("send", "save")]
    assert world.trace[-1] == ("fatal", world.pump.life.failure)


@pytest.mark.parametrize("error", [OSError(5, "cannot read"), AssertionError("broken")])
def test_disk_error_in_any_step_marks_the_disk_as_failed(error: Exception) -> None:
    def fails() -> None:
        raise error

    for meet in (lambda pump: pump.drive(fails), lambda pump: pump.apply_failed(error)):
        world = World()
        meet(world.pump)
        failure = world.pump.life.failure
        assert failure is not None
        assert (("disk failed", failure) in world.trace) is isinstance(error, OSError)


def test_broken_invariant_fails_the_callers_request_and_ends_the_member() -> None:
    world = World()

    def breaks() -> None:
        raise AssertionError("broken")

    try:
        world.pump.ask(breaks)
    except AssertionError:
        pass
    else:
        raise AssertionError("it was not told")
    assert world.pump.life.failure is not None
    try:
        world.pump.ask(breaks)
    except NotLeader:
        return
    raise AssertionError("it went on")


def test_nested_pump_call_leaves_its_work_to_the_outer_call() -> None:
    world = World()
    world.damaged_frame = [replace(NOTHING, role=EVENT), replace(NOTHING, messages=(TRANSFER,))]
    depth: list[int] = []

    def changed(*_: object) -> None:
        world.pump.run()
        depth.append(len(world.damaged_frame))

    world.pump.roles.changed = changed  # type: ignore[assignment, method-assign]
    world.pump.run()
    assert depth == [1]
    assert world.trace == [("send", "n2", "control")]


async def test_role_change_resets_the_alarm_to_the_new_deadline() -> None:
    world = World()
    rings: list[int] = []
    world.pump.alarm.start(lambda: rings.append(1))
    world.pump.alarm.set(10_000_000)
    world.damaged_frame = [replace(NOTHING, messages=(TRANSFER,))]
    world.pump.run()
    await asyncio.sleep(0.01)
    assert not rings
    world.damaged_frame = [replace(NOTHING, role=EVENT)]
    world.pump.run()
    await until(lambda: rings)
    world.pump.alarm.stop()


def test_silenced_member_sends_nothing_and_reports_no_disk_failure() -> None:
    world = World()
    world.pump.silence("a group snapshot")
    assert world.trace == [
        "stop applying",
        "abort",
        ("close proposals", "a group snapshot"),
        "close reads",
    ]
    world.pump.fail("late", OSError())
    assert len(world.trace) == 4
    assert world.pump.life.failure == "a group snapshot"
