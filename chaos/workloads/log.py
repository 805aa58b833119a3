"""The log workload: sends ordered by key and consumption by a group, every operation written down.

`KeyedSender` sends items through one producer: of one order key strictly one after another (the
next is invoked after the outcome of the one before), of different keys up to `window` at once. No
task, future or timer per message. Closed loop: the next is sent as soon as there is room. Open loop
(`rate_per_s`): at its time, whatever became of the others, as long as the window has room.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from chaos.history.events import Outcome
from chaos.history.files import HistoryWriter
from client import (
    ClientError,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    SendResult,
)
from client.instance import local_address
from client.message import process_unique_keys
from store.properties import java_string_hash

WINDOW_MAX = 16_384  # well below the producer's own bound on sends in flight
BACKLOG_PER_WINDOW = 16  # items read ahead of busy keys: so many times the window
PACE_S = 0.002  # how often an open loop looks at the clock


@dataclass(frozen=True, slots=True)
class Item:
    """One message to send. `order` "": it is in no order with anything."""

    topic: str
    body: bytes
    key: str
    order: str
    tag: str = ""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Outcomes so far."""

    invoked: int = 0
    ok: int = 0
    fail: int = 0
    unknown: int = 0

    @property
    def decided(self) -> int:
        return self.ok + self.fail + self.unknown


class KeyedSender:
    """See the module. One run per object."""

    def __init__(
        self,
        producer: Producer,
        history: HistoryWriter,
        process: str,
        queues: Sequence[MessageQueue],
        *,
        window: int = 256,
        timeout_ms: int = 30_000,
        rate_per_s: float | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        """`queues` must be the topic's final queues: an order key keeps its queue for good."""
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window must be 1 to {WINDOW_MAX}, not {window}")
        if not queues:
            raise ValueError("no queue to send to")
        self.tally = Tally()
        self._producer = producer
        self._history = history
        self._process = process
        self._queues = tuple(queues)
        self._window = window
        self._timeout_ms = timeout_ms
        self._rate_per_s = rate_per_s
        self._on_outcome = on_outcome
        self._ids = process_unique_keys(local_address())
        self._items: Iterator[Item] | None = None
        self._busy: dict[str, deque[Item]] = {}  # keys in flight → what waits behind them
        self._backlog = 0
        self._sequence: dict[str, int] = {}
        self._in_flight = 0
        self._turn = 0
        self._allowance = 0  # open loop: how many may have been started by now
        self._done = asyncio.Event()
        self._failure: Exception | None = None

    async def run(self, items: Iterable[Item]) -> Tally:
        """Send all items, or those up to `stop`; return once every one of them is decided."""
        assert self._items is None, "a sender runs once"
        self._items = iter(items)
        if self._rate_per_s is None:
            self._fill()
            await self._done.wait()
        else:
            await self._pace(self._rate_per_s)
        if self._failure is not None:
            raise self._failure
        assert self._in_flight == 0 and self._backlog == 0
        return self.tally

    def stop(self) -> None:
        """Read no more items; `run` returns when what was read is decided."""
        self._items = iter(())
        if self._rate_per_s is None:
            self._fill()

    async def _pace(self, rate_per_s: float) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not self._done.is_set():
            self._allowance = int((loop.time() - begin_s) * rate_per_s) + 1
            self._fill()
            try:
                async with asyncio.timeout(PACE_S):
                    await self._done.wait()
            except TimeoutError:
                pass  # time to look at the clock again

    def _fill(self) -> None:
        """Start items while there is room, time and something to send."""
        assert self._items is not None
        while (
            self._in_flight < self._window
            and self._backlog < self._window * BACKLOG_PER_WINDOW
            and self._failure is None
        ):
            if self._rate_per_s is not None:
                if self.tally.invoked + self._backlog >= self._allowance:
                    return
            item = next(self._items, None)
            if item is None:
                break
            waiting = self._busy.get(item.order) if item.order else None
            if waiting is not None:
                waiting.append(item)
                self._backlog += 1
                continue
            if item.order:
                self._busy[item.order] = deque()
            self._start(item)
        else:
            return
        if self._in_flight == 0 and self._backlog == 0:
            self._done.set()

    def _start(self, item: Item) -> None:
        order = item.order
        sequence = self._sequence.get(order, 0) if order else 0
        if order:
            self._sequence[order] = sequence + 1
            queue = self._queues[java_string_hash(order) % len(self._queues)]
        else:
            self._turn += 1
            queue = self._queues[self._turn % len(self._queues)]
        op = self._history.next_op()
        unique_key = self._ids.next()
        message = Message(
            item.topic, item.body, item.tag or None, item.key, item.properties,
            unique_key=unique_key,
        )  # fmt: skip
        self.tally.invoked += 1
        self._in_flight += 1
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
        )
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
        if order and self._failure is None:
            waiting = self._busy[order]
            if waiting:
                self._backlog -= 1
                self._start(waiting.popleft())
            else:
                del self._busy[order]
        self._fill()

    def _record(self, op: int, result: SendResult | None, error: ClientError | None) -> Outcome:
        if result is not None:
            self.tally.ok += 1
            self._history.event(
                "ok",
                "send",
                self._process,
                op,
                queue=result.queue.queue_id,
                offset=result.queue_offset,
                msg_id=result.offset_msg_id,
                attempts=result.attempts,
            )
            return Outcome.OK
        assert error is not None
        outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAIL
        if outcome is Outcome.UNKNOWN:
            self.tally.unknown += 1
        else:
            self.tally.fail += 1
        attempts = getattr(error, "attempts", 0)
        self._history.event(
            outcome.value, "send", self._process, op, error=str(error), attempts=attempts
        )
        return outcome

    def _fail(self, error: Exception) -> None:
        """A send that the client itself refuses is the harness's mistake: end the run with it."""
        self._failure = error
        self._busy.clear()
        self._backlog = 0
        self._done.set()


class Consumption:
    """What a group's consumers accepted: written down, and counted by distinct position."""

    def __init__(self, history: HistoryWriter) -> None:
        self.deliveries = 0
        self._history = history
        self._seen: set[tuple[int, int]] = set()

    @property
    def distinct(self) -> int:
        """Positions consumed at least once."""
        return len(self._seen)

    def listener(self, process: str) -> Callable[[list[MessageExt]], ConsumeResult]:
        """A listener for the consumer called `process`; accepts everything."""

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            queue = messages[0].queue_id
            offsets = [message.queue_offset for message in messages]
            self._history.event(
                "ok",
                "consume",
                process,
                self._history.next_op(),
                topic=messages[0].topic,
                queue=queue,
                offsets=offsets,
                ids=[message.msg_id for message in messages],
            )
            self._seen.update((queue, offset) for offset in offsets)
            self.deliveries += len(offsets)
            return ConsumeResult.SUCCESS

        return listen

    def committer(self, process: str, group: str) -> Callable[[MessageQueue, int], None]:
        """A PushConsumer's `on_commit` for the consumer called `process`."""

        def committed(queue: MessageQueue, offset: int) -> None:
            self._history.event(
                "ok",
                "commit",
                process,
                self._history.next_op(),
                topic=queue.topic,
                group=group,
                queue=queue.queue_id,
                offset=offset,
            )

        return committed


def random_items(
    topic: str, process: str, key_count: int, body_bytes: int, rng: random.Random
) -> Iterator[Item]:
    """Endless items over `key_count` order keys of this process alone."""
    number = 0
    while True:
        order = f"{process}-{rng.randrange(key_count)}"
        head = f"{process}-{number}|".encode()
        body = head + rng.randbytes(max(0, body_bytes - len(head)))
        yield Item(topic, body, f"{process}-{number}", order, "chaos", {"__SHARDINGKEY": order})
        number += 1
