"""A simulated process: a main coroutine, its tasks, its threads, its machine's clock and disk.

It can be killed between any two callbacks and in any operation on its disk, frozen (its threads,
too) and let go on, and sent a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from tests.simulator.cluster.loop import PROCESS, SimLoop
from tests.simulator.disk import SimCrash

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine


class Process:
    """One incarnation of a program on a machine."""

    def __init__(self, machine: Machine, name: str, pid: int) -> None:
        self.machine = machine
        self.name = name
        self.pid = pid
        self.alive = True
        self.frozen = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.signal_handlers: dict[int, tuple[Callable[..., Any], tuple[Any, ...], Context]] = {}
        self.exception_handler: Callable[..., Any] | None = None
        self.main: asyncio.Task[Any] | None = None
        self._held: list[asyncio.Handle] = []
        self._pools: dict[int, _Pool] = {}
        self._loop: SimLoop = machine.loop
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"{self.machine.name}:{self.name}:{self.pid}"

    def start(self, work: Coroutine[Any, Any, Any], ended: Callable[[Process], None]) -> None:
        """Run `work`; call `ended` when it has returned or raised."""

        def over(task: asyncio.Task[Any]) -> None:
            task.cancelled() or task.exception()  # it is seen
            if self.alive:
                ended(self)

        self.main = self._loop.create_task(work, name=self.name, context=self.context)
        self.main.add_done_callback(over, context=self.machine.context)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Return whether a callback of this process may run now; keep it for later if the process
        is frozen."""
        if self.alive and self.frozen:
            self._held.append(handle)
            return False
        return self.alive

    def terminate(self) -> None:
        """Deliver SIGTERM; a process that has no handler yet is killed by it."""
        result = self.signal_handlers.get(signal.SIGTERM)
        if result is None:
            self.kill()
            self.machine.restart(self.machine)
        elif self.alive:
            callback, args, context = result
            self._loop.call_soon(callback, *args, context=context)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for handle in held:
            self._loop.put_back(handle)

    def kill(self) -> None:
        """End it at once; nothing of it runs any more. The machine closes its connections."""
        if self.alive:
            self.alive = False
            self._held.clear()
            self.machine.died(self)

    # -- threads ----------------------------------------------------------------------------------

    def in_thread(
        self, executor: Any, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        """Run `func` as a thread of `executor` would: later, one after the other if that has only
        one thread."""
        pool = self._pools.get(id(executor))
        if pool is None:
            # The executor is kept, so that no other gets its id.
            pool = self._pools[id(executor)] = _Pool(executor)
        future: asyncio.Future[Any] = self._loop.create_future()
        pool.waiting.append((future, func, args))
        self._start(pool)
        return future

    def _start(self, pool: _Pool) -> None:
        while pool.waiting and pool.running < pool.threads:
            work = pool.waiting.popleft()
            if work[0].cancelled():
                continue
            pool.running += 1
            machine = self.machine
            delay_s = machine.thread_delay_s()
            self._loop.call_at(
                self._loop.now_s + delay_s, self._run_in_thread, pool, work,
                machine.disk.operations, context=self.context,
            )  # fmt: skip

    def _run_in_thread(self, pool: _Pool, work: _Work, begun: int) -> None:
        machine = self.machine
        if machine.disk_stalled:
            self._loop.call_later(0.05, self._run_in_thread, pool, work, begun)
            return
        future, func, args = work
        pool.running -= 1
        disk = machine.disk
        # What the loop wrote since this began is not covered by a sync in here; its own writes are.
        disk.sync_gap = (begun, disk.operations)
        try:
            result = func(*args)
        except SimCrash:
            return
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            disk.sync_gap = None
        self._start(pool)

    def retire(self) -> None:
        """End what is left of a dead process, once the loop is closed: nothing can come of it."""
        for task in list(self.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        self.tasks.clear()


_Work = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class _Pool:
    """What waits for the threads of one executor, and how many run."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.threads: int = getattr(executor, "_max_workers", 8)
        self.running = 0
        self.waiting: deque[_Work] = deque()


def here() -> Process:
    """Return the process whose code runs."""
    process = PROCESS.get()
    assert process is not None
    return process
