"""Apache's checkpoint of timer messages, `config/timercheck`: what its broker has delivered. Pure.

A store that an Apache broker had last has no progress of ours, nor has an Apache master for its
slaves. Its file, and its answer to 60, begin with four integers (int64, big-endian):

    lastReadTimeMs | lastTimerLogFlushPos | lastTimerQueueOffset | masterTimerQueueOffset

Of the messages that its wheel had taken in, those before `lastTimerQueueOffset` of the timer
topic's queue, everything due before `lastReadTimeMs` was delivered. A message that waits for longer
than its wheel turns is put into the queue again and again (TIMER_ROLL_TIMES), with its own time;
the earlier ones are taken for waiting, too.
"""

from __future__ import annotations

import struct

from .timer_wheel import NOTHING, Progress

PATH = "config/timercheck"
_HEAD = struct.Struct(">4q")
HEAD_BYTES = _HEAD.size


def progress_of(data: bytes) -> Progress:
    """Return the progress that a checkpoint tells; NOTHING if it is damaged or empty: then all
    that the log still has is delivered, which is too much and nothing too little."""
    if len(data) < HEAD_BYTES:
        return NOTHING
    read_ms, _, queue_offset, _ = _HEAD.unpack_from(data)
    if read_ms <= 0 or queue_offset <= 0:
        return NOTHING
    return Progress(due_ms=read_ms, offset=-1, end=queue_offset, floor=0)
