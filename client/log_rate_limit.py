"""Rate-limited log lines, each kind once per minute, for example failures of a listener.

`ListenerLog` logs the group, topic and message of a failure. Its kinds are the exception's type and
the line that raised it. Without the limit, a failing listener would write a traceback per batch.
Each line has the number of suppressed lines of its kind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType

from .message import MessageExt

PAUSE_S = 60.0  # between two lines of a kind
KINDS_MAX = 256  # remembered kinds; beyond, the oldest is dropped


@dataclass(slots=True)
class _Seen:
    logged_s: float
    left_out: int = 0


class LogRateLimit:
    """The last log time of each kind. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, _Seen] = {}  # oldest log time first

    def due(self, kind: Hashable) -> int | None:
        """Return how many lines of a kind were suppressed since its last line, and count this line
        as logged; None to suppress it."""
        now_s = self._clock()
        seen = self._seen.get(kind)
        if seen is not None and now_s - seen.logged_s < PAUSE_S:
            seen.left_out += 1
            return None
        self._seen.pop(kind, None)
        if len(self._seen) >= KINDS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = _Seen(now_s)
        return 0 if seen is None else seen.left_out


logger = logging.getLogger("raftmq.client.listener")

Kind = tuple[str, str]


class ListenerLog:
    """The log of a consumer group's listener. `clock` is monotonic, in seconds."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._pace = LogRateLimit(clock)

    def raised(self, error: BaseException, messages: Sequence[MessageExt]) -> None:
        """Log an exception of the listener, with its traceback."""
        kind = (type(error).__qualname__, _location(error.__traceback__))
        self._log(logging.WARNING, "listener_raised", kind, messages, error)

    def returned_nonsense(self, value: object, messages: Sequence[MessageExt]) -> None:
        kind = ("nonsense", type(value).__qualname__)
        event = f"listener_returned_nonsense type={kind[1]}"
        self._log(logging.ERROR, event, kind, messages)

    def timed_out(self, messages: Sequence[MessageExt], kept: int) -> None:
        """Log that the listener overran the consume time-out; brokers took back all but `kept`."""
        kind = ("timed_out", "kept" if kept else "")
        self._log(logging.WARNING, f"consume_timed_out kept={kept}", kind, messages)

    def not_consumed(self, messages: Sequence[MessageExt]) -> None:
        """Log failed messages of a broadcasting consumer, which are not repeated."""
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


def _location(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame."""
    location = ""
    while trace is not None:
        location = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return location
