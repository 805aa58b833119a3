"""Requests that are served in steps, and the watch over the turns that requests take."""

import asyncio
import logging

from raftmq.remoting.codec import encode_command
from raftmq.remoting.command import ONEWAY_FLAG, RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fair_scheduling import WATCH_S, Turns, Watch
from tests.remoting.harness import RawPeer, serving
from tests.waiting import until

STEPPED, PLAIN, SLOW = 1, 2, 3
COUNT = 1_000  # steps: more turns than another request needs to arrive


def no_turn_is_long_enough(monkeypatch):
    monkeypatch.setattr(Turns, "is_over", True)


def handlers(served, steps=5):
    def stepped(connection, request):
        for number in range(steps):
            served.append((request.opaque, number))
            yield
        return RemotingCommand.response_to(request)

    def plain(connection, request):
        served.append((request.opaque, "plain"))
        return RemotingCommand.response_to(request)

    return {STEPPED: stepped, PLAIN: plain}


async def test_request_in_steps_is_served_before_later_ones(monkeypatch) -> None:
    no_turn_is_long_enough(monkeypatch)
    served: list[tuple[int, object]] = []
    async with serving(handlers(served, COUNT)) as (server, address):
        first, other = await RawPeer.connect(address), await RawPeer.connect(address)
        await until(lambda: len(server.connections) == 2)
        commands = [RemotingCommand(STEPPED, 1), RemotingCommand(STEPPED, 2)]
        commands += [RemotingCommand(PLAIN, 3), RemotingCommand(STEPPED, 4)]
        first.writer.write(b"".join(map(encode_command, commands)))
        await until(lambda: served)
        other.writer.write(encode_command(RemotingCommand(PLAIN, 9)))
        assert (await other.answer()).opaque == 9
        assert [(await first.answer()).opaque for _ in range(4)] == [1, 2, 3, 4]
        own = [entry for entry in served if entry[0] != 9]
        steps = [(opaque, n) for opaque in (1, 2) for n in range(COUNT)]
        assert own == [*steps, (3, "plain"), *((4, n) for n in range(COUNT))]
        assert served.index((9, "plain")) < len(served) - 1, "others have their turns meanwhile"
        for peer in (first, other):
            await peer.close()


async def test_requests_behind_one_in_steps_wait_and_are_not_lost(monkeypatch) -> None:
    no_turn_is_long_enough(monkeypatch)
    served: list[tuple[int, object]] = []
    async with serving(handlers(served, steps=30)) as (_, address):
        peer = await RawPeer.connect(address)
        for opaque in range(1, 20):
            code = STEPPED if opaque % 3 == 1 else PLAIN
            peer.writer.write(encode_command(RemotingCommand(code, opaque)))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert [(await peer.answer()).opaque for _ in range(1, 20)] == list(range(1, 20))
        await peer.close()


async def test_error_in_a_step_is_answered_except_for_one_way() -> None:
    def failing(connection, request):
        yield
        raise RemotingError("in the second step")

    async with serving({STEPPED: failing}) as (_, address):
        peer = await RawPeer.connect(address)
        peer.writer.write(encode_command(RemotingCommand(STEPPED, 1, flag=ONEWAY_FLAG)))
        peer.writer.write(encode_command(RemotingCommand(STEPPED, 2)))
        answer = await peer.answer()
        assert (answer.opaque, answer.remark) == (2, "in the second step")
        await peer.close()


async def test_steps_of_a_closed_connection_are_ended(monkeypatch) -> None:
    no_turn_is_long_enough(monkeypatch)
    ended: list[str] = []
    steps: list[int] = []

    def endless(connection, request):
        try:
            while True:
                steps.append(1)
                yield
        finally:
            ended.append("closed")

    async with serving({STEPPED: endless}) as (server, address):
        peer = await RawPeer.connect(address)
        peer.writer.write(encode_command(RemotingCommand(STEPPED, 1)))
        await until(lambda: len(steps) > 1)
        for connection in tuple(server.connections):
            connection.abort("ended by the test")
        await until(lambda: ended)
        await peer.close()


async def test_turn_watch_counts_and_logs_long_requests(monkeypatch, caplog) -> None:
    """The time is made up: every look at the clock is half of WATCH_S later."""
    clock = iter(number * WATCH_S / 2 for number in range(10_000))
    monkeypatch.setattr("raftmq.remoting.connection.thread_time", lambda: next(clock))

    def looks(connection, request):
        next(clock), next(clock)  # fmt: skip
        return RemotingCommand.response_to(request)

    async def slow(request):
        await asyncio.sleep(0)
        next(clock), next(clock)  # fmt: skip
        await asyncio.sleep(0)
        return RemotingCommand.response_to(request)

    def slowly(connection, request):
        return slow(request)

    handled = {**handlers([]), STEPPED: looks, SLOW: slowly}
    async with serving(handled) as (server, address):
        peer = await RawPeer.connect(address)
        with caplog.at_level(logging.WARNING, "raftmq.remoting"):
            for code in (PLAIN, STEPPED, SLOW):
                peer.writer.write(encode_command(RemotingCommand(code, code)))
                await peer.answer()
        assert server.watch.long_turns == {STEPPED: 1, SLOW: 1}
        lines = [line for line in caplog.messages if line.startswith("long_turn")]
        assert [line.split()[1:3] for line in lines] == [
            [f"code={STEPPED}", "ms=30"],
            [f"code={SLOW}", "ms=30"],
        ]
        await peer.close()


def test_longest_turn_of_a_request_code_is_kept() -> None:
    watch = Watch()
    for seconds in (0.001, 0.003, 0.002):
        watch.note(11, "a peer", seconds)
    assert watch.longest_s == {11: 0.003} and not watch.long_turns
