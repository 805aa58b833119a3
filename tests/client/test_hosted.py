"""A client on an event loop in a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from raftmq.client.errors import ClientClosed
from raftmq.client.hosted import (
    Hosted,
    blocking,
    entered_blocking,
    in_pool,
    left_blocking,
    on_loop,
    started,
    stopped,
)


class Counter:
    def __init__(self) -> None:
        self.life: list[str] = []
        self.threads: set[str] = set()

    async def start(self) -> None:
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")

    async def add(self, one: int, *, other: int = 2) -> int:
        """Add."""
        self.threads.add(threading.current_thread().name)
        return one + other

    def plain(self, one: int) -> int:
        asyncio.get_running_loop()
        return one


class BlockingCounter:
    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="pool")
        self._hosted = Hosted(Counter(), "counter", self.pool)
        self.counter = self._hosted.client

    __enter__, __exit__, start, stop = entered_blocking, left_blocking, started, stopped
    add = blocking(Counter.add)
    plain = on_loop(Counter.plain)


def test_methods_of_a_hosted_client_run_in_the_loops_thread() -> None:
    with BlockingCounter() as counter:
        assert counter.add(1) == 3
        assert counter.add(1, other=1) == 2
        assert counter.plain(5) == 5
    assert counter.counter.life == ["start", "stop"]
    assert counter.counter.threads == {"counter"}
    assert "counter" not in {thread.name for thread in threading.enumerate()}


def test_blocking_method_keeps_its_name_and_docstring() -> None:
    assert BlockingCounter.add.__name__ == "add"
    assert BlockingCounter.add.__doc__ == "Add."


def test_hosted_client_rejects_calls_before_start_and_after_stop() -> None:
    counter = BlockingCounter()
    with pytest.raises(ClientClosed):
        counter.add(1)
    counter.start()
    counter.stop()
    with pytest.raises(ClientClosed):
        counter.plain(1)
    with pytest.raises(RuntimeError, match="shutdown"):
        counter.pool.submit(print)


async def test_blocking_calls_run_in_the_pool() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        name = await in_pool(pool, lambda: threading.current_thread().name)()
    assert name.startswith("pool")


def test_failed_start_leaves_no_thread_and_can_be_retried() -> None:
    counter = BlockingCounter()

    async def fails() -> None:
        raise OSError("no such host")

    began, counter.counter.start = counter.counter.start, fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no such host"):
        counter.start()
    assert "counter" not in {thread.name for thread in threading.enumerate()}
    counter.counter.start = began  # type: ignore[method-assign]
    with counter:
        assert counter.add(1) == 3


def test_failed_stop_leaves_no_thread_and_no_pool() -> None:
    counter = BlockingCounter()

    async def fails() -> None:
        raise OSError("broker gone")

    counter.counter.stop = fails  # type: ignore[method-assign]
    counter.start()
    with pytest.raises(OSError, match="broker gone"):
        counter.stop()
    assert "counter" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(RuntimeError, match="shutdown"):
        counter.pool.submit(print)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_exception_reaches_the_caller_and_keeps_the_loop(error: type[BaseException]) -> None:
    """The caller gets it; a task for which nobody waits, nobody."""

    async def fails() -> None:
        raise error

    async def begins() -> asyncio.Task[None]:
        return asyncio.create_task(fails())

    with BlockingCounter() as counter:
        with pytest.raises(error):
            counter._hosted.run(fails())
        task = counter._hosted.run(begins())
        assert counter.add(1) == 3
        assert isinstance(task.exception(), error)
    assert counter.counter.life == ["start", "stop"]


def test_second_stop_waits_for_the_first() -> None:
    counter = BlockingCounter()
    gate, began = threading.Event(), threading.Event()

    async def slow() -> None:
        counter.counter.life.append("stop")
        began.set()
        await asyncio.to_thread(gate.wait, 60)

    counter.counter.stop = slow  # type: ignore[method-assign]
    counter.start()
    stops = [threading.Thread(target=counter.stop) for _ in range(2)]
    stops[0].start()
    began.wait()
    stops[1].start()
    stops[1].join(0.05)
    assert stops[1].is_alive()
    gate.set()
    for stop in stops:
        stop.join(60)
        assert not stop.is_alive()
    counter.stop()
    assert counter.counter.life == ["start", "stop"]


def test_stop_does_not_wait_for_an_abandoned_call() -> None:
    counter = BlockingCounter()
    counter.start()
    gate = threading.Event()
    hangs = counter.pool.submit(gate.wait, 60)
    waits = counter.pool.submit(print)
    counter.stop()
    assert not hangs.done() and waits.cancelled()
    gate.set()
    assert hangs.result()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_hosted_client_in_a_forked_process_rejects_calls_at_once() -> None:
    """The loop's thread is not in it: whoever waited for that would wait for ever."""
    with BlockingCounter() as counter:
        child = os.fork()
        if not child:
            refused = 0
            for call in (lambda: counter.add(1), lambda: counter.plain(1), counter.stop):
                try:
                    call()
                except ClientClosed as error:
                    refused += "forked" in str(error)
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        assert counter.add(1) == 3


def test_stop_before_the_start_changes_nothing() -> None:
    counter = BlockingCounter()
    with pytest.raises(ClientClosed):
        counter.stop()
    with counter:
        assert counter.pool.submit(lambda: 1).result() == 1


class Interrupted(BaseException):
    """Raised by a signal's handler."""


def interrupt(signum: int, frame: object) -> None:
    raise Interrupted


@pytest.fixture
def interruptible() -> Iterator[Callable[[], None]]:
    """Return a function that interrupts the main thread's wait."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_interrupted_call_waits_until_its_task_has_ended(
    interruptible: Callable[[], None],
) -> None:
    """Else it would go on, and take messages for nobody."""
    life: list[object] = []

    async def work() -> None:
        try:
            interruptible()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            life.append("ended")

    with BlockingCounter() as counter:
        with pytest.raises(Interrupted):
            counter._hosted.run(work(), life.append)
        assert life == ["ended"]
        assert counter.add(1) == 3


@pytest.mark.parametrize("asked", [True, False])
def test_call_interrupted_at_its_start_leaves_no_task(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after it asked the loop, or just before."""
    life: list[str] = []

    async def work() -> None:
        life.append("began")
        try:
            await asyncio.sleep(3600)
        finally:
            life.append("ended")

    with BlockingCounter() as counter:
        loop = counter._hosted._loop
        assert loop is not None
        ask = loop.call_soon_threadsafe

        def interrupted(function: Callable[[], None]) -> None:
            patched.undo()
            if asked:
                ask(function)
            raise Interrupted

        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(loop, "call_soon_threadsafe", interrupted)
            counter._hosted.run(work())
        assert life in ([], ["began", "ended"])
        assert counter.add(1) == 3


def test_call_in_progress_at_the_stop_has_an_unknown_outcome() -> None:
    counter = BlockingCounter()
    began, reported = threading.Event(), Future[ClientClosed]()

    async def work() -> None:
        began.set()
        await asyncio.sleep(3600)

    def call() -> None:
        with pytest.raises(ClientClosed) as caught:
            counter._hosted.run(work())
        reported.set_result(caught.value)

    counter.start()
    caller = threading.Thread(target=call)
    caller.start()
    began.wait()
    counter.stop()
    assert reported.result(60).outcome_unknown
    caller.join()


def test_no_call_waits_for_a_loop_that_ends() -> None:
    """The stop comes between a caller's look whether the loop runs and its asking."""
    for _ in range(200):
        counter = BlockingCounter()
        counter.start()
        callers = [threading.Thread(target=until_closed, args=(counter,)) for _ in range(4)]
        for caller in callers:
            caller.start()
        counter.stop()
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()


def until_closed(counter: BlockingCounter) -> None:
    with suppress(ClientClosed):
        while True:
            counter.add(1)


def test_result_of_an_interrupted_call_is_returned_to_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back: list[tuple[str, int]] = []

    def result(future: Future[int]) -> int:
        patched.undo()
        wait((future,))
        raise Interrupted

    with BlockingCounter() as counter:
        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(Future, "result", result)
            counter._hosted.run(
                counter.counter.add(1),
                lambda given: back.append((threading.current_thread().name, given)),
            )
        assert counter.add(1) == 3
        assert back == [("counter", 3)]
