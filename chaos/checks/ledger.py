"""The state of every message of a history, updated record by record.

One `Ledger` serves all checks of messages (chaos.checks.messages, chaos.checks.order). Suspicious
messages are in small collections of their own, so a check is cheap at any time. A sent message
takes about 0.5 KB of memory, less if it was acknowledged and consumed normally. A queue offset
takes a byte. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..history.events import Consume, Drain, HistoryError, Kind, Outcome, Position, Send
from .verdict import Handlers, at

MARK_EVERY_NS = 50_000_000  # resolution at which a queue's consumption progress is remembered

Clash = tuple[Position, str, str]  # two ids at one position, in the order of arrival


class OffsetCounts:
    """Counts by offset, with one byte per offset up to the highest."""

    __slots__ = ("_dense", "_far", "distinct")

    def __init__(self) -> None:
        self._dense = bytearray()
        self._far: dict[int, int] = {}
        self.distinct = 0  # offsets seen at least once

    def add(self, offset: int) -> int:
        """Increment a count; return the count before, at most TIMES_MAX."""
        dense = self._dense
        if offset >= len(dense):
            if offset - len(dense) > DENSE_GAP_MAX or offset in self._far:
                before = self._far.get(offset, 0)
                self._far[offset] = min(before + 1, TIMES_MAX)
                self.distinct += not before
                return before
            dense.extend(bytes(max(offset + 1 - len(dense), len(dense), 1024)))
        before = dense[offset] or self._far.pop(offset, 0)
        if before < TIMES_MAX:
            dense[offset] = before + 1
        if not before:
            self.distinct += 1
        return before

    def __contains__(self, offset: int) -> bool:
        return (offset < len(self._dense) and self._dense[offset] > 0) or offset in self._far


@dataclass(slots=True, eq=False)
class Queue:
    """A queue of one broker group, as producers and consumers observed it."""

    broker: str
    topic: str
    queue: int
    holder: dict[int, str] = field(default_factory=dict)  # offset → id acknowledged or consumed
    outstanding: dict[str, Send] = field(default_factory=dict)  # acknowledged, not yet consumed
    highest: int = -1  # offset consumed
    highest_ns: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)  # (when, highest), oldest first
    passed: int = -1  # highest offset consumed at the last settled moment asked for
    times: OffsetCounts = field(default_factory=OffsetCounts)  # deliveries by offset

    def position(self, offset: int) -> Position:
        return (self.broker, self.topic, self.queue, offset)

    def delivered(self, offset: int) -> bool:
        """Return whether this position was consumed."""
        return offset in self.times

    def rise(self, t_ns: int, offset: int) -> None:
        """Note that consumption got as far as `offset`."""
        if offset <= self.highest:
            return
        if not self.marks or t_ns - self.marks[-1][0] >= MARK_EVERY_NS:
            self.marks.append((self.highest_ns, self.highest))
        self.highest, self.highest_ns = offset, t_ns

    def passed_at(self, t_ns: int) -> int:
        """Return the highest offset consumed by `t_ns`, which never falls between calls."""
        if self.highest_ns <= t_ns:
            self.marks.clear()
            self.passed = self.highest
        while self.marks and self.marks[0][0] <= t_ns:
            self.passed = max(self.passed, self.marks.popleft()[1])
        return self.passed


class Entry:
    """A message. `position` is the position of its acknowledgement, or else of its first
    delivery."""

    __slots__ = (
        "acked",
        "at_ack",
        "attempts",
        "before",
        "deliveries",
        "more",
        "offset",
        "once",
        "order",
        "outcome",
        "promised",
        "queue",
        "send",
        "seq",
    )

    def __init__(self, send: Send) -> None:
        self.send: Send | None = send  # kept while a check may have to name it
        self.outcome = Outcome.OPEN
        self.promised = False
        self.acked = False
        self.at_ack = False  # delivered where it was acknowledged
        self.attempts = 0  # stored at most so often
        self.once = send.once  # sent idempotently, so stored once
        self.queue: Queue | None = None
        self.offset = -1
        self.more: set[tuple[Queue, int]] | None = None  # further copies
        self.deliveries = 0
        self.order = send.order
        self.seq = send.seq
        self.before: Entry | None = None  # the previous acknowledged message of its order key

    def copies(self) -> list[Position]:
        """Return every position at which it is known to lie, sorted."""
        if self.queue is None:
            return []
        result = [self.queue.position(self.offset)]
        if self.more:
            result += [queue.position(offset) for queue, offset in self.more]
        return sorted(result)

    def seen(self) -> list[Position]:
        """Return `copies` without the acknowledged place if only the answer names it."""
        result = self.copies()
        if self.acked and not self.at_ack and self.queue is not None:
            result.remove(self.queue.position(self.offset))
        return result

    def first(self) -> Position:
        assert self.queue is not None
        return self.copies()[0] if self.more else self.queue.position(self.offset)


class Ledger:
    """All messages of a run, fed by `invoked`, `decided`, `consumed` and `drained`.

    `entries` has every message sent, by id, and `phantoms` the reason for which an id should not
    have been consumed. `twice_acked` and `clashes` are positions of two messages, as ordered sets.
    `misplaced` messages were acknowledged at one position, and delivered only at a different
    position. `multiple` messages were delivered at several positions.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.queues: dict[tuple[str, str, int], Queue] = {}
        self.phantoms: dict[str, str] = {}
        self.twice_acked: dict[Clash, None] = {}
        self.clashes: dict[Clash, None] = {}
        self.misplaced: dict[str, Entry] = {}
        self.multiple: dict[str, Entry] = {}
        self.weak: dict[str, Send] = {}  # stored with less than was promised, not yet consumed
        self.drains: dict[str, int] = {}  # topic → when it was last drained completely
        self.now_ns = 0
        self.acknowledged = 0
        self.weakly_acknowledged = 0
        self.deliveries = 0
        self.named_deliveries = 0  # with the message's id
        self.redeliveries = 0
        self.once = 0  # sent idempotently
        self.once_again = 0  # of these, sent several times
        self.open = 0  # not decided yet
        self.vague = 0  # decided as unknown
        self.vague_delivered = 0
        self.open_delivered = 0

    @property
    def applies(self) -> bool:
        return bool(self.entries) or self.deliveries > 0

    def handlers(self) -> Handlers:
        return {
            Kind.SEND_INVOKED: self.invoked,
            Kind.SEND_DECIDED: self.decided,
            Kind.CONSUMED: self.consumed,
            Kind.DRAINED: self.drained,
        }

    def queue(self, broker: str, topic: str, queue: int) -> Queue:
        key = (broker, topic, queue)
        result = self.queues.get(key)
        if result is None:
            result = self.queues[key] = Queue(broker, topic, queue)
        return result

    def invoked(self, send: Send) -> None:
        if send.id in self.entries:
            raise HistoryError(f"two sends have the id {send.id}")
        self.entries[send.id] = Entry(send)
        self.open += 1
        self.once += send.once
        self.now_ns = send.invoked_ns

    def decided(self, send: Send) -> None:
        self.now_ns = send.done_ns
        self.open -= 1
        entry = self.entries[send.id]
        entry.outcome = outcome = send.outcome
        entry.attempts = min(send.attempts, 1) if send.once else send.attempts
        self.once_again += send.once and send.attempts > 1
        if outcome is Outcome.OK:
            self._acknowledged(send, entry)
            return
        if outcome is Outcome.UNKNOWN:
            self.vague += 1
        if entry.deliveries:
            self.open_delivered -= 1
            if outcome is Outcome.UNKNOWN:
                self.vague_delivered += 1
            else:
                self.phantoms[send.id] = "its send had failed for certain"
            entry.send = None
        elif outcome is Outcome.FAIL:
            entry.send = None

    def _acknowledged(self, send: Send, entry: Entry) -> None:
        queue = self.queue(send.broker, send.topic, send.queue)
        offset, name = send.offset, send.id
        entry.acked = True
        if entry.queue is None:
            entry.queue, entry.offset = queue, offset
        elif entry.queue is not queue or entry.offset != offset:
            self._copy(name, entry, entry.queue, entry.offset)
            entry.queue, entry.offset = queue, offset
            if entry.more is not None and (queue, offset) in entry.more:
                entry.more.discard((queue, offset))
                entry.at_ack = True
            else:
                self.misplaced[name] = entry
        else:
            entry.at_ack = True
        if not send.promised:
            self.weakly_acknowledged += 1
            if entry.deliveries:
                self.open_delivered -= 1
                entry.send = None
            else:
                self.weak[name] = send
            return
        entry.promised = True
        self.acknowledged += 1
        other = queue.holder.get(offset)
        if other is None:
            queue.holder[offset] = name
            if queue.delivered(offset) and not entry.deliveries:  # consumed, its id not recorded
                entry.deliveries += 1
                entry.at_ack = True
                self.open_delivered += 1
        elif other != name:
            holder = self.entries.get(other)
            both = holder is not None and holder.promised and holder.queue is queue
            both = both and holder is not None and holder.offset == offset
            clashes = self.twice_acked if both else self.clashes
            clashes[queue.position(offset), other, name] = None
        if entry.deliveries:
            self.open_delivered -= 1
            entry.send = None
        else:
            queue.outstanding[name] = send

    def consumed(self, batch: Consume) -> None:
        queue = self.queue(batch.broker, batch.topic, batch.queue)
        offsets, names = batch.offsets, batch.ids
        self.now_ns = batch.t_ns
        if not offsets:
            return
        self.deliveries += len(offsets)
        self.named_deliveries += len(names)
        deliver = queue.times.add
        holder = queue.holder
        for offset in offsets:
            if deliver(offset):
                self.redeliveries += 1
        queue.rise(batch.t_ns, max(offsets))
        if len(names) < len(offsets):
            self._unnamed(queue, offsets[len(names) :])
        entries = self.entries
        for offset, name in zip(offsets, names, strict=False):
            other = holder.get(offset)
            if other is None:
                holder[offset] = name
            elif other != name:
                self.clashes[queue.position(offset), other, name] = None
            entry = entries.get(name)
            if entry is None:
                self._ghost(name, queue, offset, "nobody sent it")
                continue
            if entry.queue is queue and entry.offset == offset:
                if entry.acked and not entry.at_ack:
                    entry.at_ack = True
                    self.misplaced.pop(name, None)
            else:
                self._elsewhere(name, entry, queue, offset)
            entry.deliveries += 1
            if entry.deliveries == 1:
                self._first_delivery(name, entry, queue, offset)

    def drained(self, drain: Drain) -> None:
        self.now_ns = max(self.now_ns, drain.t_ns)
        if drain.complete:
            self.drains[drain.topic] = drain.t_ns

    def _first_delivery(self, name: str, entry: Entry, queue: Queue, offset: int) -> None:
        send = entry.send
        if send is not None and send.topic != queue.topic:
            self._ghost(name, queue, offset, f"it was sent to {send.topic}")
        outcome = entry.outcome
        if outcome is Outcome.OPEN:
            self.open_delivered += 1
            return  # whether it must be named is decided with its outcome
        entry.send = None
        if outcome is Outcome.OK:
            assert send is not None
            if entry.promised:
                assert entry.queue is not None
                queue_ledger = self.queue(send.broker, send.topic, send.queue)
                queue_ledger.outstanding.pop(name, None)
            else:
                self.weak.pop(name, None)
        elif outcome is Outcome.UNKNOWN:
            self.vague_delivered += 1
        else:
            self._ghost(name, queue, offset, "its send had failed for certain")

    def _elsewhere(self, name: str, entry: Entry, queue: Queue, offset: int) -> None:
        """Record a delivery at a third position."""
        if entry.queue is None:
            entry.queue, entry.offset = queue, offset
            return
        self._copy(name, entry, queue, offset)
        if entry.acked and not entry.at_ack:
            self.misplaced[name] = entry

    def _copy(self, name: str, entry: Entry, queue: Queue, offset: int) -> None:
        if entry.more is None:
            entry.more = set()
        entry.more.add((queue, offset))
        self.multiple[name] = entry

    def _unnamed(self, queue: Queue, offsets: Iterable[int]) -> None:
        """Count positions consumed without an id for the message that was acknowledged there."""
        for offset in offsets:
            name = queue.holder.get(offset)
            entry = self.entries.get(name) if name is not None else None
            if name is None or entry is None:
                continue
            entry.deliveries += 1
            if entry.deliveries == 1:
                entry.at_ack = True
                self.misplaced.pop(name, None)
                self._first_delivery(name, entry, queue, offset)

    def _ghost(self, name: str, queue: Queue, offset: int, why: str) -> None:
        if name not in self.phantoms:
            self.phantoms[name] = f"at {at(queue.position(offset))}: {why}"


DENSE_GAP_MAX = 1 << 24  # an offset farther ahead is kept apart; 16 MB are acceptable
TIMES_MAX = 255  # counted up to here
