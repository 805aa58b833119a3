"""The replicated table of popped messages, with each queue's cursor and the messages in flight.

A *popped* message is invisible to the rest of its group until it is acknowledged, or redelivered
after its time. Apache's broker keeps this in the master's memory and in messages to itself. Here
commands of the log change a replicated table, so a handle is valid under any leader, and an
answered acknowledgement is never lost. broker.pop is the leader's part.

    {"op":"pop","steps":[step,…]}, each step one of
    ["take",topic,group,queue id,from,next,start,pop ms,visible ms,offsets,client,attempt,order]
                        the queue's cursor goes from `from` to `next`; the messages at `offsets` (a
                        list, or the number of those from `start` on; 0: none) are in flight until
                        `visible ms`. It changes nothing if the cursor is elsewhere: a reset came
                        between. A queue's first take makes the queue, even if a reset came
                        between: then the next one begins at the reset's mark. `client`: whose
                        heartbeats renew it ("": nobody's)
    ["done",topic,group,queue id,start,pop ms,mask]      these are acknowledged (bit n: offsets[n])
    ["revived",topic,group,queue id,start,pop ms,mask]   these came again, or are dead letters; the
                        frame has their messages
    ["change",topic,group,queue id,start,pop ms,offset,new pop ms,visible ms]
                        one message gets another time, and another handle
    ["hide",topic,group,queue id,start,pop ms,offset,visible ms]   the same in an orderly batch,
                        where the handle stays
    ["renew",topic,group,queue id,start,pop ms,visible ms]         the batch's time is extended
    ["offset",topic,group,queue id,offset,mark]          the group's consumer offset (OffsetTable
                        applies it): `mark` is the reset that was obeyed; null: none
    ["mode",topic,group,mode,share]     how the group's clients get messages: PULL, or POP with
                        `share` (popShareQueueNum)

Handles name a batch by `start` and `pop ms`, which are unique in a queue. An orderly batch is alone
in its queue. After its time, the next `take` replaces it and starts at its first pending message,
so that take's `next` may be before its `from`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

COMMAND = "pop"
VOID_MAX = 256  # per queue
Step = tuple[object, ...]
QueueKey = tuple[str, str, int]  # topic, group, queue id
BatchKey = tuple[int, int]  # start offset, pop time in ms


class Batch(NamedTuple):
    """Messages popped together from a queue. Times are epoch milliseconds."""

    offsets: Sequence[int]  # of the messages, ascending
    pending: int  # bit n means that offsets[n] is in flight
    visible_ms: int  # the time of the redelivery
    until_ms: int  # the latest such time in any handle of it
    client: str = ""  # this client's heartbeats renew it
    attempt: str = ""  # the receive attempt of an orderly pop
    order: bool = False
    hidden: tuple[tuple[int, int], ...] = ()  # orderly: (offset, visible ms) of single messages
    times: tuple[int, ...] = ()  # orderly: the earlier pops of each

    @property
    def pending_offsets(self) -> list[int]:
        return [offset for n, offset in enumerate(self.offsets) if self.pending >> n & 1]

    @property
    def ends_ms(self) -> int:
        """The time after which all of its messages are visible."""
        if not self.hidden:
            return self.visible_ms
        hidden = dict(self.hidden)
        return max(hidden.get(offset, self.visible_ms) for offset in self.pending_offsets)

    def mask_of(self, start: int, bits: int) -> int:
        """Return the batch's bits for these offsets; bit n is offset `start` + n."""
        offsets = self.offsets
        if isinstance(offsets, range):
            shift = offsets[0] - start
            moved = bits >> shift if shift >= 0 else bits << -shift
            return moved & (1 << len(offsets)) - 1
        mask = 0
        for n, offset in enumerate(offsets):
            if offset >= start and bits >> (offset - start) & 1:
                mask |= 1 << n
        return mask


@dataclass(slots=True)
class PopQueue:
    """A queue as popped by a group."""

    next: int  # the offset of the next pop
    unknown_ms: int = 0  # handles up to this time have an unknown fate
    popped_ms: int = 0  # the latest pop time
    popped_to: int = 0  # an upper bound of all popped offsets
    batches: dict[BatchKey, Batch] = field(default_factory=dict)
    order: BatchKey | None = None  # the orderly batch
    in_flight: int = 0  # messages of the batches
    # Handles that are void without an acknowledgement, with their times and offsets.
    void: dict[BatchKey, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def first_unfinished(self) -> int | None:
        """Return the first unacknowledged message, or None."""
        return min((batch.pending_offsets[0] for batch in self.batches.values()), default=None)

    def make_void(self, name: BatchKey, until_ms: int, offsets: Sequence[int]) -> None:
        """Void the handle for these messages."""
        known = self.void.pop(name, (0, ()))
        self.void[name] = max(known[0], until_ms), (*known[1], *offsets)
        while len(self.void) > VOID_MAX:
            self.unknown_ms = max(self.unknown_ms, self.void.pop(next(iter(self.void)))[0])

    @property
    def order_batch(self) -> Batch | None:
        return None if self.order is None else self.batches[self.order]

    @property
    def is_orderly(self) -> bool:
        return self.order is not None


class PopTable:
    def __init__(self) -> None:
        self.queues: dict[tuple[str, str], dict[int, PopQueue]] = {}
        self.modes: dict[tuple[str, str], tuple[str, int]] = {}
        self.batch_count = 0
        self.applied_index = 0

    def get(self, queue_key: QueueKey) -> PopQueue | None:
        queues = self.queues.get((queue_key[0], queue_key[1]))
        return None if queues is None else queues.get(queue_key[2])

    def batch(self, queue_key: QueueKey, key: BatchKey) -> Batch | None:
        queue = self.get(queue_key)
        return None if queue is None else queue.batches.get(key)

    def all_queues(self) -> Iterator[tuple[QueueKey, PopQueue]]:
        for (topic, group), queues in self.queues.items():
            for queue_id, queue in queues.items():
                yield (topic, group, queue_id), queue

    def in_flight(self, topic: str, group: str) -> int:
        """Return the number of a group's messages in flight in a topic."""
        return sum(queue.in_flight for queue in self.queues.get((topic, group), {}).values())

    # ---- commands -------------------------------------------------------------------------

    def apply(self, command: Mapping[str, Any]) -> None:
        """Apply a command. Raises KeyError, TypeError, ValueError."""
        for kind, topic, group, *rest in command["steps"]:
            key = str(topic), str(group)
            if kind == "mode":
                mode, share = rest
                self.modes[key] = str(mode), int(share)
            elif kind == "take":
                self._take(key, *rest)
            elif kind in ("done", "revived"):
                queue_id, start, pop_ms, mask = map(int, rest)
                self._end(key, queue_id, (start, pop_ms), mask, done=kind == "done")
            elif kind == "change":
                self._change(key, *map(int, rest))
            elif kind in ("hide", "renew"):
                self._put_off(key, kind, *map(int, rest))
            elif kind != "offset":
                raise ValueError(f"unknown step {kind!r}")

    def _take(
        self,
        key: tuple[str, str],
        queue_id: int,
        before: int,
        after: int,
        start: int,
        pop_ms: int,
        visible_ms: int,
        offsets: int | list[int],
        client: str,
        attempt: str,
        order: bool,
    ) -> None:
        queues = self.queues.setdefault(key, {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = queues[queue_id] = PopQueue(before)
        if queue.next != before:
            return
        queue.next = after
        here = range(start, start + offsets) if isinstance(offsets, int) else tuple(offsets)
        times: tuple[int, ...] = ()
        if order:
            times = self._replace_order_batch(queue, here, attempt)
        elif here:
            self._end_order(queue)
        if not here:
            return
        queue.popped_ms = max(queue.popped_ms, pop_ms)
        queue.popped_to = max(queue.popped_to, here[-1] + 1)
        self._add(
            queue,
            (start, pop_ms),
            Batch(here, (1 << len(here)) - 1, visible_ms, visible_ms, client, attempt, bool(order)),
            times,
        )

    def _add(
        self, queue: PopQueue, name: BatchKey, batch: Batch, times: tuple[int, ...] = ()
    ) -> None:
        queue.batches[name] = batch._replace(times=times) if times else batch
        if batch.order:
            queue.order = name
        queue.in_flight += batch.pending.bit_count()
        self.batch_count += 1

    def _replace_order_batch(
        self, queue: PopQueue, here: Sequence[int], attempt: str
    ) -> tuple[int, ...]:
        """Drop the orderly batch after its time, or for a repeated attempt, which does not count as
        a new pop. Return the number of pops of each of `here` in it and the batches before."""
        known: dict[int, int] = {}
        batch = queue.order_batch
        if batch is not None and queue.order is not None:
            more = 0 if attempt and attempt == batch.attempt else 1
            times = (count + more for count in batch.times)
            known = dict(zip(batch.offsets, times, strict=True))
            queue.make_void(queue.order, batch.until_ms, batch.pending_offsets)
            self._drop(queue, queue.order)
        return tuple(known.get(offset, 0) for offset in here)

    def _end_order(self, queue: PopQueue) -> None:
        """Redeliver messages popped in order like all others: the order ended."""
        batch = queue.order_batch
        if batch is not None and queue.order is not None:
            queue.batches[queue.order] = batch._replace(order=False, hidden=(), times=())
            queue.order = None

    def _drop(self, queue: PopQueue, name: BatchKey) -> None:
        batch = queue.batches.pop(name)
        if name == queue.order:
            queue.order = None
        queue.in_flight -= batch.pending.bit_count()
        self.batch_count -= 1

    def _end(
        self, key: tuple[str, str], queue_id: int, name: BatchKey, mask: int, *, done: bool
    ) -> None:
        queue = self.queues.get(key, {}).get(queue_id)
        batch = None if queue is None else queue.batches.get(name)
        if queue is None or batch is None:
            return
        ended = batch.pending & mask
        if ended and not done:
            offsets = batch._replace(pending=ended).pending_offsets
            queue.make_void(name, batch.until_ms, offsets)
        if ended == batch.pending:
            self._drop(queue, name)
        else:
            queue.batches[name] = batch._replace(pending=batch.pending & ~ended)
            queue.in_flight -= ended.bit_count()

    def _change(
        self,
        key: tuple[str, str],
        queue_id: int,
        start: int,
        pop_ms: int,
        offset: int,
        new_pop_ms: int,
        visible_ms: int,
    ) -> None:
        queue = self.queues.get(key, {}).get(queue_id)
        batch = None if queue is None else queue.batches.get((start, pop_ms))
        if queue is None or batch is None or not batch.pending & batch.mask_of(offset, 1):
            return
        self._end(key, queue_id, (start, pop_ms), batch.mask_of(offset, 1), done=False)
        until_ms = max(batch.until_ms, visible_ms)
        queue.popped_ms = max(queue.popped_ms, new_pop_ms)
        self._add(queue, (offset, new_pop_ms), Batch((offset,), 1, visible_ms, until_ms))

    def _put_off(
        self, key: tuple[str, str], kind: str, queue_id: int, start: int, pop_ms: int, *rest: int
    ) -> None:
        *offset, visible_ms = rest
        queue = self.queues.get(key, {}).get(queue_id)
        batch = None if queue is None else queue.batches.get((start, pop_ms))
        if queue is None or batch is None:
            return
        until_ms = max(batch.until_ms, visible_ms)
        if kind == "renew":
            batch = batch._replace(visible_ms=visible_ms, until_ms=until_ms)
        else:
            hidden = dict(batch.hidden) | {offset[0]: visible_ms}
            batch = batch._replace(hidden=tuple(hidden.items()), until_ms=until_ms)
        queue.batches[start, pop_ms] = batch

    def reset(self, resets: Sequence[Sequence[Any]]) -> None:
        """Move the cursors (reset_offsets); popped messages are not redelivered."""
        for topic, group, queue_id, offset in resets:
            queue = self.get((topic, group, int(queue_id)))
            if queue is not None:
                self.batch_count -= len(queue.batches)
                for batch in queue.batches.values():
                    queue.unknown_ms = max(queue.unknown_ms, batch.until_ms)
                queue.batches, queue.order, queue.in_flight = {}, None, 0
                queue.next = int(offset)

    def delete(self, *, topic: str = "", group: str = "") -> None:
        keys = [key for key in {**self.queues, **self.modes} if topic == key[0] or group == key[1]]
        for key in keys:
            self.batch_count -= sum(
                len(queue.batches) for queue in self.queues.pop(key, {}).values()
            )
            self.modes.pop(key, None)

    # ---- files ----------------------------------------------------------------------------

    def own(self) -> None:
        """Copy the mutable parts shared with the original table."""
        self.modes = self.modes.copy()
        self.queues = {
            key: {
                queue_id: PopQueue(
                    queue.next,
                    queue.unknown_ms,
                    queue.popped_ms,
                    queue.popped_to,
                    queue.batches.copy(),
                    queue.order,
                    queue.in_flight,
                    queue.void.copy(),
                )
                for queue_id, queue in queues.items()
            }
            for key, queues in self.queues.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "modes": sorted([*key, *mode] for key, mode in self.modes.items()),
            "queues": [
                [
                    *queue_key,
                    queue.next,
                    queue.unknown_ms,
                    queue.popped_ms,
                    queue.popped_to,
                    [[*key, *void] for key, void in queue.void.items()],
                    [
                        [*key, list(batch.offsets), str(batch.pending), *batch[2:]]
                        for key, batch in sorted(queue.batches.items())
                    ],
                ]
                for queue_key, queue in sorted(self.all_queues(), key=lambda one: one[0])
            ],
        }

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        queues: dict[tuple[str, str], dict[int, PopQueue]] = {}
        batch_count = 0
        for topic, group, queue_id, *numbers, void, batches in value["queues"]:
            following, unknown_ms, popped_ms, popped_to = map(int, numbers)
            queue = PopQueue(following, unknown_ms, popped_ms, popped_to)
            for start, pop_ms, until_ms, offsets in void:
                queue.void[int(start), int(pop_ms)] = int(until_ms), tuple(map(int, offsets))
            for start, pop_ms, offsets, pending, *rest in batches:
                queue.batches[int(start), int(pop_ms)] = _batch(offsets, int(pending), *rest)
            queue.order = next((key for key, one in queue.batches.items() if one.order), None)
            queue.in_flight = sum(one.pending.bit_count() for one in queue.batches.values())
            batch_count += len(queue.batches)
            queues.setdefault((str(topic), str(group)), {})[int(queue_id)] = queue
        modes = {(str(t), str(g)): (str(mode), int(share)) for t, g, mode, share in value["modes"]}
        self.queues, self.modes, self.batch_count = queues, modes, batch_count
        self.applied_index = applied_index

    def replace_by(self, other: PopTable) -> None:
        """Move the content of a table here."""
        self.queues, self.modes = other.queues, other.modes
        self.batch_count = other.batch_count


def _batch(
    offsets: list[int],
    pending: int,
    visible_ms: int,
    until_ms: int,
    client: str,
    attempt: str,
    order: bool,
    hidden: list[list[int]],
    times: list[int],
) -> Batch:
    first, count = offsets[0], len(offsets)
    contiguous = offsets[-1] - first == count - 1
    return Batch(
        range(first, first + count) if contiguous else tuple(offsets),
        pending,
        visible_ms,
        until_ms,
        client,
        attempt,
        order,
        tuple((offset, ms) for offset, ms in hidden),
        tuple(times),
    )


def pop_command(steps: Sequence[Step]) -> bytes:
    return orjson.dumps({"op": COMMAND, "steps": steps})
