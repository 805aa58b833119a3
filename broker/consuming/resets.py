"""Moving a consumer group: reset (222) and clone (314), live or not, exact across a failover.

A reset is one command in the log: it sets the offsets and marks them (broker.tables.offsets). From
then on any leader answers the group's next pull of a marked queue with 21 OFFSET_RESET and the new
offset, as Apache's broker does with useServerSideResetOffset; until the consumer has pulled there,
its commits are from before the reset and change nothing. Its pull there is answered once the log
says that the reset was taken (`reset_taken`), so that it gets no message that a failover would take
back. Every client follows a 21, and at once; 220 goes to consumers that broadcast, because they
keep their offsets themselves.

Order in the log: commits gathered before a reset are proposed before it, and those gathered before
it was taken are proposed before that; both change nothing. What is committed after the consumer
pulled at its new offset counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from raftmq.broker.clients import ClientTable
from raftmq.broker.consuming.commits import COMMITS_PER_FRAME_MAX, no_room
from raftmq.broker.errors import Refused
from raftmq.broker.tables.offsets import Commit
from raftmq.broker.tables.state import BrokerState, reset_offsets, reset_taken
from raftmq.remoting.acl.accounts import Permission
from raftmq.remoting.acl.needs import topic_need
from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fastjson import MessageQueue, dumps
from raftmq.remoting.fields import text

if TYPE_CHECKING:
    from raftmq.broker.access import Access
    from raftmq.store.messagestore import MessageStore

log = logging.getLogger("raftmq.broker.resets")

TO_END = -1  # a timestamp
BROADCASTING = "BROADCASTING"
TAKING_MAX = 10_000  # pulls that may wait for the log at a time
Key = tuple[str, str, int]  # topic, group, queue id


class Wait(Enum):
    """The verdict that a pull is answered later."""

    LATER = "later"


@dataclass(slots=True)
class Resets:
    """Carries out resets and clones. `propose(payload)` returns once applied; `propose_then` calls
    back; `flush_commits` proposes gathered commits; `wake` runs held pulls again."""

    broker_name: str
    state: BrokerState
    store: MessageStore
    clients: ClientTable
    propose: Callable[[bytes], Awaitable[int]]
    propose_then: Callable[[bytes, Callable[[Exception | None], None]], None]
    leading: Callable[[], bool]
    not_leader: Callable[[], Refused]
    flush_commits: Callable[[], None]
    wake: Callable[[], None]
    has_room: Callable[[str, str, Collection[int]], bool]  # as in broker.consuming.commits
    access: Access
    # Queues whose consumer this leader has told, and pulls that wait for `reset_taken`.
    _told: set[Key] = field(default_factory=set)
    _taking: dict[Key, list[Callable[[], None]]] = field(default_factory=dict)
    _taking_count: int = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET): self.invoke,
            int(RequestCode.CLONE_GROUP_OFFSET): self.clone,
        }

    # ---- deeds ----------------------------------------------------------------------------

    async def invoke(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Reset (222) by time, TO_END, or one queue to an offset. Without force only backwards."""
        header = ResetOffsetHeader.parse(request.ext)
        targets = self.targets(header)
        if not header.force:
            for queue_id, offset in list(targets.items()):
                committed = self.state.offsets.get(header.topic, header.group, queue_id)
                if committed is not None and committed <= offset:
                    del targets[queue_id]
        await self.reset(header.group, header.topic, targets)
        table = {}
        for queue_id in self.targets(header):
            now = self.state.offsets.get(header.topic, header.group, queue_id)
            key = MessageQueue(header.topic, self.broker_name, queue_id)
            table[key] = targets.get(queue_id, 0 if now is None else now)
        return RemotingCommand.response_to(request, body=dumps({"offsetTable": table}))

    def targets(self, header: ResetOffsetHeader) -> dict[int, int]:
        """Return queue id → new offset, within the queue's bounds. Raises Refused."""
        topic = self.state.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        self._know(header.group)
        queue_ids = range(topic.read_queue_count)
        if header.queue_id >= 0:
            if header.queue_id not in queue_ids:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queueId {header.queue_id} is illegal: topic [{header.topic}] has "
                    f"{len(queue_ids)} read queues",
                )
            queue_ids = range(header.queue_id, header.queue_id + 1)
        return {q: self._target(header, q) for q in queue_ids}

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        queue = self.store.queues.queue(header.topic, queue_id)
        if queue is None:
            return 0
        if header.offset >= 0:
            wanted = header.offset
        elif header.timestamp_ms == TO_END:
            wanted = queue.max_offset
        else:
            wanted = self.store.reads.offset_by_time(header.topic, queue_id, header.timestamp_ms)
        return min(max(wanted, queue.min_offset), queue.max_offset)

    def _know(self, group: str) -> None:
        known = group in self.state.groups.entries or group in self.clients.consumers
        if not known and not any(name == group for _, name in self.state.offsets.offsets):
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group[{group}] does not exist"
            )

    async def reset(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Move the group in these queues; return once that is committed and applied. Raises
        Refused, RaftError (OutcomeUnknown among them)."""
        if not self.leading():
            raise self.not_leader()
        online = self.clients.consumers.get(group)
        if online is not None and online.message_model == BROADCASTING:
            self._tell_broadcasters(group, topic, targets)
            return
        if not self.has_room(topic, group, targets):
            raise no_room()
        resets: list[Commit] = [(topic, group, q, offset) for q, offset in sorted(targets.items())]
        for start in range(0, len(resets), COMMITS_PER_FRAME_MAX):
            part = resets[start : start + COMMITS_PER_FRAME_MAX]
            for key in part:
                self._told.discard(key[:3])
            self.flush_commits()
            await self.propose(reset_offsets(part))
        if resets:
            log.info("offsets_reset group=%s topic=%s queues=%d", group, topic, len(resets))
        self.wake()

    def _tell_broadcasters(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Tell broadcasting consumers (220), in the form that each client's language reads."""
        ext = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        table = {MessageQueue(topic, self.broker_name, q): o for q, o in targets.items()}
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
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"{member.client_id} cannot be told: {error}"
                ) from error

    async def clone(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Clone (314) the offsets of one group in a topic (none: in all it consumes) to another.
        Raises Refused, AclError, RaftError."""
        source, target = text(request.ext, "srcGroup"), text(request.ext, "destGroup")
        wanted = (request.ext or {}).get("topic") or ""
        table = self.state.offsets.offsets
        # As they are now: a topic may be deleted while another's offsets are set.
        topics = {
            topic: dict(offsets)
            for (topic, group), offsets in table.items()
            if group == source and wanted in ("", topic)
        }
        self.access.permit(
            connection, request, [topic_need(topic, Permission.SUB) for topic in topics]
        )
        for topic, offsets in topics.items():
            await self.reset(target, topic, offsets)
        return RemotingCommand.response_to(request)

    # ---- pulls ----------------------------------------------------------------------------

    def judge(
        self, topic: str, group: str, queue_id: int, offset: int, again: Callable[[], None]
    ) -> int | Wait | None:
        """Return how a pull at `offset` is answered: None: as ever; an offset: go on there instead;
        LATER: `again` is called when it can be decided. Raises Refused."""
        mark = self.state.offsets.reset_of(topic, group, queue_id)
        if mark is None:
            return None
        if not self.leading():
            raise self.not_leader()
        key = (topic, group, queue_id)
        waiting = self._taking.get(key)
        if waiting is None:
            if key not in self._told or offset != mark:
                self._told.add(key)
                return mark
            waiting = self._taking[key] = []
            self.flush_commits()
            self.propose_then(reset_taken((*key, mark)), lambda error: self._taken(key, error))
        if self._taking_count >= TAKING_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, "[BUSY] too many resets are being taken")
        waiting.append(again)
        self._taking_count += 1
        return Wait.LATER

    def _taken(self, key: Key, error: Exception | None) -> None:
        self._told.discard(key)
        if error is not None:  # the waiting pulls are told again, or learn who leads
            log.info("reset_not_taken group=%s topic=%s: %s", key[1], key[0], error)
        waiting = self._taking.pop(key, [])
        self._taking_count -= len(waiting)
        for again in waiting:
            again()

    def leadership_changed(self) -> None:
        """Forget which consumers were told: another leader told them, not this one."""
        self._told.clear()
