"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), with long polling.

Every replica serves its applied messages, which are committed. Only a ready leader may answer
PULL_OFFSET_MOVED (21), after a read barrier, because other replicas would send the consumer to the
wrong end. There an offset that seems moved is held like an empty queue, or answered 19 with the
same offset (for classic slaves, see broker.consume.read_routing).

If its subscription is newer than the last heartbeat and both use tags, a pull is answered
unfiltered, because clients compare tags themselves. Java's first rebalance coincides with its first
timed heartbeat and is not reported, so with the response 25 its consumer would get nothing for 20
to 30 s. Expressions are evaluated by the broker alone, so such a pull is answered 25 and the
subscription is requested (broker.consume.subscription_refresh).

Read errors are answered 14, `[DISK_ERROR]`. The consumer retries, possibly at another leader
(`on_read_failed`). Records are sent as read, behind a header with a length that includes them.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from raftmq.dledger.raft.errors import RaftError
from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    PullResponseHeader,
)
from raftmq.store.errors import StoreError

from ..clients import ClientConnection, ClientTable
from ..component import Service
from ..context import Context
from ..errors import Refused, forbidden, rejected
from ..scheduler import Chore
from ..tables.groups import SubscriptionGroup
from ..tables.topics import PERM_READ, RETRY_PREFIX
from .filtered_reads import WORK_MAX, FilteredReads
from .filters import Filter, RetryMatcher, Work, filter_of, is_tag, own_retries, unsupported
from .group_creation import GroupCreation
from .long_polling import COUNT_MAX, HELD_PULLS_MAX, WAIT_MS_MAX, Held, HoldTable, kept_bytes
from .offset_commits import CommitService
from .offset_resets import ResetMarks, Wait
from .read_routing import read_policy
from .subscription_refresh import SubscriptionRefresh

if TYPE_CHECKING:
    from raftmq.store.message_reads import GetResult

log = logging.getLogger("raftmq.broker.pull")

_LENGTH = struct.Struct(">I")

# GetMessageStatus name → response code. Offsets outside of the queue are 21.
CODES = {
    "FOUND": ResponseCode.SUCCESS,
    "NO_MATCHED_MESSAGE": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "MESSAGE_WAS_REMOVING": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "OFFSET_FOUND_NULL": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_ONE": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_BADLY": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_TOO_SMALL": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_RESET": ResponseCode.PULL_OFFSET_MOVED,
}
OFFSET_RESET = "OFFSET_RESET"
EMPTY_QUEUE = ("NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE")


class PullConnection(ClientConnection, Protocol):
    def write_many(self, frames: list[bytes]) -> bool: ...

    def abort(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Pull:
    """A checked pull. Topic and group may change while it is held."""

    connection: PullConnection
    request: RemotingCommand
    header: PullHeader
    message_filter: Filter


class PullService:
    def __init__(
        self,
        context: Context,
        clients: ClientTable,
        commits: CommitService,
        groups: GroupCreation,
        marks: ResetMarks,
        questions: SubscriptionRefresh,
        refusal: Callable[[RemotingCommand, Exception], RemotingCommand],
    ) -> None:
        """`commits` receives piggybacked commits. `groups` creates unknown groups if allowed.
        `questions` requests subscriptions newer than the heartbeats. `refusal` encodes an error."""
        self._context = context
        self._config = context.config
        self._state = context.state
        self._clients = clients
        self._commits = commits
        self._groups = groups
        self._marks = marks
        self._questions = questions
        self._refusal = refusal
        self._get_messages = context.store.reads.get_messages
        self._filtered = FilteredReads(context.store)
        self._reads = read_policy(context)
        self.holds: HoldTable[Pull] = HoldTable(
            HELD_PULLS_MAX,
            context.budgets.kept,
            self._again,
            self._filtered.properties_of,
        )
        self.get_count = 0  # messages
        self.results: dict[int, int] = {}  # pulls by response code

    def service(self) -> Service:
        clock_ms, holds = self._context.clock_ms, self.holds
        return Service(
            handlers={
                int(RequestCode.PULL_MESSAGE): self.handle,
                int(RequestCode.LITE_PULL_MESSAGE): self.handle,
            },
            chores=[
                Chore("holds", 0, lambda: holds.turn(clock_ms()), lambda: holds.rest_ms(clock_ms()))
            ],
        )

    def handle(
        self, connection: PullConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Answer the pull now or later. Raises Refused and HeaderError."""
        try:
            return self._handle(connection, request)
        except Refused as refused:
            self._count(refused.code)
            raise

    def _count(self, code: int) -> None:
        self.results[code] = self.results.get(code, 0) + 1

    def _handle(
        self, connection: PullConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        header = PullHeader.parse(request.ext)
        pull = Pull(connection, request, header, self._check(header, connection))
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._commits.commit(
                header.topic, header.consumer_group, header.queue_id, header.commit_offset
            )
        return self._run(pull, bool(header.sys_flag & PULL_SUSPEND), Work(WORK_MAX))

    def _check(self, header: PullHeader, connection: PullConnection) -> Filter:
        """Check a pull in the order of Apache's PullMessageProcessor. Returns its filter."""
        if not self._config.broker_permission & PERM_READ:
            raise forbidden(f"the broker[{self._config.broker_ip1}] pulling message is forbidden")
        if self._permit(header) is None:
            self._groups.ensure_bare(header.consumer_group)
        message_filter = self._filter(header, connection)
        return own_retries(message_filter, header.topic, header.consumer_group)

    def _permit(self, header: PullHeader) -> SubscriptionGroup | None:
        """Return the pull's group, or None if it is yet to be created. Raises Refused unless group
        and queue are readable. Checked again when a held pull runs."""
        group = self._state.groups.get(header.consumer_group)
        if group is None:
            if not self._config.auto_create_subscription_group:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group [{header.consumer_group}] does not exist",
                )
        elif not group.consume_enable:
            raise forbidden(f"subscription group [{header.consumer_group}] may not consume")
        topic = self._state.topics.existing(header.topic)
        if not topic.readable:
            raise forbidden(f"topic[{header.topic}] is not readable")
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise rejected(
                f"queueId {header.queue_id} is illegal: topic [{header.topic}] has "
                f"{topic.read_queue_count} read queues"
            )
        return group

    def _filter(self, header: PullHeader, connection: PullConnection) -> Filter:
        if not header.sys_flag & PULL_SUBSCRIPTION:
            return self._subscribed(header, connection)
        enabled = self._config.enable_property_filter
        return filter_of(header.expression_type, header.subscription, sql_enabled=enabled)

    def _subscribed(self, header: PullHeader, connection: PullConnection) -> Filter:
        name, enabled = header.consumer_group, self._config.enable_property_filter
        group = self._clients.consumers.get(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        config = self._state.groups.get(name)
        if group.is_broadcasting and config is not None and not config.consume_broadcast_enable:
            raise forbidden(f"the consumer group[{name}] can not consume by broadcast way")
        subscription = self._clients.subscription(name, header.topic)
        if subscription is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        by_tag = is_tag(subscription.expression_type)
        if subscription.version < header.subscription_version:
            if by_tag and is_tag(header.expression_type):
                return Filter()  # the client compares tags itself (see the docstring)
            self._questions.ask(connection, name)
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if by_tag:
            retries = header.topic == RETRY_PREFIX + name and subscription.codes is None
            if retries and enabled and self._config.filter_support_retry:
                return Filter(matcher=RetryMatcher(partial(self._clients.subscription, name)))
            return Filter(subscription.codes)
        if not enabled:
            raise unsupported(subscription.expression_type)
        if subscription.matcher is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the consumer's filter data is not exist: {subscription.problem}",
            )
        return Filter(matcher=subscription.matcher)

    def _run(
        self, pull: Pull, may_hold: bool, work: Work, proven: bool = False
    ) -> RemotingCommand | None:
        """Answer or hold the pull, or run it again once this replica is confirmed as leader."""
        header = pull.header
        moved: int | Wait | None = None
        if self._state.offsets.resets:
            where = (header.topic, header.consumer_group, header.queue_id)
            if not proven and self._state.offsets.reset_of(*where) is not None:
                self._prove(pull, may_hold)
                return None
            moved = self._marks.judge(*where, header.queue_offset, lambda: self._again(pull))
        if isinstance(moved, Wait):
            return None
        result = self._read(pull, work)
        code, next_offset = self._decide(header, result)
        if code == ResponseCode.PULL_OFFSET_MOVED and not proven:
            self._prove(pull, may_hold)
            return None
        if moved is not None:
            code, next_offset, may_hold = ResponseCode.PULL_OFFSET_MOVED, moved, False
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and self._hold(pull):
            return None
        self._count(code)
        group = self._state.groups.get(header.consumer_group)
        ext = PullResponseHeader(
            self._reads.suggest(group, result.cold),
            next_offset,
            result.min_offset,
            result.max_offset,
        ).to_ext()
        remark = result.status.name if moved is None else OFFSET_RESET
        response = RemotingCommand.response_to(pull.request, code, remark, ext)
        if code != ResponseCode.SUCCESS:
            return response
        self._write_messages(pull, response, result)
        return None

    def _read(self, pull: Pull, work: Work) -> GetResult:
        """Read within `work` for the filter. Raises Refused, retriable, for bad disk or data."""
        header, matcher = pull.header, pull.message_filter.matcher
        where = (header.topic, header.queue_id, header.queue_offset)
        limits = (self._count_max(header), self._bytes_max(header))

        def read() -> GetResult:
            if matcher is not None:
                return self._filtered.get_messages(*where, *limits, matcher, work)
            return self._get_messages(*where, *limits, pull.message_filter.codes)

        try:
            return read()
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s queue=%d error=%s", *where[:2], error)
            if isinstance(error, OSError):
                self._context.log.read_failed(error, read)
            remark = f"[DISK_ERROR] the messages cannot be read here now: {error}"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark, retriable=True) from error

    def _count_max(self, header: PullHeader) -> int:
        limit = self._config.max_transfer_count_on_message_in_memory
        if header.bytes_max is not None:
            limit = max(limit, COUNT_MAX)
        return max(1, min(header.message_count_max, limit))

    def _bytes_max(self, header: PullHeader) -> int:
        limit = self._config.max_transfer_bytes_on_message_in_memory
        return limit if header.bytes_max is None else max(1, min(header.bytes_max, limit))

    def _decide(self, header: PullHeader, result: GetResult) -> tuple[int, int]:
        name = result.status.name
        if name in EMPTY_QUEUE:
            moved = header.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        else:
            code = CODES[name]
        if code == ResponseCode.PULL_OFFSET_MOVED and not self._context.roles.leading:
            code = ResponseCode.PULL_NOT_FOUND
            if self._reads.sends_back and self._reads.redirects():
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return int(code), header.queue_offset
        return int(code), result.next_offset

    def _write_messages(self, pull: Pull, response: RemotingCommand, result: GetResult) -> None:
        head = encode_command(response)
        frames = [_LENGTH.pack(len(head) - 4 + result.size_bytes) + head[4:]]
        frames += result.buffers
        self.get_count += result.message_count
        pull.connection.write_many(frames)

    def _hold(self, pull: Pull) -> bool:
        header = pull.header
        wait_ms = header.suspend_timeout_ms
        if not self._config.long_polling_enable:
            wait_ms = self._config.short_polling_time_mills
        elif self._reads.redirects():
            wait_ms = min(wait_ms, self._config.short_polling_time_mills)
        if wait_ms <= 0:
            return False
        deadline_ms = self._context.clock_ms() + min(wait_ms, WAIT_MS_MAX)
        where, size = (header.topic, header.queue_id), kept_bytes(pull.request, pull.message_filter)
        return self.holds.hold(
            Held(where, pull.message_filter, deadline_ms, pull, pull.connection, size)
        )

    def _prove(self, pull: Pull, may_hold: bool) -> None:
        """Run the pull again after a read barrier, or reject it."""
        self._context.log.barrier_then(lambda error: self._proven(pull, may_hold, error))

    def _proven(self, pull: Pull, may_hold: bool, error: Exception | None) -> None:
        self._resume(pull, lambda: self._run(pull, may_hold, self.holds.work, True), error)

    def _again(self, pull: Pull) -> None:
        """Answer a held pull after a message or its deadline."""
        self._resume(pull, lambda: self._run(pull, False, self.holds.work))

    def _resume(
        self, pull: Pull, run: Callable[[], RemotingCommand | None], error: Exception | None = None
    ) -> None:
        """Answer a waiting pull with the result of `run` or with the error."""
        if not pull.connection.is_open:
            return
        response: RemotingCommand | None
        try:
            try:
                if error is not None:
                    raise error
                self._permit(pull.header)
                response = run()
            except (RaftError, RemotingError) as refused:
                response = self._refusal(pull.request, refused)
                self._count(response.code)
            if response is not None:
                pull.connection.write_many([encode_command(response)])
        except Exception as error:  # a consumer's request must not fail an apply
            self._context.contained.failed("held_pull", error, pull.connection)
