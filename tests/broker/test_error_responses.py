"""The guard around every handler."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from raftmq.broker.error_responses import Guard
from raftmq.broker.errors import Refused
from raftmq.dledger.raft.errors import NotLeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from tests.broker.doubles import FakeConnection

Barrier = Callable[[], Awaitable[None]]


async def slow(_: Connection, request: RemotingCommand) -> RemotingCommand:
    await asyncio.sleep(0)
    if request.opaque == 2:
        raise Refused(ResponseCode.SYSTEM_BUSY, "much to do", tag="BUSY")
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS)


async def test_slow_answer_closed_before_it_starts_leaves_no_warning() -> None:
    """A connection does so beyond its tasks_max. Warnings are errors here: found by mqchaos in a
    broker's log, where a leader with much to do had refused END_TRANSACTION."""
    guard = Guard(lambda: True, lambda: "", proven)
    guarded = guard.around(slow)
    request = RemotingCommand(37, 1)
    answer = guarded(cast(Connection, FakeConnection()), request)
    assert asyncio.iscoroutine(answer)
    answer.close()
    del answer
    gc.collect()
    assert guard.requests == {37: 1}


async def test_slow_answer_and_slow_rejection_are_answered() -> None:
    guarded = Guard(lambda: True, lambda: "", proven).around(slow)
    for opaque, code in ((1, ResponseCode.SUCCESS), (2, ResponseCode.SYSTEM_BUSY)):
        answer = guarded(cast(Connection, FakeConnection()), RemotingCommand(37, opaque))
        assert asyncio.iscoroutine(answer)
        response = await answer
        assert response is not None
        assert (response.opaque, response.code) == (opaque, code)


async def proven() -> None:
    await asyncio.sleep(0)


async def unproven() -> None:
    raise NotLeader("n1")


@pytest.mark.parametrize("code", [ResponseCode.TOPIC_NOT_EXIST, 26])
async def test_only_the_leader_answers_that_something_does_not_exist(code: int) -> None:
    """A client that asked a replica which was being filled took its word for it, and asked it again
    for as long as nobody else led: found by the simulator, seed 730419."""

    def refuse(_: Connection, request: RemotingCommand) -> RemotingCommand:
        raise Refused(code, "T does not exist")

    async def answer(
        leads: bool, barrier: Barrier = proven
    ) -> tuple[int, str | None, dict[str, str] | None]:
        guarded = Guard(lambda: leads, lambda: "leader:1", barrier).around(refuse)
        refusal = guarded(cast(Connection, FakeConnection()), RemotingCommand(30, 1))
        assert leads is asyncio.iscoroutine(refusal)
        refusal = await refusal if asyncio.iscoroutine(refusal) else refusal
        assert isinstance(refusal, RemotingCommand)
        return refusal.code, refusal.remark, refusal.ext

    assert await answer(True) == (code, "T does not exist", {})
    behind = "[NOT_LEADER] this replica is not the leader; here, T does not exist"
    assert await answer(False) == (14, behind, {"leaderAddr": "leader:1"})
    deposed = "[NOT_LEADER] this replica is not the leader"
    assert await answer(True, unproven) == (14, deposed, {"leaderAddr": "leader:1"})


async def test_leader_proves_a_negative_answer_and_a_follower_marks_its_own() -> None:
    looked: list[str] = []

    async def barrier() -> None:
        looked.append("proven")

    async def look(_: Connection, request: RemotingCommand) -> RemotingCommand:
        looked.append("looked")
        return RemotingCommand.response_to(request, ResponseCode.QUERY_NOT_FOUND, "no such key")

    async def answer(leads: bool, barrier: Barrier) -> tuple[int, str | None]:
        guarded = Guard(lambda: leads, lambda: "", barrier).around(look)
        request = RemotingCommand(RequestCode.QUERY_MESSAGE, 1)
        result = guarded(cast(Connection, FakeConnection()), request)
        assert asyncio.iscoroutine(result)
        response = await result
        assert response is not None
        return response.code, response.remark

    assert await answer(True, barrier) == (ResponseCode.QUERY_NOT_FOUND, "no such key")
    assert looked == ["proven", "looked"]
    assert (await answer(True, unproven))[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(looked) == 2
    behind = "[NOT_LEADER] this replica is not the leader; here, no such key"
    assert await answer(False, unproven) == (ResponseCode.SERVICE_NOT_AVAILABLE, behind)
