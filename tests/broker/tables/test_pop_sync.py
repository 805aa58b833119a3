"""What a classic master tells of offsets and pops, and how a slave takes it."""

import pytest

from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.pop_sync import KEY, apply_answer, encode
from raftmq.broker.tables.pops import PopTable
from raftmq.remoting.fast_json import loads_object


def pop(queue_id, before, after, *, order=False):
    reported = after - before
    return (
        "take",
        "T",
        "g",
        queue_id,
        before,
        after,
        before,
        1_000,
        2_000,
        reported,
        "",
        "",
        order,
    )


def tables(*steps):
    offsets, pops = OffsetTable(), PopTable()
    pops.apply({"steps": steps})
    offsets.commit(
        ("T", "g", queue_id, queue.next) for (_, _, queue_id), queue in pops.all_queues()
    )
    return offsets, pops


def test_slave_replaces_its_pops_by_the_masters():
    offsets, pops = tables(pop(0, 0, 10), ("done", "T", "g", 0, 0, 1_000, 3))
    mine = tables(pop(0, 0, 30), pop(1, 0, 5))
    apply_answer(mine[0], mine[1], loads_object(encode(offsets, pops, {})))
    assert mine[1].to_json() == pops.to_json()
    assert mine[0].offsets == {("T", "g"): {0: 10, 1: 5}}


def test_pop_table_above_the_answer_size_leaves_offsets_before_the_pops():
    offsets, pops = tables(
        pop(0, 0, 10),
        ("done", "T", "g", 0, 0, 1_000, 0b111),  # 3 to 9 are in flight
        pop(1, 0, 4),
        ("done", "T", "g", 1, 0, 1_000, 0b1111),  # nothing is
        pop(2, 0, 4, order=True),
        ("mode", "T", "g", "POP", 4),
    )
    offsets.delete_group("g")
    offsets.commit([("T", "g", 0, 10), ("T", "g", 1, 4)])
    mine = tables(pop(0, 0, 30))
    apply_answer(mine[0], mine[1], loads_object(encode(offsets, pops, {}, bytes_max=100)))
    assert mine[0].offsets == {("T", "g"): {0: 3, 1: 4, 2: 0}}
    assert (mine[1].queues, mine[1].batch_count) == ({}, 0)
    assert mine[1].modes == {("T", "g"): ("POP", 4)}


def test_master_answer_without_pops_clears_the_slaves_pops():
    offsets, _ = tables(pop(0, 0, 10))
    mine = tables(pop(0, 0, 30), ("mode", "T", "g", "POP", 4))
    apply_answer(mine[0], mine[1], offsets.to_json())
    assert (mine[1].queues, mine[1].batch_count) == ({}, 0)
    assert mine[1].modes == {("T", "g"): ("POP", 4)}


NO_BATCH = [0, 1, [], "0", 1, 1, "", "", False, [], []]  # of no messages


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"offsetTable": []},
        {"offsetTable": {}, KEY: [1]},
        {"offsetTable": {}, KEY: {"modes": []}},
        {
            "offsetTable": {},
            KEY: {
                "modes": [],
                "queues": [["T", "g", 0, 9, 0, 0, 9, [], [NO_BATCH]]],
            },
        },
    ],
)
def test_malformed_pop_table_changes_nothing(value):
    mine = tables(pop(0, 0, 30))
    before = [table.to_json() for table in mine]
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        apply_answer(mine[0], mine[1], value)
    assert [table.to_json() for table in mine] == before
