"""The producer's engine, with pending sends, a `LeaderSender` per broker group, retries and
time-outs.

An attempt costs no task, future or timer. A sweep every `sweep_interval_ms` checks only old
attempts and unrouted sends (client.producer.pending_send). It ends overdue sends, repeats attempts
unanswered for `attempt_timeout_ms`, and refreshes the route when a leader has been silent for
`silence_ms` (a frozen leader keeps its connections open without any other sign). If a new leader is
known by then, it waits only half of that for a last answer. A merely slow leader answers heartbeats
(client.producer.fault_tolerance); its sends are not repeated, because they would be stored twice. A
send is never rewritten to a connection that is still open, because it has arrived there, or will.

Limits: `in_flight_max` undecided sends and `in_flight_bytes_max` of their bodies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError

from ..compression import Compression
from ..errors import (
    CODE_TIMEOUT,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    SendFailed,
    TooManyInFlight,
)
from ..instance import ClientInstance
from ..message import MessageQueue, SendResult, SendStatus
from ..route import ReplicaGroup
from .channel import Channel, StoredAnswer
from .fault_tolerance import SLOW_ASIDE_MS, FaultAvoidance, Liveness
from .leader_sender import LeaderSender
from .pending_send import STORED, Pending, UnroutedSends, Verdict, judge
from .send_frame import SEND_REPLY_MESSAGE_V2, ZLIB, Template, template_for

logger = logging.getLogger(__name__)

SWEEP_FROM_S = 0.1  # the sweep skips younger attempts, so time-outs can be this late
SLOW_MS = SLOW_ASIDE_MS[0][0]  # below this, an answer needs no entry in the fault table


@dataclass(frozen=True, slots=True)
class SendConfig:
    """A producer's settings, with times in milliseconds. An attempt unanswered for
    `attempt_timeout_ms` is repeated if its broker does not answer heartbeats either; while it does,
    and leads, the attempt waits. `scout_timeout_ms` is the same during a leader search. With
    `retry_unknown` False an attempt with an unknown outcome ends the send instead of a repetition,
    so nothing is ever stored twice. With `idempotent` every message has the property
    IDEMPOTENT=true, by which supporting brokers store a repeated message once. An attempt with an
    unknown outcome is then repeated only in its own group, and batches are rejected."""

    attempt_timeout_ms: int = 1000
    scout_timeout_ms: int = 300
    silence_ms: int = 300
    sweep_interval_ms: int = 25
    connect_timeout_ms: int = 250
    busy_pause_ms: int = 20  # doubles per attempt, up to busy_pause_ms_max
    busy_pause_ms_max: int = 300
    in_flight_max: int = 65_536
    in_flight_bytes_max: int = 48 * 1024 * 1024  # below the connection's limit of unsent bytes
    retry_unknown: bool = True
    idempotent: bool = False
    compression: Compression = ZLIB


class SendEngine:
    """Runs a producer's sends to their end. `alternative(pending)` returns a new queue for a send
    that may go elsewhere, or None; the producer decides this, because it has the routes."""

    def __init__(
        self,
        instance: ClientInstance,
        producer_group: str,
        config: SendConfig,
        alternative: Callable[[Pending], MessageQueue | None],
    ) -> None:
        self.config = config
        self.fault = FaultAvoidance()
        self.unrouted = UnroutedSends()
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.stopped = False
        self._instance = instance
        self._producer_group = producer_group
        self._alternative = alternative
        self._senders: dict[str, LeaderSender] = {}
        self._channels: dict[str, Channel] = {}
        # By group, topic and code, because three look-ups are cheaper than a tuple as the key.
        self._templates: dict[str, dict[str, dict[int, Template]]] = {}
        self._capacity: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._route_requested_at = 0.0
        self._liveness = Liveness(instance.beat, instance.spawn, self.now)

    def start(self) -> None:
        """Follow the leaders, and sweep until the instance stops."""
        self._instance.directory.watch_leaders(self._leader_changed)
        self._instance.spawn(self._sweep(), "send sweep")

    # ---- admission

    def admit(self, pending: Pending) -> None:
        """Count a send. Raises TooManyInFlight at the limits, ClientClosed after stop."""
        if self.stopped:
            raise ClientClosed
        size = len(pending.item.body)
        if self.in_flight >= self.config.in_flight_max:
            raise TooManyInFlight(f"{self.in_flight} sends are in flight")
        if self.in_flight and self.in_flight_bytes + size > self.config.in_flight_bytes_max:
            raise TooManyInFlight(f"{self.in_flight_bytes} bytes are in flight")
        self.in_flight += 1
        self.in_flight_bytes += size

    async def wait_for_capacity(self) -> None:
        """Wait until some send in flight is decided."""
        if self._capacity is None or self._capacity.done():
            self._capacity = self._loop.create_future()
        await asyncio.shield(self._capacity)

    def submit(self, pending: Pending, now: float | None = None) -> None:
        """Make the first attempt of an admitted send. `now` is the value of `now()`, if known."""
        sender = self._senders.get(pending.queue.broker_name)
        if sender is not None and sender.channel is not None:
            self.write(pending, sender.channel, now)  # as the leader sender would, saving two calls
        else:
            self.sender(pending.queue.broker_name).submit(pending)

    def sender(self, broker_name: str) -> LeaderSender:
        sender = self._senders.get(broker_name)
        if sender is None:
            group = self._instance.directory.group(broker_name)
            sender = LeaderSender(group, self, self.now, self.config.scout_timeout_ms)
            self._senders[broker_name] = sender
        return sender

    def is_open(self, broker_name: str) -> bool:
        """Return whether the group's leader is known and connected."""
        sender = self._senders.get(broker_name)
        return sender is not None and sender.open

    def stop(self) -> None:
        self.stopped = True
        for pending in self.unrouted.take_all():
            self.finish(pending, None, pending.error())
        for sender in self._senders.values():
            waiting, sender.waiting = list(sender.waiting), type(sender.waiting)()
            for pending in waiting:
                self.finish(pending, None, pending.error())
        for channel in list(self._channels.values()):
            for pending in list(channel.outstanding.values()):
                self.finish(pending, None, pending.error())
            channel.outstanding.clear()

    # ---- callbacks of the leader senders

    async def open_channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            return channel
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000):
                connection = await self._instance.remoting.connect(address)
        except (RemotingError, TimeoutError) as error:
            raise BrokerUnreachable(f"{address}: {error or 'no connection in time'}") from error
        channel = self._channels.get(address)
        if channel is None or not channel.is_open:
            channel = Channel(address, connection, self._answered, self._lost, self._stored_plainly)
            self._channels[address] = channel
        return channel

    def write(self, pending: Pending, channel: Channel, now: float | None = None) -> None:
        if pending.earlier is not None and self._resumed(pending, channel):
            return
        topic, broker_name, queue_id = pending.queue
        item = pending.item
        opaque = channel.next_opaque()
        try:
            try:
                template = self._templates[broker_name][topic][item.code]
            except KeyError:
                template = self._new_template(topic, broker_name, item.code)
            frame = template.frame(item, queue_id, opaque)
        except Exception as error:
            # The caller may be writing further sends. End it in a later call, as below.
            code, reason = ResponseCode.MESSAGE_ILLEGAL, f"cannot be encoded: {error!r}"
            failure = SendFailed(code, reason, pending.attempts, False)
            self._loop.call_soon(self.finish, pending, None, failure)
            return
        pending.channel = channel
        pending.opaque = opaque
        pending.attempts += 1
        pending.sent_at = self.now() if now is None else now
        channel.outstanding[opaque] = pending
        if not channel.write(frame):
            # It has just closed, and its close callback has not run yet. Handle this in a later
            # call, because the caller is amid its own bookkeeping.
            channel.forget(opaque)
            pending.attempts -= 1
            pending.failed_attempt(pending.code, f"{channel.address} closed", False)
            self._loop.call_soon(self._unwritten, channel, pending)

    def _resumed(self, pending: Pending, channel: Channel) -> bool:
        """Resume an earlier unanswered attempt over this connection, if any; return whether there
        was such an attempt. It has arrived, or will, so a second would be stored again."""
        assert pending.earlier is not None
        for number, (earlier, opaque) in enumerate(pending.earlier):
            if earlier is channel and opaque in channel.outstanding:
                del pending.earlier[number]
                pending.channel = channel
                pending.opaque = opaque
                pending.sent_at = self.now()
                channel.outstanding[opaque] = channel.outstanding.pop(opaque)  # oldest first
                return True
        return False

    def _new_template(self, topic: str, broker_name: str, code: int) -> Template:
        credentials = self._instance.config.credentials
        template = template_for(credentials, self._producer_group, topic, broker_name, code)
        self._templates.setdefault(broker_name, {}).setdefault(topic, {})[code] = template
        return template

    def expire(self, pending: Pending, now: float) -> bool:
        if not pending.done and pending.deadline <= now:
            self.finish(pending, None, pending.error())
        return pending.done

    def doubt(self, group: ReplicaGroup, address: str, hint: str | None) -> None:
        self.fault.failed(group.name, self.now() * 1000)
        if self._instance.running:
            self._instance.directory.doubt(group, address, hint)

    def accepted(self, group: ReplicaGroup, address: str) -> None:
        logger.info("leader_found group=%s address=%s", group.name, address)
        self._instance.directory.accepted(group, address)

    def ask_route(self) -> None:
        self._instance.directory.refresh_groups_soon()

    def spawn_search(self, sender: LeaderSender) -> None:
        if not self.stopped:
            self._instance.spawn(sender.search(), f"leader search {sender.group.name}")

    # ---- answers

    def finish(
        self, pending: Pending, result: SendResult | None, error: ClientError | None
    ) -> None:
        """Decide `pending`, once."""
        if pending.done:
            return
        pending.done = True
        self.in_flight -= 1
        self.in_flight_bytes -= len(pending.item.body)
        if pending.channel is not None:
            pending.channel.forget(pending.opaque)
        if pending.earlier is not None:
            for channel, opaque in pending.earlier:
                channel.forget(opaque)
        if pending.scout is not None and not pending.scout.done():
            pending.scout.set_result(False)
        if self._capacity is not None:
            capacity, self._capacity = self._capacity, None
            if not capacity.done():
                capacity.set_result(None)
        try:
            pending.callback(result, error)
        except Exception:
            logger.exception("send_callback_failed")  # the user's error must not stop the rest

    def _stored_plainly(self, channel: Channel, pending: Pending, answer: StoredAnswer) -> bool:
        """Do as `_answered`, faster, for a send with a successful first attempt that is not a
        probe. Returns False, with nothing changed, for the rest."""
        item = pending.item
        if (
            pending.done
            or pending.channel is not channel
            or pending.earlier is not None
            or pending.scout is not None
            or self._capacity is not None
            or item.code == SEND_REPLY_MESSAGE_V2
        ):
            return False
        stored, queue = answer.position, pending.queue
        if stored.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, stored.queue_id)
        now = self.now()
        latency_ms = (now - pending.sent_at) * 1000
        if latency_ms >= SLOW_MS or not self.fault.quiet:
            self.fault.answered(queue.broker_name, latency_ms, now * 1000)
        del channel.outstanding[answer.opaque]
        pending.done = True
        self.in_flight -= 1
        self.in_flight_bytes -= len(item.body)
        result = SendResult(
            SendStatus.OK,
            item.unique_key,
            stored.message_id,
            queue,
            stored.queue_offset,
            pending.attempts,
            stored.recall_handle,
        )
        try:
            pending.callback(result, None)
        except Exception:
            logger.exception("send_callback_failed")  # the user's error must not stop the rest
        return True

    def _answered(
        self, channel: Channel, pending: Pending, code: int, remark: str, ext: dict[str, str]
    ) -> None:
        if pending.done:
            return
        if code in STORED:
            self._stored(channel, pending, code, ext)
            return
        if pending.channel is not channel:
            return  # a late refusal of an abandoned attempt
        verdict = judge(code, remark, ext)
        unknown = verdict is Verdict.UNKNOWN
        pending.failed_attempt(code, f"{channel.address}: {remark or code}", unknown)
        sender = self.sender(pending.queue.broker_name)
        if verdict is Verdict.NOT_LEADER:
            hint = ext.get("leaderAddr") or None
            if pending.scout is not None:
                sender.waiting.appendleft(pending)
                _settle(pending.scout, False)
            sender.lost(channel, hint)
            if pending.scout is None:
                self._again(sender, [pending])
            return
        _settle(pending.scout, True)
        if verdict is Verdict.REFUSED:
            refused = SendFailed(code, pending.reason, pending.attempts, False)
            self.finish(pending, None, pending.error() if pending.unknown else refused)
        elif unknown and not self.config.retry_unknown:
            self.finish(pending, None, pending.error())
        else:
            self.fault.failed(pending.queue.broker_name, self.now() * 1000)
            self._retry_later(pending)

    def _stored(self, channel: Channel, pending: Pending, code: int, ext: dict[str, str]) -> None:
        if pending.scout is not None:
            _settle(pending.scout, pending.channel is channel)
        queue = pending.queue
        if pending.channel is not channel:
            queue = self._queue_of_late_answer(pending, channel)
        if pending.item.code == SEND_REPLY_MESSAGE_V2:  # forwarded; brokers need not store it
            ext = {"queueId": str(queue.queue_id), "queueOffset": "-1", "msgId": "", **ext}
        try:
            queue_id = int(ext["queueId"])
            queue_offset = int(ext["queueOffset"])
            offset_msg_id = ext["msgId"]
        except (KeyError, ValueError) as error:
            pending.failed_attempt(code, f"{channel.address}: broken answer {error!r}", True)
            self.finish(pending, None, pending.error())
            return
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        latency_ms = (self.now() - pending.sent_at) * 1000
        if latency_ms >= SLOW_MS or not self.fault.quiet:
            self.fault.answered(queue.broker_name, latency_ms, self.now() * 1000)
        key = pending.item.unique_key
        status = STORED[code]
        self.finish(
            pending,
            SendResult(
                status,
                key,
                offset_msg_id,
                queue,
                queue_offset,
                pending.attempts,
                ext.get("recallHandle", ""),
            ),
            None,
        )

    def _queue_of_late_answer(self, pending: Pending, channel: Channel) -> MessageQueue:
        """Return the queue of an abandoned attempt that succeeded after all."""
        for name, sender in self._senders.items():
            if channel.address in sender.group.addresses:
                return pending.queue._replace(broker_name=name)
        return pending.queue

    def _lost(self, channel: Channel, pendings: list[Pending]) -> None:
        """Handle a connection's end; its outstanding sends have an unknown outcome."""
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]
        if self.stopped:
            for pending in pendings:
                self.finish(pending, None, pending.error())
            return
        for sender in self._senders.values():
            if channel.address in sender.group.addresses:
                sender.lost(channel)
        self._give_up(channel, [p for p in pendings if p.channel is channel and not p.done])

    def _unwritten(self, channel: Channel, pending: Pending) -> None:
        sender = self.sender(pending.queue.broker_name)
        sender.lost(channel)
        if pending.done:
            return
        if pending.scout is not None:
            sender.waiting.appendleft(pending)
            _settle(pending.scout, False)
        else:
            self._again(sender, [pending])

    def unanswered(self, pending: Pending, channel: Channel) -> None:
        if not pending.done and pending.channel is channel:
            channel.abandon(pending)
            self._give_up(channel, [pending])

    def probe_liveness(self, channel: Channel, timeout_s: float) -> asyncio.Task[bool]:
        return self._liveness.probe(channel.address, timeout_s)

    def _give_up(self, channel: Channel, pendings: list[Pending]) -> None:
        """Abandon attempts over `channel`, and repeat them."""
        by_sender: dict[str, list[Pending]] = {}
        for pending in pendings:
            pending.failed_attempt(CODE_TIMEOUT, f"{channel.address} did not answer", True)
            if not self.config.retry_unknown:
                self.finish(pending, None, pending.error())
                continue
            if pending.scout is not None:
                self.sender(pending.queue.broker_name).waiting.appendleft(pending)
                _settle(pending.scout, False)
            else:
                by_sender.setdefault(pending.queue.broker_name, []).append(pending)
        for name, items in by_sender.items():
            self._again(self.sender(name), items)

    def _again(self, sender: LeaderSender, pendings: Sequence[Pending]) -> None:
        now = self.now()
        stay = [p for p in pendings if not self.expire(p, now) and not self._elsewhere(p)]
        if stay:
            sender.again(stay)

    def _elsewhere(self, pending: Pending) -> bool:
        """Repeat a send in a different group, if allowed and fit; return whether it was."""
        queue = None if pending.fixed else self._alternative(pending)
        if queue is None:
            return False
        pending.queue = queue
        self.sender(queue.broker_name).submit(pending)
        return True

    def _retry_later(self, pending: Pending) -> None:
        """Repeat a send, elsewhere at once or here after a pause."""
        if self._elsewhere(pending):
            return
        pause_ms = min(
            self.config.busy_pause_ms * 2 ** min(pending.attempts - 1, 8),
            self.config.busy_pause_ms_max,
        )
        when = min(self.now() + pause_ms / 1000, pending.deadline)
        self._loop.call_at(when, self._resume, pending)

    def _resume(self, pending: Pending) -> None:
        if not self.stopped and not self.expire(pending, self.now()):
            self.sender(pending.queue.broker_name).submit(pending)
        elif self.stopped:
            self.finish(pending, None, pending.error())

    def _leader_changed(self, group: ReplicaGroup) -> None:
        sender = self._senders.get(group.name)
        if sender is not None:
            sender.leader_changed()

    # ---- time

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.config.sweep_interval_ms / 1000)
            if self.in_flight:
                self._sweep_once(self.now())

    def _sweep_once(self, now: float) -> None:
        for pending in self.unrouted.overdue(now):
            self.finish(pending, None, pending.error())
        for sender in self._senders.values():
            sender.drop_expired(now)
        current = {sender.channel for sender in self._senders.values()}
        for channel in list(self._channels.values()):
            self._sweep_channel(channel, now, channel in current)

    def _sweep_channel(self, channel: Channel, now: float, current: bool) -> None:
        """Sweep a channel's attempts, oldest first, up to SWEEP_FROM_S."""
        silence = self.config.silence_ms / 1000
        patience = self.config.attempt_timeout_ms / 1000 if current else silence / 2
        overdue: list[Pending] = []
        expired: list[Pending] = []
        silent = False
        for pending in channel.outstanding.values():
            if pending.deadline <= now:
                expired.append(pending)
                continue
            if pending.channel is not channel:
                continue  # abandoned before; kept for a late answer
            age = now - pending.sent_at
            if age < SWEEP_FROM_S:
                break
            silent = silent or age >= silence
            if age >= patience and pending.scout is None:
                overdue.append(pending)
        for pending in expired:
            self.expire(pending, now)
        if silent and current:
            self._liveness.watch(channel.address, silence)
        if overdue and current and self._liveness.alive_within(channel.address, 2 * silence):
            overdue = []  # slow but alive; it will answer, or a new leader will follow
        if silent and now - self._route_requested_at >= 0.1:
            self._route_requested_at = now
            self.ask_route()
        if overdue:
            for pending in overdue:
                channel.abandon(pending)
            logger.warning("sends_unanswered address=%s count=%d", channel.address, len(overdue))
            self._give_up(channel, overdue)


def _settle(scout: asyncio.Future[bool] | None, leads: bool) -> None:
    if scout is not None and not scout.done():
        scout.set_result(leads)
