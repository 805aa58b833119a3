"""Checks of the order of each queue, of each key as stored, and of each key as consumed.

- Order per queue. A message sent after an acknowledgement gets a higher offset than the
  acknowledged message, in the same queue, even if its own outcome was unknown and it was consumed.
  This fails if a broker loses the end of its log. Offsets order a queue's messages, so this is
  linearizability of a log and needs no search.
- Order per key. The first copies of an order key's messages are in a single queue, in the order of
  their sends. A send of unknown outcome is concurrent with later sends, so it is never late.
- Order as consumed. Where consumers promise order, an acknowledged message is first delivered
  before later messages of its key.

A message stored with less than SEND_OK promises may vanish. It must still follow the acknowledged
messages of its queue, and no other order is judged. The checks must be fed after the ledger. Memory
holds one object per key, and one per send of unknown outcome. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from ..history.events import Consume, Kind, Outcome, Position, Send
from .ledger import Entry, Ledger
from .verdict import Check, Handlers, Offenders, at

KEPT_MAX = 65_536  # newest steps that are kept; `before` may return None for older moments


class OrderPerQueue:
    """Checks that the offsets of each queue rise with real time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._vague: dict[str, Send] = {}  # of unknown outcome and not consumed yet
        self._tops: dict[tuple[str, str, int], PrefixMax] = {}
        self._wrong = Offenders()
        self._compared = 0

    def handlers(self) -> Handlers:
        return {Kind.SEND_DECIDED: self._decided, Kind.CONSUMED: self._consumed}

    @property
    def applies(self) -> bool:
        return bool(self._tops)

    def _decided(self, send: Send) -> None:
        if send.outcome is Outcome.UNKNOWN:
            entry = self._ledger.entries[send.id]
            if entry.queue is None:
                self._vague[send.id] = send
            else:  # consumed already
                self._compare(send, entry.queue.position(entry.offset))
        elif send.outcome is Outcome.OK:
            self._compare(send, send.position)
            if not send.promised:
                return
            queue = queue_of(send.position)
            top = self._tops.get(queue)
            if top is None:
                top = self._tops[queue] = PrefixMax()
            top.note(send.done_ns, send.offset)

    def _consumed(self, batch: Consume) -> None:
        if not self._vague:
            return
        for offset, name in zip(batch.offsets, batch.ids, strict=False):
            send = self._vague.pop(name, None)
            if send is not None:
                self._compare(send, (batch.broker, batch.topic, batch.queue, offset))

    def _compare(self, send: Send, position: Position) -> None:
        top = self._tops.get(queue_of(position))
        before = None if top is None else top.before(send.invoked_ns)
        if before is None:
            return
        self._compared += 1
        if position[3] <= before:
            self._wrong.add(f"{send.id} at {at(position)}, sent after {before} was acknowledged")

    def result(self, name: str) -> Check:
        detail = f"{len(self._tops)} queues, {self._compared} sends after another was acknowledged"
        # Without two consecutive sends nothing could be out of order.
        return self._wrong.check(name, detail, len(self._tops))


@dataclass(slots=True)
class _Key:
    """The last acknowledged message of an order key."""

    last: Entry | None = None
    last_done_ns: int = 0
    last_invoked_ns: int = 0


class OrderPerKey:
    """Finds order keys in several queues, or first copies not in the order of sending."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._keys: dict[tuple[str, str], _Key] = {}
        self._suspects: dict[str, Entry] = {}  # id → the later message of a wrong pair
        self._overlaps = Offenders()
        self._compared = 0

    def handlers(self) -> Handlers:
        return {Kind.SEND_DECIDED: self._decided}

    @property
    def applies(self) -> bool:
        return bool(self._keys)

    def _decided(self, send: Send) -> None:
        if not send.order:
            return
        key = self._keys.get((send.topic, send.order))
        if key is None:
            key = self._keys[send.topic, send.order] = _Key()
        if not send.promised:
            return
        entry = self._ledger.entries[send.id]
        previous = key.last
        if previous is not None:
            self._compared += 1
            overlap = key.last_done_ns > send.invoked_ns
            if entry.seq < previous.seq:  # answered after a later send
                overlap = send.done_ns > key.last_invoked_ns
            if overlap:
                self._overlaps.add(
                    f"{send.topic} {send.order}: {max(entry.seq, previous.seq)} was sent before "
                    f"{min(entry.seq, previous.seq)} was answered: the workload itself did not "
                    "keep the order"
                )
                if entry.seq < previous.seq:
                    return
            else:
                entry.before = previous
                if out_of_order(entry):
                    self._suspects[send.id] = entry
        key.last, key.last_done_ns, key.last_invoked_ns = entry, send.done_ns, send.invoked_ns

    def result(self, name: str) -> Check:
        detail = f"{len(self._keys)} keys, {self._compared} neighbours"
        return self._overlaps.and_more(self._wrong()).check(name, detail, len(self._keys))

    def _wrong(self) -> Iterator[str]:
        # A later copy may become the first copy, so pairs with copies are compared again.
        for entry in (self._suspects | self._ledger.multiple).values():
            before = entry.before
            if before is None or not out_of_order(entry):
                continue
            yield (
                f"{entry.first()[1]} {entry.order}: {before.seq} lies at {at(before.first())}, "
                f"{entry.seq} at {at(entry.first())}"
            )


def out_of_order(entry: Entry) -> bool:
    """Return whether the message is stored before its predecessor in the key."""
    assert entry.before is not None
    earlier, later = entry.before.first(), entry.first()
    return queue_of(earlier) != queue_of(later) or earlier[3] >= later[3]


def queue_of(position: Position) -> tuple[str, str, int]:
    return position[:3]


class OrderConsumed:
    """Checks that ordered consumers see each key's messages in the order of sending."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._highest: dict[tuple[str, str], int] = {}  # (topic, order key) → seq delivered
        self._late: dict[str, str] = {}  # delivered late and undecided, id → description
        self._wrong = Offenders()
        self._seen = 0

    def handlers(self) -> Handlers:
        return {Kind.CONSUMED: self._consumed, Kind.SEND_DECIDED: self._decided}

    @property
    def applies(self) -> bool:
        return self._seen > 0

    def _consumed(self, batch: Consume) -> None:
        if not batch.orderly:
            return
        entries, highest = self._ledger.entries, self._highest
        for name in batch.ids:
            entry = entries.get(name)
            if entry is None or not entry.order or entry.deliveries != 1:
                continue  # a phantom, in no order, or delivered before
            self._seen += 1
            key = (batch.topic, entry.order)
            before = highest.get(key, -1)
            if entry.seq > before:
                highest[key] = entry.seq
                continue
            text = f"{batch.topic} {entry.order}: {entry.seq} was delivered after {before}"
            if entry.promised:
                self._wrong.add(text)
            elif not entry.acked:
                self._late[name] = text

    def _decided(self, send: Send) -> None:
        if self._late:
            text = self._late.pop(send.id, None)
            if text is not None and send.promised:
                self._wrong.add(text)

    def result(self, name: str) -> Check:
        detail = f"{len(self._highest)} keys, {self._seen} ordered deliveries"
        return self._wrong.check(name, detail, self._seen)


class PrefixMax:
    """The highest value known before a moment, for values that should only rise. Memory: 16 bytes
    a step, 2 * KEPT_MAX steps at most.

    Add moments in order. A moment earlier than the last counts as the last, so `before` may only
    return less.
    """

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times = array("q")
        self._values = array("q")

    def note(self, t_ns: int, value: int) -> None:
        """Note that `value` was certain at `t_ns`."""
        times, values = self._times, self._values
        if values:
            if value <= values[-1]:
                return
            t_ns = max(t_ns, times[-1])
        times.append(t_ns)
        values.append(value)
        if len(times) > 2 * KEPT_MAX:
            del times[:KEPT_MAX]
            del values[:KEPT_MAX]

    def before(self, t_ns: int) -> int | None:
        """Return the highest value certain before `t_ns`; None if none or forgotten."""
        number = bisect_left(self._times, t_ns)
        return self._values[number - 1] if number else None
