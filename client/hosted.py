"""Runs an async client on an event loop in a thread of its own, so that its callers may block.

`blocking` and `on_loop` make blocking methods of a client's own methods. The parameters and the
result keep their names, defaults and types for type checkers and editors, so nothing is typed twice
and nothing can drift.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, wait
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from raftmq.client.errors import ClientClosed
from raftmq.client.lifecycle import LifeCycle

C = TypeVar("C", bound=LifeCycle)
C_co = TypeVar("C_co", bound=LifeCycle, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Hosted(Generic[C_co]):
    """A client and the thread that runs its event loop. `pool`, which runs the user's listener if
    there is one, is shut down at the end, after the client has given its calls time to finish.
    Calls that still run are not waited for; the interpreter waits for them when it exits."""

    def __init__(self, client: C_co, name: str, pool: Executor | None = None) -> None:
        self.client = client
        self._name = name
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process that started it

    def start(self) -> None:
        """Start the thread, then the client. If that raises, the thread has ended again."""
        assert self._thread is None, "already started"
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

    def run(self, work: Coroutine[Any, Any, T], give_back: Callable[[T], None] | None = None) -> T:
        """Run `work` on the loop and wait. Raises what `work` raises; ClientClosed if the thread is
        not running, or runs in the process that this one was forked from.

        If the wait is interrupted (a signal handler raises), `work` is cancelled and its end is
        waited for. If it had a result by then, which nobody gets, the loop calls
        `give_back(result)`."""
        loop = self._loop
        if loop is None or self._pid != os.getpid():
            work.close()
            raise self._closed()
        begun: Future[asyncio.Task[T]] = Future()
        ended = asyncio.run_coroutine_threadsafe(_noted(work, begun), loop)
        try:
            return ended.result()
        except BaseException:
            if not ended.done():
                # To cancel `ended` would end it at once, while the task still runs.
                loop.call_soon_threadsafe(begun.result().cancel)
                wait((ended,))
            if give_back is not None and not ended.cancelled() and ended.exception() is None:
                loop.call_soon_threadsafe(give_back, ended.result())
            raise

    def stop(self) -> None:
        """Stop the client, then the threads, even if that raises. Raises ClientClosed if they are
        not running."""
        if self._loop is None or self._pid != os.getpid():
            raise self._closed()
        try:
            self.run(self.client.stop())
        finally:
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
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _serve(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            ready.set()
            loop.run_forever()


async def _noted(work: Coroutine[Any, Any, T], begun: Future[asyncio.Task[T]]) -> T:
    """Run `work`; the result of `begun` is the task that does."""
    task = asyncio.current_task()
    assert task is not None
    begun.set_result(task)
    return await work


class Hosting(Protocol[C_co]):
    """An object that has a hosted client."""

    @property
    def _hosted(self) -> Hosted[C_co]: ...


def started(client: Hosting[LifeCycle]) -> None:
    client._hosted.start()


def stopped(client: Hosting[LifeCycle]) -> None:
    client._hosted.stop()


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
    give_back: Callable[[C, T], None] | None = None,
) -> Callable[Concatenate[Hosting[C], P], T]:
    """Return a method that runs the client's coroutine method on the loop and waits for it. The
    client's `give_back` is called with a result that its caller, interrupted, does not get."""

    @wraps(method)
    def call(client: Hosting[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        hosted = client._hosted
        back = None if give_back is None else partial(give_back, hosted.client)
        return hosted.run(method(hosted.client, *args, **kwargs), back)

    return call


def on_loop(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Hosting[C], P], T]:
    """Return a method that calls the client's plain method on the loop, to which the client
    belongs, and waits."""

    @wraps(method)
    async def call(client: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(client, *args, **kwargs)

    return blocking(call)


def in_pool(pool: Executor, function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a function that runs `function` in a thread of `pool` when it is called on a loop."""

    def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))

    return call
