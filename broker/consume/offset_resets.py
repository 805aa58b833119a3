"""Offset resets (222) and clones (314), consistent across failovers.

A reset is a single command that sets the offsets and marks the queues (broker.tables.offsets). From
then on any leader answers the group's next pull of a marked queue with 21 OFFSET_RESET and the new
offset, like Apache's broker with useServerSideResetOffset. Until the consumer pulls at that offset,
its commits are ignored. That pull is answered once `reset_taken` is in the log, so that no failover
can repeat the reset. Broadcasting consumers, which keep their offsets locally, are notified with
220.

Commits gathered before a reset or before `reset_taken` are proposed first, so they cannot move the
group away from the new offset. Commits after the consumer's pull at the new offset count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from raftmq.remoting.acl.accounts import Permission
from raftmq.remoting.acl.needs import topic_need
from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import MessageQueue, dumps
from raftmq.remoting.fields import text

from ..access import Access
from ..clients import ClientTable
from ..component import Service, at_each_leadership
from ..context import Context
from ..errors import Refused, busy, rejected
from ..tables.offsets import Commit
from ..tables.state import reset_offsets, reset_taken
from .offset_commits import CommitService, in_frames

log = logging.getLogger("raftmq.broker.resets")

TO_END = -1  # as a timestamp
WAITING_MAX = 10_000  # pulls that wait for the log
Key = tuple[str, str, int]  # topic, group, queue id


class Wait(Enum):
    """The result of `judge` for a pull that is answered later."""

    LATER = "later"


class ResetMarks:
    """Redirects pulls to the new offsets after a reset."""

    def __init__(self, context: Context, commits: CommitService) -> None:
        self._context = context
        self._commits = commits
        self._redirected: set[Key] = set()  # queues with a 21 sent by this leader
        self._waiting: dict[Key, list[Callable[[], None]]] = {}  # pulls waiting for the log
        self._waiting_count = 0

    def service(self) -> Service:
        # The next leader may have redirected the consumers.
        return Service(role_changed=at_each_leadership(self._redirected.clear))

    def marked(self, key: Key) -> None:
        """Prepare for a reset of this queue, which is about to be proposed."""
        self._redirected.discard(key)

    def judge(
        self, topic: str, group: str, queue_id: int, offset: int, again: Callable[[], None]
    ) -> int | Wait | None:
        """Decide on a pull at `offset`. Returns None to answer as usual, the offset of a redirect,
        or LATER to call `again` once it can be decided. Raises Refused."""
        mark = self._context.state.offsets.reset_of(topic, group, queue_id)
        if mark is None:
            return None
        self._context.roles.require_leading()
        key = (topic, group, queue_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            if key not in self._redirected or offset != mark:
                self._redirected.add(key)
                return mark
            waiting = self._waiting[key] = []
            self._commits.flush()
            self._context.log.propose_then(
                reset_taken((*key, mark)), lambda error: self._reset_applied(key, error)
            )
        if self._waiting_count >= WAITING_MAX:
            raise busy("too many resets are being taken")
        waiting.append(again)
        self._waiting_count += 1
        return Wait.LATER

    def _reset_applied(self, key: Key, error: Exception | None) -> None:
        self._redirected.discard(key)
        if error is not None:  # the waiting pulls are redirected again or get the leader's address
            log.info("reset_not_applied group=%s topic=%s: %s", key[1], key[0], error)
        waiting = self._waiting.pop(key, [])
        self._waiting_count -= len(waiting)
        for again in waiting:
            again()


@dataclass
class Resets:
    """Executes resets and clones. `wake()` runs held pulls again."""

    context: Context
    marks: ResetMarks
    commits: CommitService
    clients: ClientTable
    access: Access
    wake: Callable[[], None]

    def service(self) -> Service:
        return Service(
            handlers={
                int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET): self.invoke,
                int(RequestCode.CLONE_GROUP_OFFSET): self.clone,
            }
        )

    async def invoke(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Reset (222) by time, to the end, or a queue to an offset. Without force, a reset by time
        only moves the group backwards."""
        header = ResetOffsetHeader.parse(request.ext)
        await self.context.log.barrier()  # confirms leadership even if nothing is proposed
        targets = self.targets(header)
        where = (header.topic, header.group)
        before = {q: self.context.state.position(*where, q) for q in targets}
        if header.offset < 0 and not header.force:
            earlier = targets.items()
            targets = {q: to for q, to in earlier if (was := before[q]) is None or was > to}
        await self.reset(header.group, header.topic, targets)
        table = {
            MessageQueue(header.topic, self.context.config.broker_name, q): targets.get(q, was or 0)
            for q, was in before.items()
        }
        return RemotingCommand.response_to(request, body=dumps({"offsetTable": table}))

    def targets(self, header: ResetOffsetHeader) -> dict[int, int]:
        """Return the new offset by queue id. Raises Refused, also for one outside its queue."""
        topic = self.context.state.topics.existing(header.topic)
        self._check_group(header.group)
        queue_ids = range(topic.read_queue_count)
        if header.queue_id >= 0:
            if header.queue_id not in queue_ids:
                raise rejected(
                    f"queueId {header.queue_id} is illegal: topic [{header.topic}] has "
                    f"{len(queue_ids)} read queues"
                )
            queue_ids = range(header.queue_id, header.queue_id + 1)
        return {q: self._target(header, q) for q in queue_ids}

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        queue = self.context.store.queues.queue(header.topic, queue_id)
        if queue is None:
            return 0
        if header.offset >= 0:
            target = header.offset
            if not queue.min_offset <= target <= queue.max_offset:
                raise rejected(
                    f"offset {target} is not in queue {queue_id} of topic [{header.topic}], which"
                    f" has {queue.min_offset} to {queue.max_offset}"
                )
        elif header.timestamp_ms == TO_END:
            target = queue.max_offset
        else:
            target = self.context.store.reads.offset_by_time(
                header.topic, queue_id, header.timestamp_ms
            )
        return min(max(target, queue.min_offset), queue.max_offset)

    def _check_group(self, group: str) -> None:
        known = group in self.context.state.groups.entries or group in self.clients.consumers
        if not known and not any(name == group for _, name in self.context.state.offsets.offsets):
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group[{group}] does not exist"
            )

    async def reset(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Move the group in these queues; return once applied. Raises Refused, RaftError."""
        self.context.roles.require_leading()
        online = self.clients.consumers.get(group)
        if online is not None and online.is_broadcasting:
            self._notify_broadcasters(group, topic, targets)
            return
        resets: list[Commit] = [(topic, group, q, offset) for q, offset in sorted(targets.items())]
        for chunk in in_frames(resets, self.commits.frame_bytes_max):
            self.commits.check(topic, group, targets)
            for key in chunk:
                self.marks.marked(key[:3])
            self.commits.flush()
            await self.context.log.propose(reset_offsets(chunk))
        if resets:
            log.info("offsets_reset group=%s topic=%s queues=%d", group, topic, len(resets))
        self.wake()

    def _notify_broadcasters(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Notify broadcasting consumers (220), in the format of each client's language."""
        ext = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        table = {
            MessageQueue(topic, self.context.config.broker_name, q): o for q, o in targets.items()
        }
        listed = [{**queue.as_fields(), "offset": offset} for queue, offset in table.items()]
        for member in list(self.clients.consumers[group].members.values()):
            as_list = member.language == LanguageCode.CPP
            body = dumps({"offsetTable": listed if as_list else table})
            command = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body
            )
            try:
                member.connection.invoke_oneway(command)
            except RemotingError as error:
                raise rejected(f"{member.client_id} cannot be told: {error}") from error

    async def clone(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Clone (314) a group's offsets to another group, for a topic or for all topics it
        consumes. Raises Refused, AclError, RaftError."""
        source, target = text(request.ext, "srcGroup"), text(request.ext, "destGroup")
        only_topic = (request.ext or {}).get("topic") or ""
        await self.context.log.barrier()
        table = self.context.state.offsets.offsets
        # A snapshot, since a topic may be deleted during a reset.
        topics = {
            topic: {q: self.context.state.position(topic, source, q) or 0 for q in offsets}
            for (topic, group), offsets in table.items()
            if group == source and only_topic in ("", topic)
        }
        self.access.permit(
            connection, request, [topic_need(topic, Permission.SUB) for topic in topics]
        )
        for topic, offsets in topics.items():
            await self.reset(target, topic, offsets)
        return RemotingCommand.response_to(request)
