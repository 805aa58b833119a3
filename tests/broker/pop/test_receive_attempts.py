"""A receive attempt that is repeated gets the same messages, whoever leads by then."""

from typing import Any

import pytest

from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.broker.pop.test_service import bodies, filled
from tests.waiting import until

MINE = {"renewed_by": "c1", "attempt_id": "a1"}


@pytest.fixture
async def one(tmp_path):
    async with Group(tmp_path, 1) as group:
        yield group, await group.leading(), Popper(group)


async def test_repeated_receive_attempt_gets_its_unacknowledged_messages(one):
    group, broker, popper = one
    await filled(group, broker, 12)
    first = await popper.pop(broker, count=8, **MINE)
    again = await popper.pop(broker, count=8, **MINE)
    assert sorted(again) == sorted(first)
    assert broker.state.pops.in_flight("T", "cg") == 8  # nothing was popped for it
    assert await popper.ack(broker, first[0]) == 0
    again = await popper.pop(broker, count=8, **MINE)
    assert bodies(again) == bodies(first[1:])
    for message in again:
        assert await popper.ack(broker, message) == 0
    fresh = await popper.pop(broker, count=8, **MINE)
    assert len(fresh) == 4 and not set(bodies(fresh)) & set(bodies(first))


async def test_different_attempt_client_or_group_gets_other_messages(one):
    group, broker, popper = one
    await filled(group, broker, 8)
    first = await popper.pop(broker, count=2, **MINE)
    for other in ({"attempt_id": "a2"}, {"renewed_by": "c2"}, {"renewed_by": ""}):
        (result,) = await popper.pop(broker, count=1, **(MINE | other))
        assert not {result.body} & {one.body for one in first}
    elsewhere = await Popper(group, "other").pop(broker, count=8, **MINE)
    assert len(elsewhere) == 8


async def test_repeated_receive_attempt_gets_its_retries(one):
    group, broker, popper = one
    await filled(group, broker, 1)
    await popper.pop(broker, invisible_ms=100)
    result: list[Any] = []

    async def comes_again():
        result[:] = await popper.pop(broker, **MINE)
        return result

    await until(comes_again)
    (again,) = await popper.pop(broker, **MINE)
    assert again == result[0] and again.handle.retry


async def test_repeated_receive_attempt_gets_its_messages_from_a_new_leader(tmp_path):
    async with Group(tmp_path, 3) as group:
        broker = await group.leading()
        popper = Popper(group)
        await filled(group, broker, 4)
        first = await popper.pop(broker, **MINE)
        await group.kill(await group.leader())
        broker = await group.leading()
        again = await popper.pop(broker, **MINE)
        assert sorted(again) == sorted(first)
