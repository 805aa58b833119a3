"""The simple consumer, which receives messages by pop and acknowledges each individually.

    async with SimpleConsumer("billing", "127.0.0.1:9876") as consumer:
        await consumer.subscribe("orders")
        for message in await consumer.receive(invisible_ms=30_000):
            ...
            await consumer.ack([message])

The broker distributes a topic's messages among the group's consumers (pop) without an allocation of
queues. A slow message therefore delays no other message, and consumers may join and leave at any
time. A received message is invisible for the rest of the group until its time ends. Unacknowledged
messages are then redelivered with a higher `reconsume_times`, and finally become dead letters.
Works with our brokers and Apache's from 5.0 on.

`LatePops` keeps the pops of cancelled callers, because nobody else could get their messages before
the invisible time ends. A later call takes over such a pop if it asks for as many messages and
enough of their invisible time is left. The number is limited per broker group; the messages of
further pops are redelivered after their invisible time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.names import pop_retry_topic
from raftmq.remoting.pop_headers import (
    COUNT_MAX,
    FIRST_POP_TIME,
    INIT_MAX,
    INIT_MIN,
    POP_CK,
    AckHeader,
    BatchAck,
    ChangeHeader,
    ChangeResponseHeader,
    Handle,
    PopHeader,
    PopResponseHeader,
    by_queue,
    kind_of,
    popped_handle,
)
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..errors import BrokerRefused, BrokerUnreachable, ClientClosed, ClientError, NoRoute
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from ..message import MessageExt, MessageModel
from ..subscription import ALL, Subscription, consumer_heartbeat, subscribe, tag_of
from .offsets import ConsumeFrom

LATE_MAX = 4  # kept per target, each with up to 32 messages
LEFT_SHARE = 0.75  # of the invisible time that a kept pop has left for a later call
Target = tuple[str, str]  # topic, broker group


@dataclass(frozen=True, slots=True)
class Answer:
    """The messages of a pop, or its error, and their arrival `at_s` (loop time)."""

    result: list[MessageExt] | ClientError
    at_s: float


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop started at `started_s` (loop time), and its task."""

    target: Target
    subscription: Subscription
    count_max: int
    invisible_ms: int
    started_s: float
    wait_ms: int
    task: asyncio.Task[Answer]

    @property
    def answer(self) -> Answer | None:
        """Return its answer; None if there is none yet, or a stop cancelled it."""
        return self.task.result() if self.task.done() and not self.task.cancelled() else None

    @property
    def owed(self) -> bool:
        """Return whether its answer is missing or was an error."""
        return self.answer is None or isinstance(self.answer.result, ClientError)

    def left_s(self, now_s: float) -> float:
        """Return how long its messages, if any, stay invisible. They were popped before the answer
        arrived, and before its wait was over."""
        if self.answer is None:
            return 0.0 if self.task.done() else self.invisible_ms / 1000
        if isinstance(self.answer.result, ClientError) or not self.answer.result:
            return 0.0
        popped_s = min(self.answer.at_s, self.started_s + self.wait_ms / 1000)
        return max(0.0, popped_s + self.invisible_ms / 1000 - now_s)

    def serves(self, count_max: int, invisible_ms: int, now_s: float) -> bool:
        """Return whether its messages fit a call, with most of the requested time left."""
        result = None if self.answer is None else self.answer.result
        count = len(result) if isinstance(result, list) else self.count_max
        return count <= count_max and self.left_s(now_s) >= LEFT_SHARE * invisible_ms / 1000

    def silence(self, now_s: float) -> list[MessageExt] | ClientError:
        """Return the error of a broker group with an overdue answer; [] before that."""
        if now_s < self.started_s + self.wait_ms / 1000:
            return []
        broker = self.target[1]
        return BrokerUnreachable(f"{broker} did not answer in time", outcome_unknown=True)


class LatePops:
    """Pops without a caller by target, the oldest first."""

    def __init__(self) -> None:
        self._pops: dict[Target, list[Pop]] = {}

    def keep(self, pop: Pop, now_s: float) -> None:
        kept = self._usable(pop.target, pop.subscription, now_s)
        if len(kept) < LATE_MAX and pop.left_s(now_s):
            self._pops[pop.target] = [*kept, pop]

    def take(
        self,
        target: Target,
        subscription: Subscription,
        count_max: int,
        invisible_ms: int,
        now_s: float,
    ) -> Pop | None:
        """Remove and return a pop that serves such a call. Drop pops that can serve no call, or
        with a different expression, since the broker filters their messages again."""
        kept = self._usable(target, subscription, now_s)
        match = next((pop for pop in kept if pop.serves(count_max, invisible_ms, now_s)), None)
        self._pops[target] = [pop for pop in kept if pop is not match]
        return match

    def owed(self, target: Target) -> bool:
        """Return whether a pop there still waits for its answer, or ended with an error. False when
        no further pop would be kept."""
        pops = self._pops.get(target, [])
        return len(pops) < LATE_MAX and any(pop.owed for pop in pops)

    def answered(
        self, targets: Sequence[Target], count_max: int, invisible_ms: int, now_s: float
    ) -> Target | None:
        """Return a target with a kept answer that serves such a call."""
        for target in targets:
            for pop in self._pops.get(target, []):
                if not pop.owed and pop.serves(count_max, invisible_ms, now_s):
                    return target
        return None

    def unanswered(self) -> set[asyncio.Task[Answer]]:
        """Return the tasks of kept pops that still wait for their answers."""
        pops = (pop for kept in self._pops.values() for pop in kept)
        return {pop.task for pop in pops if not pop.task.done()}

    def forget(self, topic: str) -> None:
        for target in [target for target in self._pops if target[0] == topic]:
            del self._pops[target]

    def clear(self) -> None:
        self._pops.clear()

    def _usable(self, target: Target, subscription: Subscription, now_s: float) -> list[Pop]:
        return [
            pop
            for pop in self._pops.get(target, [])
            if pop.left_s(now_s) and pop.subscription.selects_as(subscription)
        ]


INVISIBLE_MS = 60_000
AWAIT_MS = 20_000
SLICE_MS = 1_000  # wait per broker of several, before the next is asked
ROUND_MS_MIN = 100  # between rounds of pops; a broker may answer an empty pop at once
ANSWER_GRACE_MS = 3_000
NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


class SimpleConsumer:
    """A simple consumer. Methods raise ClientError; several may run concurrently."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        """`consume_from` is the start of a new group, FIRST_OFFSET or LAST_OFFSET."""
        self.group = group
        self._instance = ClientInstance(namesrv, instance_config)
        self._consume_from = consume_from
        self._subscriptions: dict[str, Subscription] = {}
        self._turn = 0
        self._late = LatePops()

    __aenter__, __aexit__ = entered, left

    @property
    def client_id(self) -> str:
        """Return this consumer's id on brokers; empty before the first start."""
        return self._instance.client_id

    async def start(self) -> None:
        """Start, without waiting for a server. Raises TlsError."""
        await self._instance.start(self._heartbeat)

    async def stop(self) -> None:
        """Unregister at the brokers and close every connection. Unacknowledged messages are
        redelivered after their time."""
        await self._instance.leave(None, self.group)
        self._late.clear()

    async def subscribe(
        self, topic: str, expression: str = ALL, expression_type: str = "TAG"
    ) -> None:
        """Receive a topic's messages selected by an expression (tags `a || b`, or SQL92)."""
        version = int(time.time() * 1000)
        self._subscriptions[topic] = subscribe(topic, expression, version, expression_type)
        await self._instance.directory.route(topic)
        await self._instance.heartbeat_all()

    def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)
        self._late.forget(topic)

    # ---- receiving ------------------------------------------------------------------------

    async def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        await_ms: int = AWAIT_MS,
    ) -> list[MessageExt]:
        """Return up to `count_max` messages (32 at most) of a topic as soon as there are any; []
        after `await_ms`. They are invisible for `invisible_ms`.

        Silent broker groups are skipped while others answer. If none does, this raises within 3 s
        more. Messages of a pop with a late answer or a cancelled caller are returned by a later
        call that asks for as many messages with the same expression, while most of its
        `invisible_ms` is left. At most 4 such pops are kept per topic and broker group; further
        messages are redelivered after their invisible time."""
        if not self._subscriptions:
            raise ClientError(-1, "subscribe to a topic first")
        now = asyncio.get_running_loop().time
        end_s = now() + await_ms / 1000
        pop = partial(self._pop_within, count_max, invisible_ms)
        while True:
            next_s = now() + ROUND_MS_MIN / 1000
            targets = await self._targets()
            alone = len(targets) == 1
            failures: dict[Target, ClientError] = {}
            unasked = [] if alone else list(targets)
            while unasked:
                late = self._late.answered(targets, count_max, invisible_ms, now())
                target = unasked.pop(0) if late is None else late
                rest_s = max(0.0, end_s + ANSWER_GRACE_MS / 1000 - now())
                patience_s = 0.0 if self._late.owed(target) else min(SLICE_MS / 1000, rest_s)
                result = await pop(target, 0, patience_s)
                if isinstance(result, ClientError):
                    failures[target] = result
                elif result:
                    return result
            left_ms = max(0, int(1000 * (end_s - now())))
            fit = [target for target in targets if target not in failures] or targets
            if fit and (alone or left_ms):
                wait_ms = left_ms if alone else min(left_ms, SLICE_MS)
                grace_ms = ANSWER_GRACE_MS if alone else SLICE_MS
                result = await pop(fit[0], wait_ms, (wait_ms + grace_ms) / 1000)
                if isinstance(result, ClientError):
                    failures[fit[0]] = result
                elif result:
                    return result
            elif left_ms:
                await asyncio.sleep(min(left_ms, SLICE_MS) / 1000)  # no route yet
            if int(1000 * (end_s - now())) <= 0:
                if failures and len(failures) == len(targets):
                    raise failures.popitem()[1]
                return []
            await asyncio.sleep(min(next_s, end_s) - now())

    async def _targets(self) -> list[Target]:
        """Return the topics' broker groups, with a rotating start. Raises NoRoute without any."""
        targets: list[Target] = []
        absent: NoRoute | None = None
        for topic in sorted(self._subscriptions):
            try:
                route = await self._instance.directory.route(topic)
            except NoRoute as error:
                absent = error
                continue
            names = {queue.broker_name for queue in route.read_queues(topic)}
            targets += [(topic, name) for name in sorted(names)]
        if absent is not None and not targets:
            raise absent
        self._turn += 1
        at = self._turn % len(targets) if targets else 0
        return targets[at:] + targets[:at]

    async def _pop_within(
        self, count_max: int, invisible_ms: int, target: Target, wait_ms: int, patience_s: float
    ) -> list[MessageExt] | ClientError:
        """Pop at a broker group, or continue a pop that an earlier call left there. Returns the
        error if the group cannot be asked now, or owes an answer after `patience_s`; the pop
        continues then, as after a cancellation. It also continues once a different kept pop is
        answered. Raises errors that every group would return."""
        now = asyncio.get_running_loop().time
        subscription = self._subscriptions.get(target[0])
        if subscription is None:
            self._late.forget(target[0])  # it was just unsubscribed
            return []
        pop = self._late.take(target, subscription, count_max, invisible_ms, now())
        others = self._late.unanswered()
        if pop is not None:
            patience_s = min(patience_s, wait_ms / 1000)
        else:
            request = partial(self._pop, target, subscription, count_max, invisible_ms, wait_ms)
            task = self._instance.spawn(_answer_of(request), f"pop {target}")
            pop = Pop(target, subscription, count_max, invisible_ms, now(), wait_ms, task)
        try:
            await asyncio.wait(
                {pop.task, *others}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
        except BaseException:
            self._late.keep(pop, now())  # also a finished pop, since nobody else has its messages
            raise
        if not pop.task.done():
            self._late.keep(pop, now())
            return [] if any(task.done() for task in others) else pop.silence(now())
        if pop.answer is None:
            raise ClientClosed("the client was stopped before the call ended", outcome_unknown=True)
        result = pop.answer.result
        if isinstance(result, ClientError) and not result.retriable:
            raise result
        return result

    async def _pop(
        self,
        target: Target,
        subscription: Subscription,
        count_max: int,
        invisible_ms: int,
        wait_ms: int,
    ) -> list[MessageExt]:
        topic, broker = target
        now = asyncio.get_running_loop().time
        deadline_s = now() + (wait_ms + ANSWER_GRACE_MS) / 1000
        first = self._consume_from is ConsumeFrom.FIRST_OFFSET
        header = PopHeader(
            self.group,
            topic,
            -1,
            count_max,
            invisible_ms,
            wait_ms,
            int(time.time() * 1000),
            INIT_MIN if first else INIT_MAX,
            subscription.expression_type,
            subscription.expression,
        )
        answer = await self._ask_to_pop(broker, header, deadline_s)
        if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            await self._instance.heartbeat_all(deadline_s - now())  # creates the group, if allowed
            answer = await self._ask_to_pop(broker, header, deadline_s)
        if answer.code in NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark or "", broker)
        try:
            messages = popped(answer, broker, topic)
        except (ValueError, KeyError, HeaderError, RecordError) as error:
            raise BrokerRefused(answer.code, f"not understood: {error}", broker) from error
        requested = subscription.subscribed_tags()
        if requested is None:
            return messages
        # Brokers compare hashes of tags only.
        others = [one for one in messages if tag_of(one.properties_raw) not in requested]
        if others:
            await self.ack(others)
        return [one for one in messages if tag_of(one.properties_raw) in requested]

    # ---- acknowledging --------------------------------------------------------------------

    async def ack(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Acknowledge processed messages. Returns those that were redelivered after their time.
        Raises ClientError if a broker cannot be asked; then call it again."""
        by_broker: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_broker.setdefault(message.broker_name, []).append(message)
        lots = [self._ack_at(broker, lot) for broker, lot in by_broker.items()]
        return [one for gone in await asyncio.gather(*lots) for one in gone]

    async def _ack_at(self, broker: str, messages: list[MessageExt]) -> list[MessageExt]:
        if len(messages) > 1:
            # By the common fields of messages popped together, and the popped topic.
            bits: dict[tuple[BatchAck, str], int] = {}
            for message in messages:
                handle = _handle(message)
                topic = _stored_topic(message, handle, self.group)
                where = BatchAck(self.group, topic, handle.queue_id, *handle[:4], bits=0)
                key = where, message.topic
                bits[key] = bits.get(key, 0) | 1 << (handle.offset - handle.start)
            acks = [where._replace(bits=mask).to_json(t) for (where, t), mask in bits.items()]
            body = dumps({"brokerName": broker, "acks": acks})
            answer = await self._ask(broker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
            if answer.code == ResponseCode.SUCCESS:
                return []
        # Individually, to find the redelivered messages, or because the broker has no batches. The
        # broker commits them together.
        acked = await asyncio.gather(*(self._ack_one(broker, message) for message in messages))
        return [message for message, done in zip(messages, acked, strict=True) if not done]

    async def _ack_one(self, broker: str, message: MessageExt) -> bool:
        """Return False if the message was redelivered."""
        handle = _handle(message)
        header = AckHeader(
            self.group,
            _stored_topic(message, handle, self.group),
            handle.queue_id,
            handle.encode(),
            handle.offset,
        )
        answer = await self._ask(broker, RequestCode.ACK_MESSAGE, header.to_ext())
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE):
            raise BrokerRefused(answer.code, answer.remark or "", broker)
        return answer.code == ResponseCode.SUCCESS

    async def change_invisible(self, message: MessageExt, invisible_ms: int) -> bool:
        """Let a message be redelivered `invisible_ms` from now instead, earlier or later; until
        then it can be acknowledged. Returns False if it was redelivered already."""
        handle = _handle(message)
        header = ChangeHeader(
            self.group,
            _stored_topic(message, handle, self.group),
            handle.queue_id,
            handle.encode(),
            handle.offset,
            invisible_ms,
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await self._ask(message.broker_name, code, header.to_ext())
        if answer.code == ResponseCode.NO_MESSAGE:
            return False
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark or "", message.broker_name)
        response = ChangeResponseHeader.parse(answer.ext)
        start = handle.start if handle.order else handle.offset
        changed = handle._replace(
            start=start,
            pop_ms=response.pop_ms,
            invisible_ms=response.invisible_ms,
            revive_queue=response.revive_queue,
        )
        message.properties[POP_CK] = changed.encode()
        return True

    # ---- inside ---------------------------------------------------------------------------

    async def _ask(
        self, broker: str, code: RequestCode, ext: Mapping[str, str], body: bytes = b""
    ) -> RemotingCommand:
        """Ask a group's leader, through a failover. Every request may be repeated: messages of a
        pop with a lost answer are redelivered, and the other requests are idempotent."""
        return await self._instance.invoke_leader(
            broker, lambda: RemotingCommand.request(code, dict(ext), body), again=_is_passing
        )

    async def _ask_to_pop(
        self, broker: str, header: PopHeader, deadline_s: float
    ) -> RemotingCommand:
        """Do as `_ask`. A repeated pop waits only for the rest of the time."""
        now = asyncio.get_running_loop().time

        def command() -> RemotingCommand:
            left_ms = max(0, round((deadline_s - now()) * 1000) - ANSWER_GRACE_MS)
            ext = header._replace(poll_ms=left_ms).to_ext()
            return RemotingCommand.request(RequestCode.POP_MESSAGE, ext)

        return await self._instance.invoke_leader(
            broker,
            command,
            header.poll_ms + ANSWER_GRACE_MS,
            again=_is_passing,
            deadline_s=deadline_s,
        )

    def _heartbeat(self) -> Mapping[str, Any]:
        return consumer_heartbeat(
            self.group,
            "CONSUME_POP",
            MessageModel.CLUSTERING.value,
            self._consume_from.value,
            self._subscriptions.values(),
        )


async def _answer_of(pop: Callable[[], Awaitable[list[MessageExt]]]) -> Answer:
    result: list[MessageExt] | ClientError
    try:
        result = await pop()
    except ClientError as error:
        result = error
    except Exception as error:  # kept like an answer, and reported once
        result = ClientError(-1, repr(error))
    return Answer(result, asyncio.get_running_loop().time())


def popped(answer: RemotingCommand, broker: str, topic: str) -> list[MessageExt]:
    """Return the messages in a pop's answer, each with its handle as the property POP_CK. Raises
    HeaderError, RecordError, KeyError."""
    head = PopResponseHeader.parse(answer.ext)
    starts = by_queue(head.starts)
    messages = decode_messages(answer.body, broker)
    for message in messages:
        properties = message.properties
        if popped_handle(properties, head, message.queue_id, message.queue_offset) is None:
            (start,) = starts[kind_of(message.topic), message.queue_id]
            properties[POP_CK] = Handle(
                start,
                head.pop_ms,
                head.invisible_ms,
                head.revive_queue,
                kind_of(message.topic) == "1",
                broker,
                message.queue_id,
                message.queue_offset,
            ).encode()
        properties.setdefault(FIRST_POP_TIME, str(head.pop_ms))
        message.topic = topic
    return messages


def _is_passing(answer: RemotingCommand) -> bool:
    """Return whether a broker reports an unknown outcome, or that it is busy."""
    unknown = BrokerRefused(answer.code, answer.remark or "", "").outcome_unknown
    return unknown or answer.code == ResponseCode.SYSTEM_BUSY


def _handle(message: MessageExt) -> Handle:
    """Return a message's handle. Raises ClientError for a message that was not popped."""
    try:
        handle = Handle.decode(message.properties.get(POP_CK, ""))
    except HeaderError as error:
        raise ClientError(-1, f"{message!r} has no handle: {error}") from error
    return handle if handle.offset >= 0 else handle._replace(offset=message.queue_offset)


def _stored_topic(message: MessageExt, handle: Handle, group: str) -> str:
    return pop_retry_topic(message.topic, group) if handle.retry else message.topic
