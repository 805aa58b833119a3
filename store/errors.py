"""The store's errors.

`retriable`: the same call may succeed later. `outcome_unknown`: the call may have taken effect.
Errors of the operating system (OSError) pass through unchanged.
"""

from __future__ import annotations


class StoreError(Exception):
    """The base of all errors of the store."""

    code = "STORE_ERROR"
    retriable = False
    outcome_unknown = False


class RecordTooLarge(StoreError):
    """The record and a following blank record do not fit into a segment."""

    code = "RECORD_TOO_LARGE"


class OffsetOutOfRange(StoreError):
    """The offset is not between the log's first and last byte."""

    code = "OFFSET_OUT_OF_RANGE"

    def __init__(self, offset: int, minimum: int, maximum: int) -> None:
        super().__init__(f"offset {offset} is not in [{minimum}, {maximum}]")
        self.offset = offset


class StoreDamaged(StoreError):
    """Bytes that were once durable have changed. Nothing has been truncated. `position` is the
    CommitLog offset of the first bad frame or record. The node must not serve or vote from this
    log, and fetches it again from a peer."""

    code = "STORE_DAMAGED"

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"damaged at {position}: {reason}")
        self.position = position
        self.reason = reason


class QueuesLost(StoreError):
    """The ConsumeQueues and their manifest are gone. The log, which starts at CommitLog offset
    `begin`, does not have the ends of queues without any message left."""

    code = "QUEUES_LOST"

    def __init__(self, log_start: int) -> None:
        super().__init__(
            "consumequeue/ and consumequeue.manifest are gone, and the log begins at"
            f" {log_start}: it does not say where queues go on whose messages are deleted. Put them"
            " back, or keep a copy of the store and start this replica with an empty directory:"
            " the others give it everything"
        )


class Diverged(StoreError):
    """The master's data for `position` does not continue this log. None of it was written."""

    code = "DIVERGED"

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"diverged at {position}: {reason}")
        self.position = position
        self.reason = reason


class FlushUnderWay(StoreError):
    """A queue has to restart during a flush of its files. Nothing was written."""

    code = "FLUSH_UNDER_WAY"
    retriable = True


class EntryDamaged(StoreDamaged):
    """A ConsumeQueue entry points at no record. Readers wait for its rebuild."""

    code = "ENTRY_DAMAGED"
    retriable = True

    def __init__(self, topic: str, queue_id: int, offset: int, position: int) -> None:
        super().__init__(
            position, f"entry {offset} of {topic}/{queue_id} points at no record of it"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset


class SyncFailed(StoreError):
    """An fdatasync failed. The kernel may have dropped the unwritten pages, so later successes
    prove nothing, and this log never promises durability again."""

    code = "SYNC_FAILED"
    outcome_unknown = True


class TooManyWaiting(StoreError):
    """The flusher's waiting list is full."""

    code = "TOO_MANY_WAITING"
    retriable = True
