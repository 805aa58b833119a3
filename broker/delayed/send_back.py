"""CONSUMER_SEND_MSG_BACK (36), the return of a message that failed to be consumed.

A single frame holds the retry or dead letter (broker.send.retry_policy), and the response follows
its commit. So after SUCCESS the message is redelivered or a dead letter under any leader. After an
unknown outcome consumers send the message to the retry topic themselves. They may get it twice, as
with Apache's broker; nothing is deduplicated here.

It requires the group's rights and the right to read the message.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.headers import SendBackHeader
from raftmq.store.errors import StoreError
from raftmq.store.record import MessageRecord, RecordError, decode_record

from ..access import Access
from ..component import Service
from ..context import Context
from ..errors import Refused, forbidden, rejected
from ..send.callbacks import Completion
from ..send.retry_policy import dead_letter_topic, given_back, is_exhausted
from ..send.service import SendPath
from ..tables.groups import SubscriptionGroup, group_name_problem
from ..tables.state import put_group, put_topic
from ..tables.topics import PERM_WRITE, TopicConfig, retry_topic

KNOWS_TIMES_MAX = 121  # V3_4_9; before, maxReconsumeTimes had another meaning


@dataclass
class SendBack:
    """The handler of the request."""

    context: Context
    sends: SendPath
    access: Access

    def service(self) -> Service:
        return Service(handlers={int(RequestCode.CONSUMER_SEND_MSG_BACK): self.send_back})

    async def send_back(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Store the retry or dead letter. Raises Refused, AclError, OutcomeUnknown, HeaderError."""
        header = SendBackHeader.parse(request.ext)
        name, level = header.group, header.delay_level
        self.context.roles.require_leading()
        group = self.context.state.groups.get(name)
        if not self.context.config.broker_permission & PERM_WRITE:
            raise forbidden("the broker is not writable")
        if group is not None and group.retry_queue_count <= 0:
            return RemotingCommand.response_to(request)  # the group drops failed messages
        record = self._record(header.commitlog_offset)
        self.access.permit_record(connection, request, record)
        if group is None:
            group = await self._new_group(name)
        times_max = group.retry_times_max
        requested_max = header.max_reconsume_times
        if requested_max is not None and request.version >= KNOWS_TIMES_MAX:
            times_max = requested_max
        if is_exhausted(record, level, times_max):
            topic = await self._have(dead_letter_topic(name))
        else:
            topic = await self._have(retry_topic(name, group.retry_queue_count))
        count = max(1, topic.write_queue_count)
        message = given_back(
            record, name, count, level, times_max, self.context.config.delay_levels_ms
        )
        ended = Completion()
        self.sends.store([message], b"", ended)
        self.sends.wake()
        await ended.stored()
        return RemotingCommand.response_to(request)

    async def _new_group(self, name: str) -> SubscriptionGroup:
        problem = group_name_problem(name)
        if problem or not self.context.config.auto_create_subscription_group:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                problem or f"subscription group [{name}] does not exist",
            )
        await self.context.log.propose(put_group(SubscriptionGroup(name), if_absent=True))
        return self.context.state.groups.get(name) or SubscriptionGroup(name)

    async def _have(self, topic: TopicConfig) -> TopicConfig:
        """Return the topic, created if missing. Raises Refused."""
        there = self.context.state.topics.get(topic.name)
        if there is None:
            await self.context.log.propose(put_topic(topic, if_absent=True))
            there = self.context.state.topics.get(topic.name) or topic
        if not there.writable:
            raise forbidden(f"topic [{topic.name}] is not writable")
        return there

    def _record(self, offset: int) -> MessageRecord:
        """Return the record at `offset`, which is the same on every replica. Raises Refused."""
        try:
            data = self.context.store.reads.message_at(offset) if offset >= 0 else None
            record = None if data is None else decode_record(data)
        except (OSError, StoreError, RecordError) as error:
            raise rejected(f"no message can be read at offset {offset}: {error}") from error
        if record is None or record.physical_offset != offset:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"no message begins at offset {offset}: it is gone, or never was",
                absent=True,
            )
        return record
