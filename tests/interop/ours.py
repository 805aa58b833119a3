"""A broker of ours in this process, in a thread of its own: the test itself waits for Java."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic


@contextmanager
def on_a_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield a loop that runs in a thread of its own: the test itself waits for Java."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def running(make: Callable[[], Group]) -> Iterator[Any]:
    """Run a group of one broker, and yield it."""

    async def begin() -> Group:
        return await make().__aenter__()

    with on_a_loop() as loop:
        group = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            yield group
        finally:
            asyncio.run_coroutine_threadsafe(group.__aexit__(), loop).result()


def raft(directory: Path, **settings: str) -> Group:
    return Group(directory, 1, **settings)


def classic(directory: Path, **settings: str) -> Group:
    return Classic(directory, slaves=0, role="ASYNC_MASTER", **settings)
