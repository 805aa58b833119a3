"""A deterministic event loop: its clock is simulated, and what it does follows from a seed.

Programs run on it unchanged. Time stands still while callbacks run and jumps to the next timer when
none is ready. A callback belongs to the process (`process.Process`) in whose context it was made:
a dead process's callbacks are dropped, so it stops at whatever await it had reached, without its
`finally` blocks; those of a frozen one wait. Work for a thread runs at a drawn time, in one piece
(`Process.in_thread`). Connections are the network's (`network.Network`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.cluster.network import Network, Server
    from tests.simulator.cluster.process import Process

_numbers = itertools.count()
RESOLUTION_S = 1e-9
PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


def number_anew() -> None:
    """Begin at 0 again, for a new world: the order of a set of numbered objects depends on their
    numbers, and must not depend on the worlds that this process has played before."""
    global _numbers
    _numbers = itertools.count()


class Stuck(Exception):
    """Nothing is ready and no timer is set: the world has come to a standstill."""


class SimHandle(asyncio.Handle):
    """A callback of a process; None: of the world."""

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(callback, args, loop, context)
        self.process = context.get(PROCESS)


class SimTimerHandle(asyncio.TimerHandle):
    """A timer of a process; None: of the world."""

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(when, callback, args, loop, context)
        self.process = context.get(PROCESS)


class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring. `now_s` is the simulated time; `network` is set by the world."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0  # a machine's monotonic clock is not at 0, either
        self.network: Network | None = None
        self.callbacks = 0
        self.at_work: Process | None = None  # whose callback runs
        self._due: deque[SimHandle | SimTimerHandle] = deque()
        # Timers for one moment run in the order they were set. Tuples, whose comparing is cheap.
        self._timers: list[tuple[float, int, SimTimerHandle]] = []
        self.set_task_factory(_made)

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        """Run what is ready now; nothing that becomes ready by that. If nothing is, let the time
        pass to the next timer. This is a seventh of a world's work: asyncio's own does more."""
        due, timers = self._due, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not due:
            if not timers:
                raise Stuck
            self.now_s += max(0.0, timers[0][0] - self.now_s)
        while timers and timers[0][0] < self.now_s + RESOLUTION_S:
            due.append(heapq.heappop(timers)[2])
        for _ in range(len(due)):
            handle = due.popleft()
            process = handle.process
            if not handle.cancelled() and (process is None or process.admits(handle)):
                self.at_work = process
                handle._run()

    def close(self) -> None:
        self._due.clear()
        self._timers.clear()
        super().close()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is dropped when its time has come

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        self._check_closed()  # type: ignore[attr-defined]
        self.callbacks += 1
        handle = SimHandle(callback, args, self, context)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimTimerHandle:
        self.callbacks += 1
        timer = SimTimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(_numbers), timer))
        return timer

    def put_back(self, handle: asyncio.Handle) -> None:
        """Let a callback that was held run after those that are ready."""
        self._due.append(handle)  # type: ignore[arg-type]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        process = PROCESS.get()
        if process is None:  # the world's own
            future = self.create_future()
            future.set_result(func(*args))
            return future
        return process.in_thread(executor, func, args)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., Any], *args: Any
    ) -> None:
        process = PROCESS.get()
        assert process is not None
        process.signal_handlers[int(sig)] = (callback, args, copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        process = PROCESS.get()
        return process is not None and process.signal_handlers.pop(int(sig), None) is not None

    def set_exception_handler(self, handler: Callable[..., Any] | None) -> None:
        process = PROCESS.get()
        assert process is not None
        process.exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the process whose callback failed; the world if it is its own."""
        process = self.at_work
        handler = None if process is None else process.exception_handler
        if handler is not None:
            assert process is not None
            process.context.run(handler, self, context)
        elif process is None or process.alive:
            super().call_exception_handler(context)
            error = context.get("exception")
            if process is None and error is not None and self.is_running():
                raise error

    def remove_reader(self, fd: Any) -> bool:
        """Stop accepting at the listener with this number, which is its port."""
        assert self.network is not None
        return self.network.stop_accepting(int(fd))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Server:  # type: ignore[override]  # fmt: skip  # noqa: E501
        assert self.network is not None
        return self.network.listen(protocol_factory, port, options.get("sock"))

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]  # takes no turn

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # fmt: skip  # noqa: E501
        assert self.network is not None
        assert options.get("ssl") is None, "TLS is not simulated"
        return await self.network.connect(protocol_factory, port)


def numbered_hash(self: Any) -> int:
    """Stands for a class's __hash__, which comes of an address: sets of such objects then have an
    order that repeats."""
    try:
        number: int = self._simulated_number
    except AttributeError:
        number = self._simulated_number = next(_numbers)
    return number


class SimTask(asyncio.Task):
    __hash__ = numbered_hash


class SimFuture(asyncio.Future):
    __hash__ = numbered_hash


def _made(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task that its process keeps, however it ends: a task that is collected runs its
    `finally` blocks, which a killed process does not."""
    context = options.get("context")
    task: asyncio.Task[Any] = SimTask(work, loop=loop, **options)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task
