"""Logs what goes wrong in a user's listener: which group, topic and message, and each kind once a
minute.

A kind is what happened and where: the exception's type and the line that raised it. A listener that
fails for every message would else write a traceback per batch, and hide what else is in the log.
The next line of a kind says how many were left out since the one before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from ..log_rate_limit import LogPace
from ..message import MessageExt

logger = logging.getLogger(__name__)

Kind = tuple[str, str]


class ListenerLog:
    """The log of one consumer group's listener. `clock`: seconds that only go forward."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._pace = LogPace(clock)

    def raised(self, error: BaseException, messages: Sequence[MessageExt]) -> None:
        """Log an exception of the listener, with its traceback."""
        kind = (type(error).__qualname__, _place(error.__traceback__))
        self._log(logging.WARNING, "listener_raised", kind, messages, error)

    def returned_nonsense(self, value: object, messages: Sequence[MessageExt]) -> None:
        """Log an answer that is none."""
        kind = ("nonsense", type(value).__qualname__)
        event = f"listener_returned_nonsense type={kind[1]}"
        self._log(logging.ERROR, event, kind, messages)

    def timed_out(self, messages: Sequence[MessageExt], kept: int) -> None:
        """Log that the listener held messages for longer than the consume time-out; no broker took
        `kept` of them back."""
        kind = ("timed_out", "kept" if kept else "")
        self._log(logging.WARNING, f"consume_timed_out kept={kept}", kind, messages)

    def not_consumed(self, messages: Sequence[MessageExt]) -> None:
        """Log that messages of a broadcasting consumer failed, which are not repeated."""
        self._log(logging.WARNING, "broadcast_not_consumed", ("not_consumed", ""), messages)

    def _log(
        self,
        level: int,
        event: str,
        kind: Kind,
        messages: Sequence[MessageExt],
        error: BaseException | None = None,
    ) -> None:
        left_out = self._pace.due(kind)
        if left_out is None:
            return
        first = messages[0]
        logger.log(
            level,
            "%s group=%s topic=%s broker=%s queue=%d offset=%d message=%s count=%d left_out=%d",
            event, self._group, first.topic, first.broker_name, first.queue_id,
            first.queue_offset, first.msg_id, len(messages), left_out,
            exc_info=error,
        )  # fmt: skip


def _place(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame."""
    place = ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
