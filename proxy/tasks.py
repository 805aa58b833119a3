"""Background tasks that outlive their call and end with the proxy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from raftmq.remoting.connection import FROM_PEER

from .status_codes import StatusError

log = logging.getLogger("raftmq.proxy")


class Tasks:
    """Owns tasks; `stop` cancels and awaits them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` and log all errors but StatusError."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, StatusError):
            log.error("task_failed task=%s", task.get_name(), exc_info=error, extra=FROM_PEER)
