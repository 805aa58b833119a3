"""The table of popped messages: random histories against a simple model, and its limits."""

import random
from typing import Any

import orjson
import pytest

from raftmq.broker.errors import StateError
from raftmq.broker.tables.pops import VOID_MAX, PopTable
from raftmq.broker.tables.state import BrokerState, reset_offsets
from tests.present import present

PLACE = ("T", "g", 0)


def apply(table, *steps):
    table.apply(orjson.loads(orjson.dumps({"steps": steps})))


def take(before, after, pop_ms, *, offsets=None, ms=100, order=False, start=None):
    reported = after - before if offsets is None else offsets
    first = before if start is None else start
    return ("take", *PLACE, before, after, first, pop_ms, pop_ms + ms, reported, "", "", order)


def reloaded(table):
    again = PopTable()
    again.load(orjson.loads(orjson.dumps(table.to_json())), 5)
    return again


def check(table):
    queue = present(table.get(PLACE))
    assert table.batch_count == len(queue.batches)
    assert queue.in_flight == sum(one.pending.bit_count() for one in queue.batches.values())
    assert all(one.pending for one in queue.batches.values())
    assert sum(one.order for one in queue.batches.values()) == (queue.order is not None)
    flying = [o for one in queue.batches.values() for o in one.pending_offsets]
    assert len(flying) == len(set(flying)), "one message is in flight twice"
    return set(flying)


@pytest.mark.parametrize("seed", range(60))
def test_each_message_is_in_flight_acknowledged_or_after_the_pop_cursor(seed):
    rng = random.Random(seed)
    table, done, now_ms = PopTable(), set(), 1_000
    revived: set[Any] = set()
    apply(table, take(0, 0, 1, offsets=[]))
    for _ in range(80):
        queue = present(table.get(PLACE))
        now_ms += rng.randrange(1, 50)
        kind = rng.choice(["take", "order", "done", "revived", "change", "hide", "reload"])
        names = list(queue.batches)
        if kind == "take":
            size = rng.randrange(1, 40)
            offsets = None
            if rng.random() < 0.3:
                chosen = rng.sample(range(size), rng.randrange(0, size))
                offsets = sorted(queue.next + n for n in chosen)
                done |= set(range(queue.next, queue.next + size)) - set(offsets)  # filtered out
            apply(table, take(queue.next, queue.next + size, now_ms, offsets=offsets))
        elif kind == "order":
            batch = queue.order_batch
            first = queue.next if batch is None else batch.pending_offsets[0]
            after = first + rng.randrange(1, 6)
            offsets = list(range(first, after))
            step = take(queue.next, after, now_ms, offsets=offsets, order=True, start=first)
            apply(table, step)
            done = {offset for offset in done if offset < first}  # redelivered, or unread again
            revived = {offset for offset in revived if offset < first}
        elif kind in ("done", "revived") and names:
            name = rng.choice(names)
            batch = queue.batches[name]
            mask = rng.getrandbits(len(batch.offsets))
            ended = {o for n, o in enumerate(batch.offsets) if mask & batch.pending & 1 << n}
            (done if kind == "done" else revived).update(ended)
            apply(table, (kind, *PLACE, *name, mask))
        elif kind == "change" and names:
            name = rng.choice(names)
            if not queue.batches[name].order:
                offset = rng.choice(queue.batches[name].offsets)
                apply(table, ("change", *PLACE, *name, offset, now_ms, now_ms + 9))
        elif kind == "hide" and queue.order is not None:
            offset = rng.choice(present(queue.order_batch).offsets)
            apply(table, ("hide", *PLACE, *queue.order, offset, now_ms + 9))
        elif kind == "reload":
            again = reloaded(table)
            assert again.to_json() == table.to_json()
            table = again
        flying = check(table)
        assert flying | done | revived == set(range(present(table.get(PLACE)).next))
        assert not flying & (done | revived)


def test_orderly_pop_replaces_the_batch_and_counts_its_deliveries():
    table, batches = PopTable(), []
    takes = [(0, 3, "a"), (1, 4, "a"), (1, 3, "b"), (1, 2, "")]  # from, next, attempt
    apply(table, take(0, 0, 1, offsets=[]))
    for pop_ms, (start, after, attempt) in enumerate(takes):
        step = [*take(present(table.get(PLACE)).next, after, pop_ms, order=True, start=start)]
        step[9], step[11] = after - start, attempt
        apply(table, step)
        batches.append(present(present(table.get(PLACE)).order_batch).times)
        check(table)
        if not start:
            apply(table, ("done", *PLACE, 0, 0, 0b101))
    assert batches == [(0, 0, 0), (0, 0, 0), (1, 1), (2,)], "the attempt a was repeated"
    assert (present(table.get(PLACE)).next, present(table.get(PLACE)).in_flight) == (2, 1)
    assert present(table.get(PLACE)).void[0, 0] == (100, (1,))
    # A filter that matches no message any more, or retention, ends the batch.
    apply(table, take(2, 5, 9, offsets=[], order=True))
    assert (
        present(table.get(PLACE)).next,
        table.batch_count,
        present(table.get(PLACE)).in_flight,
    ) == (5, 0, 0)


def test_pop_step_decided_before_an_offset_reset_changes_nothing():
    state = BrokerState()
    index = 0

    def command(payload):
        nonlocal index
        index += 1
        state.apply(index, 1, payload)

    command(orjson.dumps({"op": "pop", "steps": [take(0, 5, 10), ("offset", *PLACE, 5, None)]}))
    assert (state.offsets.get(*PLACE[:2], 0), state.pops.in_flight("T", "g")) == (5, 5)
    command(reset_offsets([(*PLACE, 2)]))
    command(orjson.dumps({"op": "pop", "steps": [take(5, 9, 20), ("offset", *PLACE, 9, None)]}))
    assert (state.offsets.get(*PLACE[:2], 0), present(state.pops.get(PLACE)).next) == (2, 2)
    command(orjson.dumps({"op": "pop", "steps": [take(2, 9, 30), ("offset", *PLACE, 9, 2)]}))
    assert (state.offsets.get(*PLACE[:2], 0), present(state.pops.get(PLACE)).next) == (9, 9)
    assert not state.offsets.resets
    command(b'{"op":"delete_topic","topic":"T"}')
    assert state.pops.get(PLACE) is None and state.pops.batch_count == 0


def test_void_receipt_handles_are_limited():
    table = PopTable()
    for number in range(VOID_MAX + 10):
        pop_ms = 1_000 + number
        apply(table, take(number, number + 1, pop_ms), ("revived", *PLACE, number, pop_ms, 1))
    queue = present(table.get(PLACE))
    assert len(queue.void) == VOID_MAX
    assert queue.unknown_ms == 1_000 + 9 + 100
    assert queue.void[50, 1_050] == (1_150, (50,))


@pytest.mark.parametrize("steps", [[["grab", "T", "g"]], [["take", "T"]], [7], None, [["done"]]])
def test_malformed_pop_step_stops_the_replica(steps):
    with pytest.raises(StateError):
        BrokerState().apply(1, 1, orjson.dumps({"op": "pop", "steps": steps}))
