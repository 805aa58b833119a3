"""The bounds on what connections make a process hold together, and which are closed at them."""

import asyncio
import random
from typing import cast

import pytest

from raftmq.remoting.codec import FrameReader, encode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, ConnectionLimits
from raftmq.remoting.memory_limits import (
    SMALL_BYTES,
    TASK_BYTES,
    Allowance,
    BudgetLimits,
    Budgets,
    Holding,
    Share,
)
from tests.remoting.harness import RawPeer, echo, on_both_loops, serving
from tests.waiting import until


class Peer:
    """A holder that notes how it ended."""

    def __init__(self, holding=None):
        self.unsent_bytes = 0
        self.reason = ""
        self.holding = holding

    def abort(self, reason):
        self.reason = reason
        if self.holding is not None:  # as a connection does
            self.holding.hold(self, 0, 0.0)


def test_oldest_large_holder_is_closed_first():
    holding = Holding("frames", 10 * SMALL_BYTES, oldest_first=True)
    small, first, second, third = (Peer(holding) for _ in range(4))
    holding.hold(small, 100, 0.0)
    holding.hold(first, 4 * SMALL_BYTES, 1.0)
    holding.hold(second, 5 * SMALL_BYTES, 2.0)
    assert not first.reason
    holding.hold(third, SMALL_BYTES, 3.0)
    assert first.reason and not (small.reason or second.reason or third.reason)
    assert holding.held_bytes == 100 + 6 * SMALL_BYTES
    assert holding.closed_count == 1


def test_holder_with_a_new_frame_counts_as_young():
    holding = Holding("frames", 3 * SMALL_BYTES, oldest_first=True)
    busy, idle = Peer(holding), Peer(holding)
    holding.hold(busy, SMALL_BYTES, 0.0)
    holding.hold(idle, SMALL_BYTES, 1.0)
    holding.restart(busy, SMALL_BYTES, 2.0)
    holding.hold(busy, 3 * SMALL_BYTES, 3.0)
    assert idle.reason and not busy.reason


def test_holder_of_most_unsent_bytes_is_closed_first():
    holding = Holding("unsent", 100, oldest_first=False)
    slow, quick, stuck = (Peer(holding) for _ in range(3))
    quick.unsent_bytes, slow.unsent_bytes, stuck.unsent_bytes = 0, 30, 60
    holding.hold(quick, 70, 0.0)
    holding.hold(slow, 30, 0.0)
    holding.hold(stuck, 60, 0.0)
    assert holding.held_bytes == 90 and holding.closed_count == 0
    slow.unsent_bytes = 41
    holding.hold(slow, 41, 0.0)
    assert stuck.reason and not slow.reason
    assert holding.held_bytes == 41


@pytest.mark.parametrize("seed", range(5))
def test_memory_limit_holds_over_random_operations(seed):
    random_ = random.Random(seed)
    for oldest_first in (True, False):
        holding = Holding("any", 1_000_000, oldest_first=oldest_first)
        peers = [Peer(holding) for _ in range(30)]
        for step in range(2_000):
            peer = random_.choice(peers)
            size = random_.choice([0, 1, 1_000, 70_000, 300_000, 999_999, 1_000_001])
            peer.unsent_bytes = size
            note = random_.choice([holding.hold, holding.restart])
            note(peer, size, float(step))
            if random_.random() < 0.01:
                holding.expire(step - 50.0)
            held = sum(size for _, size in holding._held.values())
            assert 0 <= holding.held_bytes == held <= 1_000_000


def test_frame_that_takes_too_long_closes_its_connection():
    holding = Holding("frames", 1_000, oldest_first=True)
    slow, quick = Peer(holding), Peer(holding)
    holding.hold(slow, 10, 5.0)
    holding.hold(quick, 10, 5.0)
    holding.hold(slow, 20, 9.0)  # more of the same frame
    holding.restart(quick, 10, 9.0)
    holding.expire(6.0)
    assert "too long" in slow.reason and not quick.reason
    assert holding.held_bytes == 10


def test_allowance_is_rejected_beyond_its_limit():
    allowance = Allowance(10)
    assert allowance.take(10) and not allowance.take(1)
    allowance.give_back(10)
    assert allowance.take(1) and allowance.refused_count == 1


def frame(size):
    return encode_command(RemotingCommand(1, 7, body=bytes(size)))


@on_both_loops
async def test_unfinished_frames_are_limited_over_all_connections() -> None:
    budgets = Budgets(BudgetLimits(unfinished_bytes_max=1 << 20))
    async with serving({1: echo}, budgets=budgets) as (server, address):
        attackers = []
        for _ in range(30):
            peer = await RawPeer.connect(address)
            peer.writer.write(frame(1 << 20)[:200_000])
            attackers.append(peer)
            good = await RawPeer.connect(address)
            good.writer.write(frame(300_000))
            assert (await good.answer()).opaque == 7
            await good.close()
            assert budgets.unfinished.held_bytes <= 1 << 20
        await until(lambda: budgets.unfinished.closed_count >= 25)
        assert budgets.unfinished.held_bytes <= 1 << 20
        for peer in attackers:
            await peer.close()
        await until(lambda: not server.connections)
        assert budgets.unfinished.held_bytes == budgets.unsent.held_bytes == 0


@on_both_loops
async def test_slow_frame_has_a_deadline() -> None:
    budgets = Budgets(BudgetLimits(frame_deadline_s=0.2))
    async with serving({1: echo}, budgets=budgets) as (server, address):
        peer = await RawPeer.connect(address)
        data = frame(1_000)
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        sent = 0
        while connection.is_open:
            assert sent < len(data), "it was whole before its deadline"
            peer.writer.write(data[sent : sent + 1])
            sent += 1
            await asyncio.sleep(0.02)
        assert "too long" in connection.close_reason
        await peer.close()


@on_both_loops
async def test_unread_answers_are_limited_over_all_connections() -> None:
    budgets = Budgets(BudgetLimits(unsent_bytes_max=8 << 20))
    limits = ConnectionLimits(write_high_bytes=1 << 20, write_low_bytes=1 << 16)
    async with serving({1: echo}, budgets=budgets, limits=limits) as (server, address):
        deaf = [await RawPeer.connect(address, limit=1024) for _ in range(12)]
        await until(lambda: len(server.connections) == len(deaf))
        for peer in deaf:
            cast(asyncio.Transport, peer.writer.transport).pause_reading()
        for connection in list(server.connections):
            for _ in range(4):
                connection.write(bytes(1 << 20))
            await asyncio.sleep(0)
            assert budgets.unsent.held_bytes <= 8 << 20
        assert sum(c.unsent_bytes for c in server.connections) <= 8 << 20
        for peer in deaf:
            peer.writer.transport.abort()
        await until(lambda: not server.connections)
        assert budgets.unsent.held_bytes == 0


@on_both_loops
async def test_slow_requests_of_all_connections_share_one_allowance() -> None:
    go_on = asyncio.Event()

    async def slow(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await go_on.wait()
        return RemotingCommand.response_to(request)

    budgets = Budgets(BudgetLimits(work_bytes_max=2 * (TASK_BYTES + 100)))
    async with serving({1: slow}, budgets=budgets) as (_, address):
        peers = [await RawPeer.connect(address) for _ in range(3)]
        for peer in peers[:2]:
            peer.writer.write(frame(100))
        await until(lambda: budgets.work.used_bytes == 2 * (TASK_BYTES + 100))
        peers[2].writer.write(frame(0))
        refused = await peers[2].answer()
        assert refused.code == 2 and (refused.remark or "").startswith("[BUSY]")
        go_on.set()
        assert [(await peer.answer()).code for peer in peers[:2]] == [0, 0]
        await until(lambda: budgets.work.used_bytes == 0)
        for peer in peers:
            await peer.close()


def test_frame_read_byte_by_byte_buffers_only_its_bytes():
    reader = FrameReader()
    data = frame(3_000)
    for at in range(len(data) - 1):
        assert reader.split(data[at : at + 1]) == []
        assert reader.buffered_bytes == at + 1
    assert len(reader.split(data[-1:])) == 1
    assert reader.buffered_bytes == 0


def test_share_is_part_of_its_allowance_and_returned_completely() -> None:
    allowance = Allowance(100)
    one, other = Share(allowance, 60), Share(allowance, 60)
    assert one.take(60) and not one.take(1)
    assert not other.take(41) and other.take(40)
    one.give_back(10)
    assert (one.used_bytes, allowance.used_bytes) == (50, 90)
    one.end()
    one.end()
    assert (one.used_bytes, allowance.used_bytes) == (0, 40)
