"""Opening, listing and deleting writers (broker.tables.writers), for the wire (30006) and HTTP."""

from __future__ import annotations

import logging
from typing import Any

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.fields import text

from ..component import Service
from ..context import Context
from ..errors import Refused, busy
from ..send.exactly_once import WriterRequests, checked_epoch, checked_name
from ..tables.writers import Writer, WriterKey, delete_writer, open_writer

log = logging.getLogger("raftmq.broker.writers")

WRITERS_MAX = 1_000  # of a broker group
OPEN, LIST, DELETE = OPS = ("open", "list", "delete")
STALE_EPOCH = "STALE_EPOCH"


class Writers:
    def __init__(self, context: Context, requests: WriterRequests) -> None:
        self.context = context
        self._table = context.state.writers
        self._requests = requests

    def service(self) -> Service:
        return Service(handlers={int(RequestCode.WRITERS): self.handle})

    async def handle(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Serve 30006. Ext fields are `topic`, `op` (open, list, delete), `writer` (not with list)
        and `epoch` (with open). The body of every answer is
        {"writers":[{"topic","writer","epoch","lastTimeMs", "watermarks":{queue
        id:[batch,sequence]}}]}, with open for the writer, with list for the topic. Raises Refused,
        RaftError."""
        ext = request.ext or {}
        topic, op = text(ext, "topic"), ext.get("op", "")
        if op not in OPS:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"op={op!r}: expected one of {', '.join(OPS)}"
            )
        self.context.roles.require_leading()
        await self.context.log.barrier()  # a deposed leader has an old list
        writers: list[tuple[WriterKey, Writer]] = []
        if op == LIST:
            writers = self.of_topic(topic)
        elif op == DELETE:
            await self.delete(topic, text(ext, "writer"))
        else:
            key = topic, checked_name(text(ext, "writer"))
            writers = [(key, await self.open(*key, checked_epoch(ext)))]
        body = dumps({"writers": [writer_json(*one) for one in writers]})
        return RemotingCommand.response_to(request, body=body)

    def of_topic(self, topic: str) -> list[tuple[WriterKey, Writer]]:
        """Return a topic's writers on this replica, sorted."""
        return sorted(
            ((key, writer) for key, writer in self._table.writers.items() if key[0] == topic),
            key=lambda one: one[0],
        )

    async def open(self, topic: str, name: str, epoch: int) -> Writer:
        """Open a writer at a new epoch, which fences its owner. Raises Refused, RaftError."""
        self._check_possible()
        key = topic, name
        writer = self._table.writers.get(key)
        if writer is not None and epoch <= writer.epoch:
            reason = f"writer {name} of {topic} is open at epoch {writer.epoch} already"
            raise Refused(ResponseCode.SYSTEM_ERROR, reason, tag=STALE_EPOCH)
        if writer is None and len(self._table.writers) >= WRITERS_MAX:
            raise busy(f"there are {WRITERS_MAX} writers: delete one that is not used any more")
        self._requests.start_change(key)
        try:
            await self.context.log.propose(open_writer(topic, name, epoch))
            opened = self._table.writers.get(key)
            if opened is None or opened.epoch != epoch:
                raise busy("the writer was changed meanwhile; try again", retriable=True)
        finally:
            self._requests.finish_change(key)
        log.info("writer_opened topic=%s writer=%s epoch=%d", topic, name, epoch)
        return opened

    async def delete(self, topic: str, name: str) -> None:
        """Delete a writer and its watermarks, if there is one. Raises Refused, RaftError."""
        key = topic, name
        self.context.roles.require_leading()
        await self.context.log.barrier()
        if key not in self._table.writers:
            return
        self._requests.start_change(key)
        try:
            await self.context.log.propose(delete_writer(topic, name))
        finally:
            self._requests.finish_change(key)
        log.info("writer_deleted topic=%s writer=%s", topic, name)

    def _check_possible(self) -> None:
        if self.context.config.is_classic:
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "writers need Raft mode: here a failover may lose their watermarks",
            )


def writer_json(key: WriterKey, writer: Writer) -> dict[str, Any]:
    topic, name = key
    return {
        "topic": topic,
        "writer": name,
        "epoch": writer.epoch,
        "lastTimeMs": writer.stamp_ms,
        "watermarks": {str(queue): list(mark) for queue, mark in writer.watermarks.items()},
    }
