"""Planted breaks of what the workload `asked` asks for: batches, queries, resets, filters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.consume.filtered_reads import FilteredReads
from raftmq.broker.consume.offset_resets import ResetMarks
from raftmq.broker.messages import send_request as sendrequest
from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.topics import TopicTable
from raftmq.client.consumer.remote_offset_store import OffsetStore
from raftmq.store.index.message_index import MessageIndex
from tests.simulator.cluster.planting import instead, replaced


def batches_turned_round() -> AbstractContextManager[Any]:
    """The last message of a batch is stored first."""

    def broken(records: Any) -> Any:
        def of_batch(*arguments: Any) -> Any:
            return records(*arguments)[::-1]

        return of_batch

    return replaced(sendrequest, "_batch_records", broken)


def resets_not_told() -> AbstractContextManager[Any]:
    """A consumer that runs is not told of a reset, and goes on where it is."""
    return instead(ResetMarks, "judge", lambda self, *where: None)


def filters_let_all_through() -> AbstractContextManager[Any]:
    """An expression matches every record."""

    class All:
        def work(self, properties: Any) -> int:
            return 1

        def matches(self, properties: Any) -> bool:
            return True

    def broken(read: Any) -> Any:
        def reads(self: FilteredReads, *arguments: Any) -> Any:
            *where, _, work = arguments[:7]
            return read(self, *where, All(), work, *arguments[7:])

        return reads

    return replaced(FilteredReads, "get_messages", broken)


def index_begins_at_the_end() -> AbstractContextManager[Any]:
    """A broker that starts leaves what its index misses out."""

    def broken(opened: Any) -> Any:
        def opens(self: MessageIndex, bound: int, **named: Any) -> None:
            opened(self, bound, **named)
            self.position = max(self.position, bound)

        return opens

    return replaced(MessageIndex, "open", broken)


def offsets_outlive_their_topic() -> AbstractContextManager[Any]:
    """A topic that is made again has its groups' offsets of before."""
    return instead(OffsetTable, "delete_topic", lambda self, topic: None)


def messages_outlive_their_topic() -> AbstractContextManager[Any]:
    """A topic that is made again has its messages of before."""
    return instead(TopicTable, "restart_at", lambda self, name, position: None)


def commits_taken_for_a_tools() -> AbstractContextManager[Any]:
    """A consumer's commit does not say whose it is: a leader that has not heard of the consumer yet
    takes it for an administrator's, and undoes a reset."""

    def broken(init: Any) -> Any:
        def inits(self: OffsetStore, *arguments: Any, **options: Any) -> None:
            init(self, *arguments, **{**options, "consumes": False})

        return inits

    return replaced(OffsetStore, "__init__", broken)
