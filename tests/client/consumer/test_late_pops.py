"""Which of the pops that nobody waits for a call takes."""

from __future__ import annotations

import asyncio

import pytest

from raftmq.client.consumer.late_pops import LATE_MAX, Answer, LatePops, Pop
from raftmq.client.errors import BrokerUnreachable, ClientError
from raftmq.client.message import MessageExt
from raftmq.client.subscription import Subscription, subscribe
from tests.client.consumer.test_simple_consumer import popped_message

TARGET = ("T", "g0")
ALL = subscribe("T", "*", 1)
SILENT = BrokerUnreachable("no answer")


async def a_pop(
    found: int | ClientError | None, *, subscription: Subscription = ALL, count_max: int = 32
) -> Pop:
    """A pop that was begun at 0 s with 60 s of invisible time; answered at 10 s with so many
    messages, or an error. None: not answered."""
    messages: list[MessageExt] | ClientError | None
    messages = [popped_message("T", n) for n in range(found)] if isinstance(found, int) else found

    async def work() -> Answer:
        return Answer(await asyncio.Future() if messages is None else messages, 10.0)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    return Pop(TARGET, subscription, count_max, 60_000, 0.0, 20_000, task)


@pytest.mark.parametrize(
    ("found", "count_max", "invisible_ms", "now_s", "taken"),
    [
        (2, 32, 60_000, 25.0, True),
        (2, 32, 60_000, 26.0, False),  # less than 45 s of the invisible time are left
        (2, 32, 30_000, 47.0, True),
        (2, 32, 90_000, 11.0, False),
        (2, 2, 60_000, 11.0, True),
        (2, 1, 60_000, 11.0, False),
        (None, 32, 60_000, 19.0, True),
        (None, 31, 60_000, 19.0, False),  # it may get more
    ],
)
async def test_a_call_takes_a_pop_that_serves_it_and_others_stay(
    found: int | None, count_max: int, invisible_ms: int, now_s: float, taken: bool
) -> None:
    pops, pop = LatePops(), await a_pop(found)
    pops.keep(pop, 10.0)
    assert pops.take(TARGET, ALL, count_max, invisible_ms, now_s) is (pop if taken else None)
    later = pops.take(TARGET, ALL, 32, 30_000, now_s)
    assert later is (None if taken else pop), "it was taken once, or stays for whom it serves"


@pytest.mark.parametrize("found", [0, SILENT])
async def test_a_pop_without_messages_is_not_kept(found: int | ClientError) -> None:
    pops = LatePops()
    pops.keep(await a_pop(found), 11.0)
    assert pops.take(TARGET, ALL, 32, 1_000, 11.0) is None


async def test_a_pop_whose_invisible_time_is_over_is_forgotten() -> None:
    pops = LatePops()
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, ALL, 32, 1, 70.0) is None
    assert pops.take(TARGET, ALL, 32, 1, 11.0) is None


async def test_what_is_beyond_the_bound_is_not_kept() -> None:
    made = [await a_pop(1) for _ in range(LATE_MAX + 1)]
    pops = LatePops()
    for pop in made:
        pops.keep(pop, 11.0)
    taken = [pops.take(TARGET, ALL, 32, 60_000, 11.0) for _ in made]
    assert taken == [*made[:LATE_MAX], None], "the oldest first"


async def test_a_pop_of_another_expression_or_topic_is_forgotten() -> None:
    pops = LatePops()
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, subscribe("T", "A", 2), 32, 60_000, 11.0) is None
    assert pops.take(TARGET, ALL, 32, 60_000, 11.0) is None
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, subscribe("T", "*", 2), 32, 60_000, 11.0) is not None
    pops.keep(await a_pop(1), 11.0)
    pops.forget("T")
    assert pops.take(TARGET, ALL, 32, 60_000, 11.0) is None


async def test_a_target_owes_while_one_of_its_pops_does() -> None:
    pops, pop = LatePops(), await a_pop(None)
    assert not pops.owed(TARGET)
    pops.keep(await a_pop(1), 11.0)
    assert not pops.owed(TARGET), "it answered"
    pops.keep(pop, 11.0)
    assert pops.owed(TARGET)
    while len(pops._pops[TARGET]) < LATE_MAX:
        pops.keep(pop, 11.0)
    assert not pops.owed(TARGET), "no further one would be kept"
    assert pop.silence(19.0) == []
    assert isinstance(pop.silence(20.0), BrokerUnreachable)
