"""Sends ordered by key and listens as a group, with every operation written down.

`KeyedSender` sends items through a producer, those of an order key strictly in turn (each is
invoked after the previous outcome), of different keys up to `window` at once. It has no task,
future or timer per message. In a closed loop the next item is sent as soon as there is room. In an
open loop (`rate_per_s`) each item is due at its time. It waits while the window is full or its key
is busy, and its latency counts from its due time (`due_ns`), to within PACE_S. At most
BACKLOG_PER_WINDOW times the window wait; further due items are shed, that is, recorded as failed
and never tried.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from raftmq.client import (
    ClientError,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
)
from raftmq.client.consumer.consume_service import Listener
from raftmq.client.instance import local_address
from raftmq.client.message import process_unique_keys
from raftmq.store.properties import fields_sum, java_string_hash

from ..checks.ledger import OffsetCounts
from ..history.events import Outcome
from ..history.files import HistoryWriter
from .base import Tally, is_set_within, outcome_of
from .load import WINDOW_MAX

BACKLOG_PER_WINDOW = 16  # items that wait for a slot or a busy key, per slot of the window
PACE_S = 0.002  # how often an open loop looks at the clock
# unanswered commits remembered; an answer to an older commit is recorded alone
COMMITS_OPEN_MAX = 10_000

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Item:
    """A message to send. With `order` "" it is unordered."""

    topic: str
    body: bytes
    key: str
    order: str
    tag: str = ""
    properties: dict[str, str] = field(default_factory=dict)


class Sends(Protocol):
    """The part of a Producer that sends."""

    def send_nowait(
        self,
        message: Message,
        callback: Callable[[SendResult | None, ClientError | None], None],
        timeout_ms: int,
        queue: MessageQueue,
    ) -> object:
        """Start a send; `callback` is called once with its outcome. Raises ClientError."""
        ...


Arrival = tuple[Item, int]  # an item, and when it was due by the history's clock (ns)


class KeyedSender:
    """Sends items in the order of their keys. One run per object."""

    def __init__(
        self,
        producer: Sends,
        history: HistoryWriter,
        process: str,
        queues: Sequence[MessageQueue],
        *,
        window: int = 256,
        timeout_ms: int = 30_000,
        rate_per_s: float | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
        once: bool = False,
        follows: bool = False,
    ) -> None:
        """`queues` must be the topic's final queues, because an order key keeps its queue for good,
        unless it `follows` the route (`use`). Then the order of a key holds in each queue. `once`
        marks an idempotent producer for the checks."""
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window must be 1 to {WINDOW_MAX}, not {window}")
        if not queues:
            raise ValueError("no queue to send to")
        self.tally = Tally()
        self._producer = producer
        self._history = history
        self._process = process
        self._queues = tuple(queues)
        self._follows = follows
        self._window = window
        self._backlog_max = window * BACKLOG_PER_WINDOW
        self._timeout_ms = timeout_ms
        self._rate_per_s = rate_per_s
        self._on_outcome = on_outcome
        self._more = {"once": True} if once else {}
        self._ids = process_unique_keys(local_address())
        self._items: Iterator[Item] | None = None
        self._busy: dict[str, deque[Arrival]] = {}  # keys in use → items waiting for them
        self._ready: deque[Arrival] = deque()  # each holds its key and waits for a slot
        self._backlog = 0  # waiting, of both kinds
        self._sequence: dict[str, int] = {}
        self._in_flight = 0
        self._turn = 0
        self._exhausted = False
        self._held = False
        self._done = asyncio.Event()
        self._failure: Exception | None = None

    async def run(self, items: Iterable[Item]) -> Tally:
        """Send all items, or those up to `stop`; return once all are decided."""
        assert self._items is None, "a sender runs once"
        self._items = iter(items)
        if self._rate_per_s is None:
            self._fill()
            await self._done.wait()
        else:
            await self._pace(self._rate_per_s)
        if self._failure is not None:
            raise self._failure
        assert self._in_flight == 0
        assert self._backlog == 0
        return self.tally

    def use(self, queues: Sequence[MessageQueue]) -> None:
        """Send to these queues from now on."""
        assert self._follows, "the queues are final"
        self._queues = tuple(queues)

    def stop(self) -> None:
        """Read no more items; `run` returns once those read are decided."""
        self._items = iter(())
        self._held = False
        if self._rate_per_s is None:
            self._fill()

    def hold(self) -> None:
        """Read no items until `go_on`; read items are sent. An open loop's clock stops."""
        self._held = True

    def go_on(self) -> None:
        """Read items again; harmless if it was not held."""
        self._held = False
        if self._rate_per_s is None and not self._exhausted:
            self._fill()

    async def _pace(self, rate_per_s: float) -> None:
        looked_ns = start_ns = time.monotonic_ns()
        number = 0
        while not self._done.is_set():
            now_ns = time.monotonic_ns()
            if self._held:
                start_ns += now_ns - looked_ns
            looked_ns = now_ns
            due_count = int((now_ns - start_ns) * rate_per_s / NS_PER_S) + 1
            while number < due_count and self._reads():
                self._arrive(start_ns + int(number * NS_PER_S / rate_per_s))
                number += 1
            await is_set_within(self._done, PACE_S)

    def _arrive(self, due_ns: int) -> None:
        """Process the next due item of an open loop."""
        item = self._next_item()
        if item is None:
            return
        if self._backlog >= self._backlog_max:
            self._shed(item, due_ns)
        else:
            self._take(item, due_ns)

    def _fill(self) -> None:
        """Start items of a closed loop while there is room and something to send."""
        while (
            self._in_flight < self._window and self._backlog < self._backlog_max and self._reads()
        ):
            item = self._next_item()
            if item is None:
                return
            self._take(item, 0)

    def _reads(self) -> bool:
        """Return whether more items are wanted now."""
        return self._failure is None and not self._exhausted and not self._held

    def _next_item(self) -> Item | None:
        assert self._items is not None
        item = next(self._items, None)
        if item is None:
            self._exhausted = True
            self._end_if_over()
        return item

    def _take(self, item: Item, due_ns: int) -> None:
        """Send it now, or let it wait for its key or for a slot."""
        order = item.order
        if order:
            waiting = self._busy.get(order)
            if waiting is not None:
                waiting.append((item, due_ns))
                self._backlog += 1
                return
            self._busy[order] = deque()
        if self._in_flight < self._window:
            self._start(item, due_ns)
        else:
            self._ready.append((item, due_ns))
            self._backlog += 1

    def _invoke(
        self, item: Item, due_ns: int, queue: MessageQueue | None = None
    ) -> tuple[int, str, int]:
        """Record the start of a send; return its operation number, message id and born time."""
        order = item.order
        if order and queue is not None and self._follows:
            order = f"{order}@{queue.broker_name}-{queue.queue_id}"
        sequence = self._sequence.get(order, 0) if order else 0
        if order:
            self._sequence[order] = sequence + 1
        op = self._history.next_op()
        unique_key = self._ids.next()
        born_ms = time.time_ns() // 1_000_000
        self.tally.invoked += 1
        due = {"due_ns": due_ns} if due_ns else {}
        named = (("KEYS", item.key), ("TAGS", item.tag))
        given = {name: text for name, text in named if text} | item.properties
        self._history.event(
            "invoke",
            "send",
            self._process,
            op,
            id=unique_key,
            topic=item.topic,
            key=item.key,
            order=order,
            seq=sequence,
            crc=zlib.crc32(item.body) & 0x7FFFFFFF,
            fields=fields_sum(0, given),
            born=born_ms,
            **due,
            **self._more,
        )
        return op, unique_key, born_ms

    def _shed(self, item: Item, due_ns: int) -> None:
        op, _, _ = self._invoke(item, due_ns)
        self.tally.shed += 1
        reason = f"not sent: {self._backlog} sends were waiting already"
        self._history.event("fail", "send", self._process, op, error=reason, attempts=0, shed=True)
        if self._on_outcome is not None:
            self._on_outcome(Outcome.FAIL)

    def _start(self, item: Item, due_ns: int) -> None:
        order = item.order
        if order:
            queue = self._queues[java_string_hash(order) % len(self._queues)]
        else:
            self._turn += 1
            queue = self._queues[self._turn % len(self._queues)]
        op, unique_key, born_ms = self._invoke(item, due_ns, queue)
        message = Message(
            item.topic, item.body, item.tag or None, item.key, item.properties,
            unique_key=unique_key, born_timestamp_ms=born_ms,
        )  # fmt: skip
        self._in_flight += 1
        try:
            self._producer.send_nowait(
                message, partial(self._decided, op, order), self._timeout_ms, queue
            )
        except ClientError as error:  # refused before anything was sent
            self._in_flight -= 1
            self.tally.fail += 1
            self._history.event("fail", "send", self._process, op, error=str(error), attempts=0)
            self._fail(error)

    def _decided(
        self, op: int, order: str, result: SendResult | None, error: ClientError | None
    ) -> None:
        self._in_flight -= 1
        outcome = self._record(op, result, error)
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        if self._failure is not None:
            return
        if order:
            waiting = self._busy[order]
            if waiting:
                self._ready.append(waiting.popleft())
            else:
                del self._busy[order]
        while self._ready and self._in_flight < self._window and self._failure is None:
            self._backlog -= 1
            self._start(*self._ready.popleft())
        if self._rate_per_s is None and not self._exhausted:
            self._fill()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._exhausted and self._in_flight == 0 and self._backlog == 0:
            self._done.set()

    def _record(self, op: int, result: SendResult | None, error: ClientError | None) -> Outcome:
        if result is not None:
            self.tally.ok += 1
            less = {}
            if result.status is not SendStatus.OK:  # stored, but with less than was promised
                self.tally.weak += 1
                less = {"status": result.status.name}
            self._history.event(
                "ok",
                "send",
                self._process,
                op,
                broker=result.queue.broker_name,
                queue=result.queue.queue_id,
                offset=result.queue_offset,
                msg_id=result.offset_msg_id,
                attempts=result.attempts,
                **less,
            )
            return Outcome.OK
        assert error is not None
        outcome = outcome_of(error)
        self.tally.count(outcome)
        attempts = getattr(error, "attempts", 0)
        self._history.event(
            outcome.value, "send", self._process, op, error=str(error), attempts=attempts
        )
        return outcome

    def _fail(self, error: Exception) -> None:
        """End the run with an error of the client itself, a bug of the harness."""
        self._failure = error
        self._busy.clear()
        self._ready.clear()
        self._backlog = 0
        self._done.set()


class Consumption:
    """Records and counts, by position, the messages that a group's consumers accepted.

    `orderly`: the consumers promise the order of each queue, and checks hold them to it.
    """

    def __init__(self, history: HistoryWriter, group: str = "", *, orderly: bool = False) -> None:
        self.deliveries = 0
        self._history = history
        self._more: dict[str, str | bool] = {"group": group} if group else {}
        if orderly:
            self._more["orderly"] = True
        self._seen: dict[tuple[str, int], OffsetCounts] = defaultdict(OffsetCounts)

    @property
    def distinct(self) -> int:
        """Number of positions consumed at least once."""
        return sum(counts.distinct for counts in self._seen.values())

    def listener(self, process: str) -> Listener:
        """Return a listener for the consumer called `process`; it accepts everything."""

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            self.accept(process, messages)
            return ConsumeResult.SUCCESS

        return listen

    def accept(self, process: str, messages: list[MessageExt]) -> None:
        """Record that `process` is done with these messages, and count them."""
        first = messages[0]
        offsets = [message.queue_offset for message in messages]
        self._history.record(
            "consume",
            process,
            topic=first.topic,
            broker=first.broker_name,
            queue=first.queue_id,
            offsets=offsets,
            ids=[message.msg_id for message in messages],
            **self._more,
        )
        counts = self._seen[first.broker_name, first.queue_id]
        for offset in offsets:
            counts.add(offset)
        self.deliveries += len(offsets)


class Commits:
    """Records each request and answer of a group's commits."""

    def __init__(self, history: HistoryWriter) -> None:
        self._history = history
        self._open: dict[tuple[str, MessageQueue, int], int] = {}  # unanswered → op

    def committing(self, process: str, group: str) -> Callable[[MessageQueue, int], None]:
        """Return a PushConsumer's `on_committing` for the consumer called `process`."""

        def start(queue: MessageQueue, offset: int) -> None:
            op = self._history.next_op()
            self._open[process, queue, offset] = op
            if len(self._open) > COMMITS_OPEN_MAX:
                del self._open[next(iter(self._open))]
            self._commit("invoke", process, group, op, queue, offset)

        return start

    def committer(self, process: str, group: str) -> Callable[[MessageQueue, int], None]:
        """Return a PushConsumer's `on_commit` for the consumer called `process`."""

        def committed(queue: MessageQueue, offset: int) -> None:
            op = self._open.pop((process, queue, offset), None) or self._history.next_op()
            self._commit("ok", process, group, op, queue, offset)

        return committed

    def _commit(
        self, kind: str, process: str, group: str, op: int, queue: MessageQueue, offset: int
    ) -> None:
        self._history.event(
            kind,
            "commit",
            process,
            op,
            topic=queue.topic,
            group=group,
            broker=queue.broker_name,
            queue=queue.queue_id,
            offset=offset,
        )


def random_items(
    topic: str, process: str, key_count: int, body_bytes: int, rng: random.Random
) -> Iterator[Item]:
    """Yield endless items over `key_count` order keys of this process alone."""
    number = 0
    while True:
        order = f"{process}-{rng.randrange(key_count)}"
        head = f"{process}-{number}|".encode()
        body = head + rng.randbytes(max(0, body_bytes - len(head)))
        yield Item(topic, body, f"{process}-{number}", order, "chaos", {"__SHARDINGKEY": order})
        number += 1
