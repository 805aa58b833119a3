"""Alignment of definitions: what is made, what is raised, what is left, what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftmq.remoting.definitions import aligned_group, aligned_topic

BEAN: dict[str, Any] = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False}
FIFO = {"attributes": {"message.type": "FIFO"}}


def sized(read: int, write: int, **more: Any) -> dict[str, Any]:
    return BEAN | {"readQueueNums": read, "writeQueueNums": write} | more


@pytest.mark.parametrize(
    ("has", "outcome", "why", "puts"),
    [
        ((sized(4, 4), sized(4, 4)), "there already", "", {}),
        ((sized(4, 4), None), "made", "4/4 in b", {"b": (4, 4, 6)}),
        ((sized(2, 6, perm=4), sized(8, 1)), "changed", "8/6 in a, b; left: perm",
         {"a": (8, 6, 4), "b": (8, 6, 6)}),
        ((sized(4, 4), sized(4, 4, order=True)), "left: it differs", "left: order", {}),
        ((sized(4, 4, **FIFO), sized(4, 4)), "refused", "message.type is FIFO in a, NORMAL in b",
         {}),
        ((sized(4, 4, attributes={"x": "y"}), None), "refused", "brokers here do not act by x", {}),
        ((sized(4, 4, **FIFO), None), "left: it differs",
         "ordered, and a key's queue would change; --withOrdered", {}),
        ((sized(4, 4, order=True), sized(2, 2, order=True)), "left: it differs",
         "ordered, and a key's queue would change; --withOrdered", {}),
    ],
)  # fmt: skip
def test_topic_alignment_outcomes(has, outcome, why, puts) -> None:
    step = aligned_topic("T", dict(zip("ab", has, strict=True)), with_ordered=False)
    fields = ("readQueueNums", "writeQueueNums", "perm")
    result = {name: tuple(bean[key] for key in fields) for name, bean in step.puts.items()}
    assert (step.outcome, step.why, result) == (outcome, why, puts)


def test_topic_alignment_never_lowers_queues_and_is_idempotent() -> None:
    rng = random.Random(44)
    for _ in range(500):
        has = {
            name: rng.choice([None, sized(rng.randint(1, 9), rng.randint(1, 9))]) for name in "abc"
        }
        has["d"] = sized(3, 3)
        step = aligned_topic("T", has, with_ordered=False)
        after: dict[str, Any] = {**has, **step.puts}
        for name, bean in has.items():
            for key in ("readQueueNums", "writeQueueNums"):
                assert after[name][key] == max(b[key] for b in has.values() if b)
                assert bean is None or after[name][key] >= bean[key]
        assert aligned_topic("T", after, with_ordered=False).outcome == "there already"


def test_group_settings_are_aligned_only_with_a_named_broker() -> None:
    one, other = {"groupName": "g", "retryMaxTimes": 3}, {"groupName": "g", "retryMaxTimes": 9}
    has = {"a": one, "b": other, "c": None}
    left = aligned_group("g", has, "")
    assert (left.outcome, left.why) == ("left: it differs", "retryMaxTimes: --like BROKER")
    assert aligned_group("g", has, "c") == left  # which has none
    made = aligned_group("g", has, "b")
    assert (made.outcome, made.why, made.puts) == (
        "made", "retryMaxTimes was 3", {"a": other, "c": other}
    )  # fmt: skip
    alike = aligned_group("g", {"a": one, "b": one, "c": None}, "")
    assert (alike.outcome, alike.puts) == ("made", {"c": one})
