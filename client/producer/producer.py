"""The producer.

    async with Producer("group", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"...", tags="created"))

A send ends within its `timeout_ms` in a SendResult (stored, on a majority), SendFailed (certainly
not stored) or SendOutcomeUnknown. Until then it is repeated, with the same UNIQ_KEY, on whichever
replica leads. Messages for a queue are written in the order of the calls. After a failed attempt a
message may be stored behind later messages, so strict order needs sequential sends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import ONEWAY_FLAG, RemotingCommand
from raftmq.remoting.connection import Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.names import NO_SEND_TOPICS, topic_name_problem
from raftmq.remoting.recall_handle import RecallHandle

from ..errors import (
    CODE_NO_ROUTE,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NameServerUnreachable,
    NoRoute,
    SendFailed,
    SplitFailed,
    TooManyInFlight,
)
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig, local_address, successful
from ..message import (
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    UniqueKeys,
    process_unique_keys,
)
from ..retry import ROUTE_SEARCH
from ..route import TopicRouteData
from .audit_topic import AuditTopic
from .pending_send import Pending, SendCallback, UnroutedSends, settling
from .request_reply import WaitingRequests, reply_message
from .send_frame import (
    SEND_MESSAGE_V2,
    SEND_REPLY_MESSAGE_V2,
    SPLIT_SIZE_BYTES,
    OutgoingSend,
    outgoing,
    outgoing_batch,
    split_batch,
    template_for,
)
from .sender import SendConfig, SendEngine

T = TypeVar("T")
Selector = Callable[[Sequence[MessageQueue], Message, T], MessageQueue]

AUTO_CREATE_TOPIC = "TBW102"  # its route has the brokers that create topics at the first send
AUTO_CREATE_QUEUES = 4
PUBLICATIONS_MAX = 10_000  # topics with queues in rotation
IDEMPOTENT_SUFFIX = "IDEMPOTENT\x01true\x02"
BORN_MS_MAX = (1 << 63) - 1  # as in brokers and records
PERM_INHERIT = 1
PROVISIONAL_CHECK_S = 0.2


class Publication:
    """The writable queues of a topic, in rotation."""

    __slots__ = ("_turn", "provisional", "queues", "route", "single_group")

    def __init__(
        self, queues: Sequence[MessageQueue], route: TopicRouteData, provisional: bool = False
    ) -> None:
        self.queues = tuple(queues)
        self.route = route
        self.single_group = len({queue.broker_name for queue in queues}) == 1
        self.provisional = provisional  # the topic does not exist yet
        self._turn = int(time.monotonic() * 1000)  # producers do not all start at queue 0

    def next(self) -> MessageQueue:
        self._turn += 1
        return self.queues[self._turn % len(self.queues)]

    def next_fit(self, fit: Callable[[str], bool]) -> MessageQueue | None:
        """Return the next queue in a fit broker group, or None."""
        for _ in self.queues:
            queue = self.next()
            if fit(queue.broker_name):
                return queue
        return None


def remember(
    publications: dict[str, Publication], topic: str, publication: Publication
) -> Publication:
    """Keep and return a topic's publication; of PUBLICATIONS_MAX topics the oldest is dropped."""
    if topic not in publications and len(publications) >= PUBLICATIONS_MAX:
        del publications[next(iter(publications))]
    publications[topic] = publication
    return publication


class Producer:
    """A producer, for a single event loop and not thread-safe (client.sync is). With `audit_topic`
    it writes its acknowledgements there, for `mqaudit watch`."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        config: SendConfig | None = None,
        instance_config: InstanceConfig | None = None,
        audit_topic: str = "",
    ) -> None:
        self.group = group
        self.config = config or SendConfig()
        self._instance = ClientInstance(namesrv, instance_config)
        self._keys: UniqueKeys | None = None  # of the starting process
        self._engine: SendEngine | None = None
        self._publications: dict[str, Publication] = {}
        # topics with a task that asks for the route, for unrouted sends
        self._searched: set[str] = set()
        self._checked_at = 0.0
        self._requests = WaitingRequests(lambda: self._instance.client_id)
        self._announced: set[str] = set()  # broker groups with our heartbeat on the leader
        self._suffix = IDEMPOTENT_SUFFIX if self.config.idempotent else ""
        self._audit = AuditTopic(audit_topic, self.send_nowait) if audit_topic else None

    __aenter__, __aexit__ = entered, left

    async def start(self) -> None:
        """Start accepting sends, without waiting for a server."""
        await self._instance.start(self._heartbeat, self._handlers())
        self._keys = process_unique_keys(local_address())
        self._engine = SendEngine(self._instance, self.group, self.config, self._alternative)
        self._engine.start()
        if self._audit is not None:
            self._instance.spawn(self._audit.flush_regularly(), "audit topic")

    async def stop(self) -> None:
        """End undecided sends in their current state, unregister at the brokers, and close."""
        if self._engine is None:
            return
        if self._audit is not None:
            await self._audit.finish()
        self._running().stop()
        self._searched.clear()
        await self._instance.leave(self.group, None)
        self._engine = None
        self._publications.clear()  # a next start requests the routes again
        self._announced.clear()

    @property
    def in_flight(self) -> int:
        """Return the number of undecided sends."""
        return self._engine.in_flight if self._engine else 0

    @property
    def unaudited(self) -> int:
        """Return the number of acknowledgements that could not be written to the audit topic."""
        return self._audit.lost if self._audit else 0

    async def send(
        self,
        message: Message,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: Selector[Any] | None = None,
        arg: Any = None,
    ) -> SendResult:
        """Send a message. Raises SendFailed, SendOutcomeUnknown, InvalidMessage, ClientClosed. At
        the in-flight limit it waits for capacity within `timeout_ms`, then raises TooManyInFlight.
        `selector(queues, message, arg)` chooses the queue. It or `queue` keeps related messages in
        a queue, and such a send is repeated only there."""
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        if selector is not None:
            publication = await self._publication_by(message.topic, deadline)
            queue = selector(publication.queues, message, arg)
        item = self._outgoing(message)
        result = await self._send_item(item, message.topic, queue, deadline)
        if self._audit is not None:
            self._audit.note(result, (message,))
        return result

    async def send_batch(
        self,
        messages: Sequence[Message],
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send messages of a topic to a queue atomically. `msg_id` and `offset_msg_id` of the
        result are comma lists, `queue_offset` is the first message's. Raises as `send`."""
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        if self.config.idempotent:
            raise InvalidMessage("brokers take no idempotent batches")
        keys = [self._key_of(message) for message in messages]
        item = outgoing_batch(messages, keys, int(time.time() * 1000))
        result = await self._send_item(item, messages[0].topic, queue, deadline)
        if self._audit is not None:
            self._audit.note(result, messages)
        return result

    async def send_split(
        self,
        messages: Sequence[Message],
        size_bytes_max: int = SPLIT_SIZE_BYTES,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        """Send any number of messages of a topic as sequential batches of at most `size_bytes_max`.
        Raises SplitFailed, with the unsent messages in `unsent` and the error as its cause."""
        results: list[SendResult] = []
        done = 0
        for batch in list(split_batch(messages, size_bytes_max)):
            try:
                results.append(await self.send_batch(batch, timeout_ms, queue))
            except ClientError as error:
                raise SplitFailed(error, results, messages[done:], len(batch)) from error
            done += len(batch)
        return results

    def send_nowait(
        self,
        message: Message,
        callback: SendCallback,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> str:
        """Start a send; `callback(result, None)` or `callback(None, error)` is called once, from
        the loop, never from within this call unless the producer is being stopped. Returns the
        UNIQ_KEY. Raises TooManyInFlight (nothing was sent), InvalidMessage, ClientClosed. Retries
        as `send` does, without a task or future per message."""
        if self._audit is not None:
            callback = self._audit.noting(message, callback)
        engine = self._engine
        if engine is None:
            raise ClientClosed
        item = self._outgoing(message)
        topic = message.topic
        now = engine.now()
        fixed = queue is not None
        publication = None if fixed else self._publication_if_known(topic)
        if publication is None:
            _check_target(topic, queue)
        else:
            # The usual case without the call to `_choose`: a single group, or no group in trouble.
            quiet = publication.single_group or engine.fault.quiet
            queue = publication.next() if quiet else self._choose(publication)
            if publication.provisional:
                self._check_created(topic)
        chosen = queue or MessageQueue(topic, "", -1)
        pending = Pending(item, chosen, fixed, now + timeout_ms / 1000, callback)
        engine.admit(pending)
        if queue is None or (fixed and not self._group_known(queue)):
            self._hold_unrouted(topic, pending)
        else:
            engine.submit(pending, now)
        return item.unique_key

    async def send_oneway(
        self, message: Message, timeout_ms: int = 3000, queue: MessageQueue | None = None
    ) -> None:
        """Write a message without waiting for an answer; it may be lost without notice. Returns
        when a connection has it. Raises SendFailed otherwise."""
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        publication = await self._publication_by(message.topic, deadline)
        if queue is not None:
            _check_target(message.topic, queue)
        target = queue or self._choose(publication)
        item = self._outgoing(message)
        group = self._instance.directory.group(target.broker_name)
        credentials = self._instance.config.credentials
        template = template_for(
            credentials, self.group, target.topic, target.broker_name, item.code
        )
        reason = "no replica is known"
        for address in group.send_targets():
            try:
                channel = await engine.open_channel(address)
            except ClientError as error:
                reason = error.message
                continue
            frame = template.frame(item, target.queue_id, channel.next_opaque(), ONEWAY_FLAG)
            if channel.write(frame):
                return
        raise SendFailed(CODE_NO_ROUTE, f"one-way send not possible: {reason}")

    async def request(
        self,
        message: Message,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: Selector[Any] | None = None,
        arg: Any = None,
    ) -> MessageExt:
        """Send a message and return its consumer's reply. Raises as `send`, or RequestTimedOut
        (stored, and perhaps processed, but not answered)."""
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        publication = await self._publication_by(message.topic, deadline)
        names = {queue.broker_name for queue in publication.queues}
        if not names <= self._announced:  # brokers without our heartbeat cannot push a reply
            await self._announce(names, deadline)
        correlation_id, marked = self._requests.start(message, timeout_ms)
        try:
            remaining_ms = round((deadline - engine.now()) * 1000)
            await self.send(marked, remaining_ms, queue, selector, arg)
            return await self._requests.reply(correlation_id, deadline)
        finally:
            self._requests.end(correlation_id)

    async def reply(self, request: MessageExt, body: bytes, timeout_ms: int = 3000) -> SendResult:
        """Answer a consumed request, through its broker group. Raises as `send`; SendOutcomeUnknown
        also if the requester is gone, InvalidMessage if the message requests no reply."""
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        message = reply_message(request, body)
        queue = MessageQueue(message.topic, request.broker_name, 0)
        if not self._group_known(queue):
            await self._publication_by(request.topic, deadline)
        item = self._outgoing(message, SEND_REPLY_MESSAGE_V2)
        return await self._submit(item, queue, True, deadline)

    async def recall(self, topic: str, recall_handle: str, timeout_ms: int = 3000) -> str:
        """Cancel the delivery of a delayed message (`SendResult.recall_handle`); return its id.
        Raises InvalidMessage; BrokerRefused (604, its time is reached, or nearly);
        BrokerUnreachable, with the delivery unknown."""
        try:
            handle = RecallHandle.decode(recall_handle)
        except ValueError as error:
            raise InvalidMessage(f"no recall handle: {error}") from error
        ext = {"producerGroup": self.group, "topic": topic, "recallHandle": recall_handle}
        instance, code = self._instance, RequestCode.RECALL_MESSAGE
        deadline = self._running().now() + timeout_ms / 1000
        if not self._group_known(MessageQueue(topic, handle.broker_name, 0)):
            await self._publication_by(topic, deadline)
        response = await instance.invoke_leader(
            handle.broker_name,
            lambda: RemotingCommand.request(code, ext),
            timeout_ms,
            deadline_s=deadline,
        )
        return (successful(response, handle.broker_name).ext or {}).get("msgId", "")

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's write queues. Raises NoRoute, NameServerUnreachable."""
        return (await self._publication(topic)).queues

    # ---- inside

    def _running(self) -> SendEngine:
        if self._engine is None or not self._instance.running:
            raise ClientClosed
        return self._engine

    def _key_of(self, message: Message) -> str:
        if self._keys is None:
            raise ClientClosed
        return message.unique_key or self._keys.next()

    def _heartbeat(self) -> Mapping[str, Any]:
        return {"producerDataSet": [{"groupName": self.group}]}

    def _handlers(self) -> Mapping[int, Handler]:
        """Return the handlers of requests that brokers may send to this producer."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.pushed}

    def _outgoing(
        self, message: Message, code: int = SEND_MESSAGE_V2, sys_flag: int = 0, suffix: str = ""
    ) -> OutgoingSend:
        born_ms = message.born_timestamp_ms
        if born_ms is None:
            born_ms = int(time.time() * 1000)
        elif not 0 <= born_ms <= BORN_MS_MAX:
            raise InvalidMessage(f"born_timestamp_ms {born_ms} is not in [0, {BORN_MS_MAX}]")
        return outgoing(
            message,
            self._key_of(message),
            born_ms,
            compression=self.config.compression,
            code=code,
            sys_flag=sys_flag,
            suffix=suffix if code == SEND_REPLY_MESSAGE_V2 else self._suffix + suffix,
        )

    async def _send_item(
        self, item: OutgoingSend, topic: str, queue: MessageQueue | None, deadline: float
    ) -> SendResult:
        fixed = queue is not None
        if fixed:
            _check_target(topic, queue)
        if queue is None or not self._group_known(queue):
            publication = await self._publication_by(topic, deadline)
            queue = queue or self._choose(publication)
        elif self._publication_if_known(topic) is None:
            await self._publication_by(topic, deadline)
        return await self._submit(item, queue, fixed, deadline)

    async def _announce(self, names: set[str], deadline: float) -> None:
        """Wait until the leaders of these groups have answered a heartbeat, or failed to, but not
        beyond `deadline`. The followers got a heartbeat as new replicas."""
        instance = self._instance
        targets = {instance.directory.group(name).target for name in names - self._announced}
        timeout_ms = instance.config.heartbeat_timeout_ms
        beats = [
            instance.spawn(instance.beat(address, timeout_ms), f"heartbeat {address}")
            for address in targets
            if address is not None
        ]
        if beats:
            await asyncio.wait(beats, timeout=deadline - self._running().now())
        self._announced |= names

    async def _submit(
        self, item: OutgoingSend, queue: MessageQueue, fixed: bool, deadline: float
    ) -> SendResult:
        engine = self._running()
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        pending = Pending(item, queue, fixed, deadline, settling(future))
        while True:
            try:
                engine.admit(pending)
                break
            except TooManyInFlight:
                remaining = deadline - engine.now()
                if remaining <= 0:
                    raise
                try:
                    async with asyncio.timeout(remaining):
                        await engine.wait_for_capacity()
                except TimeoutError:
                    continue  # `admit` then raises TooManyInFlight again
        now = engine.now()
        if not engine.expire(pending, now):
            engine.submit(pending, now)
        return await future

    def _choose(self, publication: Publication) -> MessageQueue:
        """Choose a queue round robin, without groups in trouble if possible."""
        engine = self._running()
        fault = engine.fault
        if publication.single_group or fault.quiet:
            return publication.next()
        now_ms = engine.now() * 1000
        fit = publication.next_fit(lambda name: fault.available(name, now_ms))
        return fit or publication.next()

    def _alternative(self, pending: Pending) -> MessageQueue | None:
        """Return a queue of a different, healthy group for a failed send, or None. Also None for an
        idempotent send that its own group may have stored, since only that group would recognise
        it."""
        if self.config.idempotent and pending.unknown:
            return None
        publication = self._publications.get(pending.queue.topic)
        engine = self._engine
        if publication is None or publication.single_group or engine is None:
            return None
        failed = pending.queue.broker_name
        now_ms = engine.now() * 1000
        fault = engine.fault
        is_open = engine.is_open
        return publication.next_fit(
            lambda name: name != failed and is_open(name) and fault.available(name, now_ms)
        )

    def _group_known(self, queue: MessageQueue) -> bool:
        return bool(self._instance.directory.group(queue.broker_name).addresses)

    def _publication_if_known(self, topic: str) -> Publication | None:
        """Return the publication if it is known without a request; follow changes of the route."""
        publication = self._publications.get(topic)
        route = self._instance.directory.route_if_known(topic)
        if publication is not None and (
            route is publication.route or (route is None and publication.provisional)
        ):
            return publication
        if route is None:
            self._publications.pop(topic, None)  # the topic was deleted
            return None
        queues = route.write_queues(topic)
        if not queues:
            return None
        return remember(self._publications, topic, Publication(queues, route))

    async def _publication(self, topic: str) -> Publication:
        known = self._publication_if_known(topic)
        if known is not None and not known.provisional:
            return known
        directory = self._instance.directory
        try:
            await directory.refresh(topic)
        except NoRoute:
            if known is not None:
                return known
            template = await directory.refresh(AUTO_CREATE_TOPIC)
            return self._provisional(topic, template)
        publication = self._publication_if_known(topic)
        if publication is None:
            raise NoRoute(topic, "it has no queue that may be written")
        return publication

    def _provisional(self, topic: str, template: TopicRouteData) -> Publication:
        """Return the queues of the topic after its creation by the first send."""
        queues = [
            MessageQueue(topic, data.broker_name, number)
            for data in template.queues
            if data.perm & PERM_INHERIT
            for number in range(min(AUTO_CREATE_QUEUES, data.write_count))
        ]
        if not queues:
            raise NoRoute(topic, "it does not exist and no broker creates topics by itself")
        return remember(self._publications, topic, Publication(queues, template, provisional=True))

    def _check_created(self, topic: str) -> None:
        """Refresh the route of a topic that the first send creates."""
        now = self._running().now()
        if now - self._checked_at >= PROVISIONAL_CHECK_S:
            self._checked_at = now
            self._instance.directory.refresh_soon(topic)

    async def _publication_by(
        self, topic: str, deadline: float, note: Callable[[str], None] | None = None
    ) -> Publication:
        """Return the publication, with requests until `deadline`. Raises SendFailed,
        InvalidMessage. `note` gets the reason after each failed attempt."""
        known = self._publication_if_known(topic)
        if known is not None and not known.provisional:
            return known
        _check_target(topic, None)
        reason = "no name server answered in time"
        try:
            async with asyncio.timeout_at(deadline):
                async for attempt in ROUTE_SEARCH.while_retriable():
                    with attempt:
                        try:
                            return await self._publication(topic)
                        except (NoRoute, NameServerUnreachable, RemotingError) as error:
                            reason = error.message if isinstance(error, ClientError) else str(error)
                            if note is not None:
                                note(reason)
                            raise
        except (TimeoutError, RemotingError):
            pass  # the reason is raised below
        raise SendFailed(CODE_NO_ROUTE, f"topic {topic!r}: {reason}")

    def _hold_unrouted(self, topic: str, pending: Pending) -> None:
        """Keep a send until the route is known; a single task asks for all sends of the topic."""
        unrouted = self._running().unrouted
        unrouted.add(topic, pending)
        if topic not in self._searched:
            self._searched.add(topic)
            self._instance.spawn(self._route_unrouted(topic, unrouted), f"route for {topic}")

    async def _route_unrouted(self, topic: str, unrouted: UnroutedSends) -> None:
        """Ask for the route until it is known, or until no send of the topic waits."""
        try:
            while (latest := unrouted.latest(topic)) is not None:
                try:
                    note = partial(unrouted.note, topic)
                    publication = await self._publication_by(topic, latest, note)
                except SendFailed as failure:
                    for pending in unrouted.take(topic, latest):
                        self._running().finish(pending, None, failure)
                else:
                    self._submit_unrouted(unrouted.take(topic), publication)
        finally:
            self._searched.discard(topic)

    def _submit_unrouted(self, sends: Sequence[Pending], publication: Publication) -> None:
        engine = self._running()
        for pending in sends:
            if not pending.fixed:
                pending.queue = self._choose(publication)
            if not engine.expire(pending, engine.now()):
                engine.submit(pending)


def _check_target(topic: str, queue: MessageQueue | None) -> None:
    """Reject a send that no broker would store as such. Raises InvalidMessage."""
    if queue is not None and queue.topic != topic:
        raise InvalidMessage(f"the message is of topic {topic!r}, its queue of {queue.topic!r}")
    if queue is not None and not isinstance(queue.queue_id, int):
        raise InvalidMessage(f"a queue's id is a number, not {queue.queue_id!r}")
    if queue is not None and not isinstance(queue.broker_name, str):
        raise InvalidMessage(f"a queue's broker group is a text, not {queue.broker_name!r}")
    if not isinstance(topic, str):
        raise InvalidMessage(f"the topic is a text, not {type(topic).__name__}")
    problem = topic_name_problem(topic)
    if problem:
        raise InvalidMessage(problem)
    if topic in NO_SEND_TOPICS:
        raise InvalidMessage(f"only brokers send to topic {topic!r}")
