"""Administration of offsets, in queues and of groups."""

from __future__ import annotations

from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import RequestCode

from ..consumer.remote_offset_store import OffsetStore, max_offset, min_offset, offset_for
from ..instance import ClientInstance
from ..message import MessageQueue
from .bodies import queue_offsets
from .requests import Requests

TO_END = -1  # a reset's timestamp for the end of the queue


class OffsetAdmin:
    """Offsets of queues, from their leaders, and of groups."""

    def __init__(self, instance: ClientInstance, requests: Requests) -> None:
        self._instance = instance
        self._requests = requests

    async def max(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's next message (30)."""
        await self._instance.directory.route(queue.topic)
        return await max_offset(self._instance, queue)

    async def min(self, queue: MessageQueue) -> int:
        """Return the queue's oldest offset (31)."""
        await self._instance.directory.route(queue.topic)
        return await min_offset(self._instance, queue)

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after `timestamp_ms` (29)."""
        await self._instance.directory.route(queue.topic)
        return await offset_for(self._instance, queue, timestamp_ms)

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the group's committed offset (14), or None."""
        await self._instance.directory.route(queue.topic)
        return await OffsetStore(group, self._instance).committed(queue)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit an offset for a group (15), confirmed by the broker. A running consumer may
        overwrite it."""
        await self._instance.directory.route(queue.topic)
        await OffsetStore(group, self._instance, consumes=False).write(queue, offset)

    async def reset(
        self,
        address: str,
        group: str,
        topic: str,
        timestamp_ms: int = TO_END,
        *,
        force: bool = True,
        queue_id: int = -1,
        offset: int = -1,
    ) -> dict[MessageQueue, int]:
        """Reset the group's offsets (222) to `timestamp_ms`, or TO_END, in every queue of this
        broker; or in `queue_id` to `offset`. Running consumers follow. Without `force` offsets only
        move back. Returns the new offsets by queue."""
        ext = ResetOffsetHeader(topic, group, timestamp_ms, force, queue_id, offset).to_ext()
        if offset < 0:
            del ext["offset"]
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return queue_offsets((await self._requests.json(address, code, ext)).get("offsetTable"))

    async def clone(self, address: str, source: str, target: str, topic: str) -> None:
        """Copy the offsets of `source` in the topic to group `target` (314)."""
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "false"}
        await self._requests.ask(address, RequestCode.CLONE_GROUP_OFFSET, ext)
