"""HTTP operations on the writers of a topic, listed from this replica, deleted through the log."""

from __future__ import annotations

from typing import Any

from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.paging import PageQuery
from raftmq.web.resources.topics import TopicPath
from raftmq.web.schema import Page

from ..admin.exactly_once_writers import Writers
from ..tables.writers import Writer, WriterKey
from .tables import paged, topic_named
from .views import WatermarkView, WriterPath, WriterView


class WriterOperations:
    """The operations on writers (docs/exactly-once.md)."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers

    def operations(self) -> list[Operation]:
        writers = "/api/v1/topics/{topic}/writers"
        return [
            Operation("GET", writers, "listWriters", "A topic's exactly-once writers.",
                      self.writers, parameters=TopicPath, query=PageQuery, answer=Page[WriterView],
                      problems=(404,)),
            Operation("DELETE", f"{writers}/{{writer}}", "deleteWriter",
                      "Forget a writer and its watermarks.", self.delete, role=Role.ADMIN,
                      parameters=WriterPath, status=204, problems=(409, 503, 504)),
        ]  # fmt: skip

    async def writers(self, call: Call) -> dict[str, Any]:
        topic = topic_named(self._writers.context, call.parameters.topic).name
        writers = self._writers.of_topic(topic)
        return await paged(writers, lambda one: one[0][1], _view, call.query)

    async def delete(self, call: Call) -> Reply:
        await self._writers.delete(call.parameters.topic, call.parameters.writer)
        return Reply(status=204)


def _view(entry: tuple[WriterKey, Writer]) -> WriterView:
    (topic, name), writer = entry
    marks = [
        WatermarkView(queue_id=queue_id, batch=mark.batch, sequence=mark.sequence)
        for queue_id, mark in sorted(writer.watermarks.items())
    ]
    return WriterView(
        topic=topic,
        writer=name,
        epoch=writer.epoch,
        last_time_ms=writer.stamp_ms,
        watermarks=marks,
    )
