"""Work in a thread that nobody walks away from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("raftmq.remoting.threads")


async def in_thread_to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As asyncio.to_thread. But whoever is cancelled meanwhile is held until the thread has ended:
    nothing stops a thread, and the lock that its caller holds, or the files that it writes, would
    be free for the next one while it still works."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # told twice; it is on its way
        if (error := work.exception()) is not None:  # its caller is not there to hear it
            log.error("cancelled_work_failed error=%r", error)
        raise
