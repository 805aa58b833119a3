"""Runs an async client on an event loop in its own thread, and context managers for clients.

`blocking` and `on_loop` turn a client's methods into blocking methods. Parameters and results keep
their names, defaults and types for type checkers and editors.

A client class supports `async with` by two lines: `__aenter__ = entered` and `__aexit__ = left`.
Blocking classes use `__enter__ = entered_blocking` and `__exit__ = left_blocking`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from .errors import ClientClosed


class LifeCycle(Protocol):
    """A client that belongs to an event loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class BlockingLifeCycle(Protocol):
    """A client whose calls block."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


C = TypeVar("C", bound=LifeCycle)
B = TypeVar("B", bound=BlockingLifeCycle)


async def entered(client: C) -> C:
    await client.start()
    return client


async def left(
    client: LifeCycle,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    await client.stop()


def entered_blocking(client: B) -> B:
    client.start()
    return client


def left_blocking(
    client: BlockingLifeCycle,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    client.stop()


C_co = TypeVar("C_co", bound=LifeCycle, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Hosted(Generic[C_co]):
    """A client and the thread of its event loop. `pool`, which runs the user's listener if any, is
    shut down at the end, after the client has given its calls time to finish. Calls that continue
    are not awaited; the interpreter waits for them at its exit. A client with `once` cannot start
    again after its stop, because it or its pool belongs to ended loops or threads."""

    def __init__(
        self, client: C_co, name: str, pool: Executor | None = None, *, once: bool = False
    ) -> None:
        self.client = client
        self._name = name
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None  # of the loop
        self._thread: threading.Thread | None = None
        self._once = once
        self._stopped = False
        self._pid = 0  # of the starting process
        self._lock = threading.RLock()  # a signal handler may call while its thread has it
        self._stopping = threading.RLock()

    def start(self) -> None:
        """Start the thread, then the client. If that raises, the thread has ended again. Raises
        ClientClosed after a stop with `once`."""
        assert self._thread is None, "already started"
        if self._once and self._stopped:
            raise ClientClosed("this client was stopped and does not start again: make another one")
        self._pid = os.getpid()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name=self._name, daemon=True
        )
        self._thread.start()
        ready.wait()
        try:
            self.run(self.client.start())
        except BaseException:
            self._end_thread()
            raise

    def run(self, work: Coroutine[Any, Any, T], restore: Callable[[T], None] | None = None) -> T:
        """Run `work` on the loop and wait. Raises its errors; ClientClosed if the thread is not
        running, is in the process before a fork, or ends before `work` does. If the caller is
        interrupted (a signal handler raises), `work` is cancelled and awaited. A result that it had
        by then goes to `restore(result)` on the loop."""
        call = _Call(work)
        try:
            if not self._ask(call.start):
                work.close()
                raise self._closed()
            return call.result()
        except BaseException:
            if not call.ended.done() and self._ask(call.cancel):
                wait((call.ended,))
            if restore is not None and call.has_result():
                self._ask(partial(restore, call.result()))
            raise

    def _ask(self, function: Callable[[], object]) -> bool:
        """Schedule `function` on the loop; return False if it is not running or is ending."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(function)
            return True

    def stop(self) -> None:
        """Stop the client, then the threads, even if that raises. Waits for a concurrent stop.
        Idempotent. Raises ClientClosed if the client was not started in this process."""
        if self._pid != os.getpid():
            raise self._closed()
        with self._stopping:
            if self._loop is None:
                return
            try:
                self.run(self.client.stop())
            finally:
                self._stopped = True
                self._end_thread()
                if self._pool is not None:
                    self._pool.shutdown(wait=False, cancel_futures=True)

    def _closed(self) -> ClientClosed:
        if self._loop is None:
            return ClientClosed()
        return ClientClosed(
            f"the client was started in process {self._pid}, not in this one, which was forked from"
            " it: a client does not outlive a fork, start one here"
        )

    def _end_thread(self) -> None:
        with self._lock:
            loop, end, thread = self._loop, self._end, self._thread
            self._loop = self._end = self._thread = None
            if loop is not None and end is not None:
                loop.call_soon_threadsafe(end.set_result, None)
        if thread is not None:
            thread.join()

    def _serve(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            end = loop.create_future()
            self._loop, self._end = loop, end
            asyncio.set_event_loop(loop)
            ready.set()
            while not end.done():
                # User code may raise these. They end a loop, but only the main thread's end a
                # program; the task's waiter gets them, and the rest continues.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_until_complete(end)


class _Call(Generic[T]):
    """Work that a thread waits for. `start` and `cancel` are called on the loop; the result of
    `ended` is the finished task."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.ended: Future[asyncio.Task[T]] = Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self.ended.set_result)

    def cancel(self) -> None:
        """Cancel the task, or the work if it was never started."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()
            self.ended.cancel()
            self.ended.set_running_or_notify_cancel()  # otherwise waiters are not woken

    def result(self) -> T:
        """Wait for the end. Raises the work's errors; ClientClosed if the loop ended first."""
        task = self.ended.result()
        if task.cancelled():
            raise ClientClosed("the client was stopped before the call ended", outcome_unknown=True)
        return task.result()

    def has_result(self) -> bool:
        if not self.ended.done() or self.ended.cancelled():
            return False
        task = self.ended.result()
        return not task.cancelled() and task.exception() is None


class Hosting(Protocol[C_co]):
    """An object with a hosted client."""

    @property
    def _hosted(self) -> Hosted[C_co]: ...


def started(client: Hosting[LifeCycle]) -> None:
    client._hosted.start()


def stopped(client: Hosting[LifeCycle]) -> None:
    client._hosted.stop()


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
    restore: Callable[[C, T], None] | None = None,
) -> Callable[Concatenate[Hosting[C], P], T]:
    """Return a method that runs the client's coroutine method on the loop and waits for it. The
    client's `restore` gets the result of an interrupted call."""

    @wraps(method)
    def call(client: Hosting[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        hosted = client._hosted
        back = None if restore is None else partial(restore, hosted.client)
        return hosted.run(method(hosted.client, *args, **kwargs), back)

    return call


def on_loop(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Hosting[C], P], T]:
    """Return a method that calls the client's plain method on its loop, and waits."""

    @wraps(method)
    async def call(client: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(client, *args, **kwargs)

    return blocking(call)


def in_pool(pool: Executor, function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a function that runs `function` in a thread of `pool` when called on a loop."""

    def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))

    return call
