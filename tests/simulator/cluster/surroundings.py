"""What programs ask the operating system for outside of loop, disk and network: the time and its
zone, random numbers, process ids, the host's address, memory and limits, locks, ports. In a
`simulated` block all of it comes from one world.
"""

from __future__ import annotations

import calendar
import gc
import itertools
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from raftmq.dledger.transport.inbound import Accepted
from raftmq.remoting.connection import Connection
from raftmq.store.store_lock import Owner, StoreInUse, StoreLock
from tests.simulator.cluster.loop import PROCESS, SimLoop, number_anew, numbered_hash
from tests.simulator.cluster.machine import WALL_MS
from tests.simulator.cluster.network import HOST, BoundPort

PID = 4_000
DESCRIPTORS = 1 << 20
SYSCONF = {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096, "SC_CLK_TCK": 100}
HASHED_BY_ADDRESS = (Connection, Accepted)  # that programs keep in sets


class _NoCollection:
    """Stands for the module gc in programs that tune it for their process."""

    @staticmethod
    def collect() -> int:
        return 0

    @staticmethod
    def freeze() -> None:
        pass

    @staticmethod
    def set_threshold(*_: int) -> None:
        pass


@contextmanager
def simulated(loop: SimLoop, rng: random.Random) -> Iterator[None]:
    """Let everything come from this world."""
    number_anew()
    drawn = random.Random(rng.getrandbits(64))
    held: dict[str, SimLock] = {}

    class Seeded(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(drawn.getrandbits(64) if seed is None else seed)

    def wall_ns() -> int:
        process = PROCESS.get()
        offset_ms = process.machine.wall_offset_ms if process is not None else 0
        return (WALL_MS + offset_ms) * 1_000_000 + int(loop.now_s * 1e9)

    def pid() -> int:
        process = PROCESS.get()
        return PID if process is None else PID + process.pid

    def lock(root: str, what: str) -> SimLock:
        result = held.get(root)
        if result is not None and result.process.alive:
            raise StoreInUse(root, Owner("here", pid(), what))
        one = held[root] = SimLock(root, held)
        return one

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: wall_ns() / 1e9),
        (time, "time_ns", wall_ns),
        (time, "monotonic", lambda: loop.now_s),
        (time, "monotonic_ns", lambda: int(loop.now_s * 1e9)),
        (time, "perf_counter", lambda: loop.now_s),
        (time, "localtime", time.gmtime),
        (time, "mktime", calendar.timegm),
        (random, "Random", Seeded),
        (random, "_urandom", drawn.randbytes),
        (os, "urandom", drawn.randbytes),
        (os, "getpid", pid),
        (os, "sysconf", SYSCONF.__getitem__),
        (resource, "getrlimit", lambda _: (DESCRIPTORS, DESCRIPTORS)),
        (socket.socket, "getsockname", lambda _: (HOST, 0)),  # whence a datagram would be sent
        (socket, "gethostname", lambda: "simulated"),
        (sys, "unraisablehook", lambda _: None),
        *((one, "__hash__", numbered_hash) for one in HASHED_BY_ADDRESS),
    ]
    by_name = [
        ("raftmq.remoting.fair_scheduling.perf_counter", lambda: loop.now_s),
        ("raftmq.broker.startup.BoundPort", BoundPort),
        ("raftmq.broker.startup.lock_store", lock),
        ("raftmq.broker.process.gc", _NoCollection),
        ("raftmq.broker.process.click.echo", lambda *_, **__: None),
        ("raftmq.chaos.workloads.log.PACE_S", 0.02),
        ("raftmq.client.instance._instances", itertools.count()),
    ]
    state = random.getstate()
    random.seed(drawn.getrandbits(64))
    collecting = gc.isenabled()
    gc.disable()  # when a cycle is collected must not depend on what ran before
    gc.freeze()  # a collection looks at what the world made alone
    try:
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(patch.object(owner, name, value))
            for path, value in by_name:
                stack.enter_context(patch(path, value))
            yield
            gc.collect()  # while nobody hears what the dead complain of
    finally:
        random.setstate(state)
        gc.unfreeze()
        if collecting:
            gc.enable()


class SimLock(StoreLock):
    """The lock of a store, as long as its process lives."""

    def __init__(self, root: str, held: dict[str, SimLock]) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process = process
        self.root = root
        self.foreign = False
        self._held = held

    def record_opened(self) -> None:
        """Nothing: no other program has these stores."""

    def release(self) -> None:
        if self._held.get(self.root) is self:
            del self._held[self.root]
