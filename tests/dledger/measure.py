"""Measure the shell's cost: three members in one process and loop, over loopback and real files.

    python -m tests.dledger.measure [SYNC_FLUSH|ASYNC_FLUSH] [--profile]

Prints the time of one 128-byte message from send to applied on the leader (one in flight), the
processor time per group commit of all three members together, and the rate with many in flight.
Not a test: nothing here passes or fails.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from raftmq.dledger.storage.log_flusher import FlushMode
from tests.dledger.members import Group, Node

BODY = b"x" * 128


async def one_in_flight(node: Node, count: int) -> list[float]:
    """Microseconds of each send."""
    loop = asyncio.get_running_loop()
    took: list[float] = []
    app = node.app
    done: asyncio.Future[None] = loop.create_future()
    started = 0.0

    def send() -> None:
        nonlocal started
        app.fates.clear()
        started = time.perf_counter()
        app.send(BODY)

    def woken() -> None:
        if app.fates:
            took.append((time.perf_counter() - started) * 1e6)
            app.frames.clear()
            if len(took) < count:
                loop.call_soon(send)
            elif not done.done():
                done.set_result(None)

    app.wake = woken
    send()
    await done
    return took


async def many_in_flight(node: Node, count: int, width: int) -> float:
    """Messages a second with `width` of them waiting at any time."""
    loop = asyncio.get_running_loop()
    app = node.app
    done: asyncio.Future[None] = loop.create_future()
    sent = answered = 0

    def woken() -> None:
        nonlocal sent, answered
        got = len(app.fates)
        if not got:
            return
        answered += got
        app.fates.clear()
        app.frames.clear()
        if answered >= count:
            if not done.done():
                done.set_result(None)
            return
        for _ in range(got):
            sent += 1
            app.send(b"%d" % sent + BODY)

    app.wake = woken
    began = time.perf_counter()
    for _ in range(width):
        sent += 1
        app.send(b"%d" % sent + BODY)
    await done
    return answered / (time.perf_counter() - began)


async def main(flush: FlushMode, profiled: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        async with Group(Path(root), flush=flush, segment_size_bytes=256 << 20) as group:
            leader = await group.leader()
            await one_in_flight(leader, 500)
            profile = cProfile.Profile()
            if profiled:
                profile.enable()
            count = 5000
            cpu = time.process_time()
            took = sorted(await one_in_flight(leader, count))
            cpu = time.process_time() - cpu
            if profiled:
                profile.disable()
                pstats.Stats(profile).sort_stats("tottime").print_stats(45)
            print(
                f"{flush.value} one in flight: p50 {took[count // 2]:.0f} us, "
                f"p99 {took[count * 99 // 100]:.0f} us, "
                f"processor time {cpu / count * 1e6:.0f} us a commit (all three members)"
            )
            rate = await many_in_flight(leader, 200_000, 256)
            mean = sum(leader.app.cuts[-500:]) / 500
            print(f"{flush.value} 256 in flight: {rate:.0f} messages/s, {mean:.0f} a frame")


if __name__ == "__main__":
    modes = [FlushMode(a) for a in sys.argv[1:] if not a.startswith("-")] or list(FlushMode)
    for mode in modes:
        uvloop.run(main(mode, "--profile" in sys.argv))
