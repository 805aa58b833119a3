"""Arrivals take turns: a loop with many busy connections does the rest of its work on time."""

import asyncio
import time

import pytest
import uvloop

from raftmq.remoting.codec import encode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fair_scheduling import TURN_S, Steps, StepTurns, Turns, finish
from tests.remoting.harness import RawPeer, on_both_loops, serving
from tests.waiting import until


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_loop_turn_serves_a_bounded_part_of_busy_connections(loop_factory):
    """Each of 40 requests takes a good part of a turn, and all are there at once."""
    served: list[int] = []
    most_in_a_turn = 0

    def busy(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        time.sleep(TURN_S / 2)
        served.append(request.opaque)
        return RemotingCommand.response_to(request)

    async def watch() -> None:
        nonlocal most_in_a_turn
        seen = 0
        while seen < 40:
            most_in_a_turn = max(most_in_a_turn, len(served) - seen)
            seen = len(served)
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with serving({1: busy}) as (server, address):
            peers = [await RawPeer.connect(address) for _ in range(40)]
            await until(lambda: len(server.connections) == 40)
            watching = asyncio.create_task(watch())
            for number, peer in enumerate(peers):
                peer.writer.write(encode_command(RemotingCommand(1, number)))
            async with asyncio.timeout(60):
                await watching
            answers = [await peer.answer() for peer in peers]
            assert [answer.opaque for answer in answers] == list(range(40))
            for peer in peers:
                await peer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
    assert sorted(served) == list(range(40))
    assert most_in_a_turn <= 6  # two in the turn of arrivals, as many of those put off


@on_both_loops
async def test_deferred_requests_are_served_in_order_and_none_lost_on_close() -> None:
    served: list[int] = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        time.sleep(TURN_S / 5)
        served.append(request.opaque)
        return RemotingCommand.response_to(request)

    async with serving({1: note}) as (server, address):
        peers = [await RawPeer.connect(address) for _ in range(10)]
        for start in range(10):
            for number, peer in enumerate(peers):
                frame = encode_command(RemotingCommand(1, 1_000 * number + start, flag=2))
                peer.writer.write(frame)
                await peer.writer.drain()
            await asyncio.sleep(0)
        for peer in peers:
            peer.writer.close()
        async with asyncio.timeout(60):
            await until(lambda: len(served) == 100 and not server.connections)
        for number in range(10):
            own = [opaque % 1_000 for opaque in served if opaque // 1_000 == number]
            assert own == list(range(10))


async def test_used_up_turn_defers_arrivals_to_a_later_one():
    turns = Turns(asyncio.get_running_loop(), turn_s=1e-9)
    assert turns.start()
    turns.done()
    assert not turns.start()
    await asyncio.sleep(0)
    assert turns.start()

    class Arrived:
        turns_taken = 0

        def take_turn(self):
            Arrived.turns_taken += 1

    turns.wait(Arrived())
    assert not turns.start(), "who arrives later is served later"
    await asyncio.sleep(0)
    assert Arrived.turns_taken == 1 and turns.start()


async def test_exception_in_a_turn_does_not_affect_other_connections():
    taken: list[int] = []
    reports: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))
    turns = Turns(loop)

    class Arrived:
        def __init__(self, number):
            self.number = number

        def take_turn(self):
            taken.append(self.number)
            if self.number == 1:
                raise RuntimeError("of this one alone")

    for number in range(3):
        turns.wait(Arrived(number))
    async with asyncio.timeout(60):
        await until(lambda: len(taken) == 3)
    assert taken == [0, 1, 2] and len(reports) == 1
    turns.wait(Arrived(3))
    async with asyncio.timeout(60):
        await until(lambda: len(taken) == 4)


@on_both_loops
async def test_large_work_shares_one_turn_and_returns_results() -> None:
    """20 requests of large work cost the loop one turn at a time, not one each."""
    worked = 0

    def work(number: int) -> Steps[int]:
        nonlocal worked
        for _ in range(4):
            time.sleep(TURN_S / 2)
            worked += 1
            yield
        if number == 7:
            raise ValueError("of number 7")
        return number

    turns = StepTurns()
    running = [asyncio.ensure_future(turns.run(work(number))) for number in range(20)]
    running[3].cancel()
    most_in_a_turn = seen = 0
    while not all(one.done() for one in running):
        most_in_a_turn = max(most_in_a_turn, worked - seen)
        seen = worked
        await asyncio.sleep(0)
    results = await asyncio.gather(*running, return_exceptions=True)
    assert most_in_a_turn <= 2  # the second step ends after the turn
    assert isinstance(results[3], asyncio.CancelledError)
    assert isinstance(results[7], ValueError)
    assert [one for one in results if isinstance(one, int)] == [
        number for number in range(20) if number not in (3, 7)
    ]
    assert finish(work(5)) == 5
