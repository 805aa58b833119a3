"""What programs log of their own troubles: errors that nothing in the world explains fail it.

Looked at is every record from ERROR on and every one with an exception, of any program that is
alive, and asyncio's own: a callback that raised, an exception that nobody looked at. EXPLAINED says
which events which faults of the world may cause, and why.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.cluster.faults import MISNAMED, OF_DISKS, OF_STARTS
from tests.simulator.cluster.loop import PROCESS

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld

LOGGERS = ("raftmq", "asyncio")
ROT = ("rot",)
DAMAGE = ("rot", "lose_queue_file")
TWO_GROUPS = ("foreign_group", "restore_beside")


class Why(NamedTuple):
    """The faults that cause what begins so (none: it may come without), and how. `errors`: the
    exceptions that it may have."""

    faults: Collection[str]
    reason: str
    errors: tuple[type[BaseException], ...] = (OSError,)


EXPLAINED = {
    "broker_failed reason=a group snapshot takes its place": Why((), "it starts anew, from that"),
    "broker_failed": Why(OF_DISKS, "a disk that takes nothing more ends its broker"),
    "member_failed": Why(OF_DISKS, "so does a sync that failed, whose outcome nobody knows"),
    "start_failed": Why(OF_DISKS, "a full disk has no room for the files of a start"),
    "start_failed StoreInUse": Why(OF_STARTS, "its second start came to the store first"),
    "stop_failed": Why(OF_DISKS, "nor for the last snapshot"),
    "chore_failed": Why(OF_DISKS, "a chore is tried again when there is room"),
    "foreign_group": Why(TWO_GROUPS, "it is there, and operators are to hear of it"),
    "popped_message_lost": Why((), "retention has taken it (waits.py)"),
    "transactions_lost": Why((), "and halves (waits.py)"),
    "frame_damaged": Why(ROT, "a bit of the log has flipped, and is found by whoever reads it"),
    "blank_repaired": Why(ROT, "or one of what fills a segment up"),
    "log_cut": Why(ROT, "or one that no other replica has to be mended by"),
    "tables_ahead": Why(ROT, "the log ends before a frame that was given up"),
    "read_failed": Why(ROT, "a consumer's read finds it before it is mended"),
    "revival_unread": Why(ROT, "so does what lets popped messages come again"),
    "delayed_unread": Why(ROT, "so does what delivers delayed messages"),
    "timers_unread": Why(ROT, "so does what delivers timer messages"),
    "durable_state_lost": Why(
        ("set_back", MISNAMED), "a replica has held more than its store has now"
    ),
    "queues_not_rebuilt": Why(ROT, "and the log from which it is made has a flipped bit before it"),
    "queue_damaged": Why(
        (*DAMAGE, "fill_disk"),
        "its file is gone, or was cut and a full disk had no room to note it",
    ),
}
# Whatever an operator does wrong is told to him when the program starts.
OF_MISTAKES = "start_failed"


class Complaints:
    """See the module's docstring."""

    def __init__(self, world: ClusterWorld) -> None:
        self.explained = 0
        self._world = world

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at what is logged."""
        handler = _Handler(self)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for one in loggers:
            one.addHandler(handler)
        try:
            yield
        finally:
            for one in loggers:
                one.removeHandler(handler)

    def take(self, record: logging.LogRecord) -> None:
        """Take one record."""
        world, process = self._world, PROCESS.get()
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.ERROR and error is None:
            return
        if process is not None and not process.alive:
            return  # what it had begun fails because it is killed
        text = record.getMessage()
        if process in world.mistakes and text.startswith(OF_MISTAKES):
            self.explained += 1
        elif any(self._explains(*each, text, error) for each in EXPLAINED.items()):
            self.explained += 1
        else:
            world.broken(f"{process} complains: {text} {error!r}")

    def _explains(self, begin: str, why: Why, text: str, error: BaseException | None) -> bool:
        struck = self._world.plan.kinds.keys()
        return (
            text.startswith(begin)
            and (not why.faults or not struck.isdisjoint(why.faults))
            and (error is None or isinstance(error, why.errors))
        )


class _Handler(logging.Handler):
    def __init__(self, complaints: Complaints) -> None:
        super().__init__()
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        self._complaints.take(record)
