"""Work in a thread that is always awaited to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("raftmq.remoting.threads")


async def in_thread_to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do as asyncio.to_thread, but delay a cancellation until the thread has ended. A thread cannot
    be stopped, so otherwise the caller's lock or files would be free while the thread still works.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # cancelled again, keep waiting
        if (error := work.exception()) is not None:  # the caller does not see it
            log.error("cancelled_work_failed error=%r", error)
        raise
