"""Steps on their way into the log: gathered while a command is in flight, and bounded."""

import asyncio
from typing import Any

import orjson
import pytest

from raftmq.broker.error_isolation import Contained
from raftmq.broker.errors import Refused, busy
from raftmq.broker.pop import command_batch as steps
from raftmq.broker.pop.command_batch import StepLog
from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX
from raftmq.dledger.raft.errors import Busy, NotLeader, OutcomeUnknown


class World:
    """Commands that were proposed, and the turns of the loop that were asked for."""

    def __init__(self, command_bytes_max=COMMAND_SIZE_BYTES_MAX):
        self.commands = []
        self.turns: list[Any] = []
        self.told = []
        self.errors = []
        self.leadership = 1
        self.pauses: list[Any] = []
        self.payloads = []
        self.refused = None
        self.log = StepLog(
            self.propose, Contained(), lambda: self.leadership, self.turns.append,
            self.pauses.append, check=self.check, command_bytes_max=command_bytes_max,
        )  # fmt: skip

    def check(self, step):
        if step[1] == self.refused:
            raise busy("it is being deleted")

    def propose(self, payload, done):
        self.payloads.append(payload)
        self.commands.append(([step[1] for step in orjson.loads(payload)["steps"]], done))

    def add(self, *names):
        self.log.add([("done", name) for name in names], lambda error: self.tell(names, error))

    def tell(self, names, error):
        self.told.append(names)
        self.errors.append(error)

    def turn(self):
        turns, self.turns[:] = list(self.turns), []
        for act in turns:
            act()

    def end(self, error=None):
        self.commands[-1][1](error)

    @property
    def proposed(self):
        return [names for names, _ in self.commands]


def test_pop_steps_during_a_command_share_the_next_command():
    world = World()
    world.add(1)
    world.add(2, 3)
    assert world.commands == []
    world.turn()
    world.add(4)
    world.add(5)
    world.turn()
    assert [names for names, _ in world.commands] == [[1, 2, 3]]
    world.end()
    assert world.told == [(1,), (2, 3)]
    assert [names for names, _ in world.commands] == [[1, 2, 3], [4, 5]]


def test_pop_step_added_in_a_callback_waits_for_the_next_command():
    world = World()
    world.log.add([("done", 1)], lambda error: world.add(2))
    world.turn()
    world.end()
    world.turn()
    world.add(3)
    world.turn()
    assert [names for names, _ in world.commands] == [[1], [2]]
    world.end()
    assert [names for names, _ in world.commands] == [[1], [2], [3]]


def test_pop_steps_are_limited(monkeypatch):
    step_bytes_max = 3 * steps.VALUE_BYTES + len("done") * steps.CHARACTER_BYTES_MAX
    monkeypatch.setattr(steps, "COMMAND_BYTES_MAX", 3 * step_bytes_max)
    monkeypatch.setattr(steps, "GATHERED_MAX", 4)
    world = World()
    for number in range(4):
        world.add(number, number)
    with pytest.raises(Refused, match="BUSY"):
        world.add(9)
    world.turn()
    assert [names for names, _ in world.commands] == [[0, 0]]
    for _ in range(3):
        world.end()
    assert len(world.commands) == 4


def test_pop_command_has_room_for_the_longest_names():
    """Of groups, topics, clients and attempts, in whatever characters."""
    world, longest = World(), "\x01" * 255
    step = ("pop", longest, longest, 65_535, 1 << 62, 1 << 41, [1 << 62] * 32, longest, longest)
    for _ in range(2_000):
        world.log.add([step], lambda error: None)
    world.turn()
    (payload,) = world.payloads
    assert len(payload) < COMMAND_SIZE_BYTES_MAX
    world.end()
    assert len(world.payloads) == 2


def test_pop_commands_are_split_to_the_size_of_the_log():
    """Segments may be smaller than a command of steps would be."""
    world, longest = World(command_bytes_max=50_000), "\x01" * 255
    step = ("pop", longest, longest, 65_535, 1 << 62, 1 << 41, [1 << 62] * 32, longest, longest)
    for _ in range(20):
        world.log.add([step], lambda error: None)
    world.turn()
    while sum(len(names) for names in world.proposed) < 20:
        world.end()
    assert len(world.payloads) > 1
    assert 40_000 < max(map(len, world.payloads)) <= 50_000


def test_pop_steps_of_an_earlier_leadership_are_rejected():
    """It was decided on top of what is under way, which may not be in the log."""
    world = World()
    world.add(1)
    world.turn()
    world.add(2)
    world.leadership += 1
    world.add(3)
    world.end(OutcomeUnknown("no fate in time"))
    assert world.proposed == [[1], [3]]
    assert world.told == [(1,), (2,)]
    assert [type(error) for error in world.errors] == [OutcomeUnknown, Refused]


def test_pop_command_of_unknown_outcome_ends_once_a_later_one_is_applied():
    world = World()
    world.add(1)
    world.turn()
    world.add(2)
    world.end(OutcomeUnknown("no fate in time"))
    assert world.proposed == [[1], []] and world.told == []
    world.end(OutcomeUnknown("no fate in time"))
    assert world.proposed == [[1], [], []] and world.told == []
    world.end(Busy("many commands wait already"))
    assert world.proposed == [[1], [], []] and len(world.pauses) == 1
    world.pauses.pop()()
    world.end()
    assert world.told == [(1,)] and world.errors == [None]
    assert world.proposed == [[1], [], [], [], [2]]


def test_unknown_pop_outcome_stays_unknown_after_a_lost_leadership():
    for error in (None, NotLeader(None), OutcomeUnknown("no fate in time")):
        world = World()
        world.add(1)
        world.turn()
        world.end(OutcomeUnknown("no fate in time"))
        world.leadership += 1
        world.end(error)
        for act in world.pauses:
            act()
        assert world.told == [(1,)]
        assert type(world.errors[0]) is OutcomeUnknown


async def test_deletion_waits_for_proposed_pop_steps_and_rejects_waiting_ones():
    world = World()
    await world.log.settled()
    assert world.commands == []  # older programs would stop at an empty one, too
    world.add(1)
    world.turn()
    world.add(2)
    world.refused = 3
    with pytest.raises(Refused):
        world.add(4, 3)
    settled = asyncio.ensure_future(world.log.settled())
    await asyncio.sleep(0)
    world.end()
    await asyncio.sleep(0)
    assert (world.proposed, settled.done()) == ([[1], [2]], False)
    world.end()
    await settled
    assert world.told == [(1,), (2,)]
    world.add(5)
    world.turn()
    settled = asyncio.ensure_future(world.log.settled())
    await asyncio.sleep(0)
    world.leadership = 2
    world.end()
    with pytest.raises(Refused, match="NOT_LEADER"):
        await settled
