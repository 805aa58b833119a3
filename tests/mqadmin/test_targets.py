"""mqadmin asks every broker for its figures: silent ones get a line, all silent is a failure."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.client.errors import BrokerRefused, BrokerUnreachable
from raftmq.mqadmin.targets import AT_ONCE_MAX, Replica, runtime_infos

DEAD = BrokerUnreachable("b:1: refused")
CLOSED = BrokerRefused(1, "No accessKey is configured", "b:2")


def asked(answers):
    """An admin, and the replicas that it may ask: an error, or figures, of each."""

    async def runtime_info(address):
        answer = answers[int(address)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    replicas = [Replica("c", "b", number, str(number)) for number in range(len(answers))]
    return SimpleNamespace(broker=SimpleNamespace(runtime_info=runtime_info)), replicas


async def test_runtime_infos_have_an_error_row_for_each_silent_broker():
    result = await runtime_infos(*asked([DEAD, {"x": "1"}, CLOSED]))
    assert result == [
        {"error": "no answer: b:1: refused"},
        {"x": "1"},
        {"error": "b:2 answered: No accessKey is configured"},
    ]
    assert await runtime_infos(*asked([])) == []


async def test_runtime_infos_fail_if_no_broker_answers():
    with pytest.raises(BrokerUnreachable):
        await runtime_infos(*asked([DEAD, CLOSED]))
    result = await runtime_infos(*asked([DEAD]), one_answers=False)
    assert result == [{"error": "no answer: b:1: refused"}]


async def test_runtime_infos_ask_a_limited_number_of_brokers_at_once():
    running = most = 0

    async def runtime_info(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return {}

    admin = SimpleNamespace(broker=SimpleNamespace(runtime_info=runtime_info))
    replicas = [Replica("c", "b", number, str(number)) for number in range(5 * AT_ONCE_MAX)]
    assert len(await runtime_infos(cast(Any, admin), replicas)) == len(replicas)
    assert most == AT_ONCE_MAX
