"""Clients that contend for locks, and their records of each answer."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from raftmq.chaos.history.deferred_events import LockRequested
from raftmq.chaos.history.events import Outcome
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.chaos.workloads import contention
from raftmq.chaos.workloads.base import Environment, Tasks
from raftmq.chaos.workloads.contention import Contender, Contention
from raftmq.client import Admin, BrokerRefused, BrokerUnreachable, MessageQueue
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from tests.waiting import until

QUEUE = MessageQueue("T", "b", 3)
GRANTED = b'{"lockOKMQSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}'
REFUSED = b'{"lockOKMQSet":[]}'


class StandInAdmin:
    """Answers every request in the same way, and keeps their codes."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[int] = []

    async def __aenter__(self) -> StandInAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(self, address: str, code: int, *_: object) -> RemotingCommand:
        self.asked.append(code)
        if isinstance(self.answer, Exception):
            raise self.answer
        return RemotingCommand(code=0, body=self.answer)


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leader_of(admin: Admin, broker: str) -> str:
        return "address"

    monkeypatch.setattr(contention, "leader_of", leader_of)


def recorded(path: Path) -> list[LockRequested]:
    return [event for _, event in read_history(path).later]


@pytest.mark.usefixtures("leader")
@pytest.mark.parametrize(
    ("unlock", "answer", "outcome", "granted", "held"),
    [
        (False, GRANTED, Outcome.OK, True, True),
        (False, REFUSED, Outcome.OK, False, False),
        (True, b"", Outcome.OK, False, False),
        (False, b"nonsense", Outcome.UNKNOWN, False, True),
        (False, BrokerRefused(14, "[NOT_LEADER]", "x"), Outcome.UNKNOWN, False, True),
        (False, BrokerUnreachable("no answer", outcome_unknown=True), Outcome.UNKNOWN, False, True),
        (True, BrokerUnreachable("no answer", outcome_unknown=True), Outcome.UNKNOWN, False, True),
    ],
)
async def test_lock_request_outcomes(
    tmp_path: Path,
    unlock: bool,
    answer: bytes | Exception,
    outcome: Outcome,
    granted: bool,
    held: bool,
) -> None:
    admin = StandInAdmin(answer)
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        client = Contender(cast(Admin, admin), history, "c", "G")
        client.held |= {QUEUE} if unlock else set()
        await client.ask(QUEUE, unlock=unlock)
    started, ended = recorded(tmp_path / "h.jsonl")
    assert (started.outcome, ended.outcome, ended.granted) == (Outcome.OPEN, outcome, granted)
    assert {(one.op, one.process, one.group, one.unlock) for one in (started, ended)} == {
        (started.op, "c", "G", unlock)
    }
    assert (ended.topic, ended.broker, ended.queue) == ("T", "b", 3)
    assert (QUEUE in client.held, client.doubtful) == (held, outcome is Outcome.UNKNOWN)
    expected = RequestCode.UNLOCK_BATCH_MQ if unlock else RequestCode.LOCK_BATCH_MQ
    assert admin.asked == [expected]


@pytest.mark.usefixtures("leader")
async def test_contender_without_an_answer_retires_and_gets_a_new_name(tmp_path: Path) -> None:
    admin = StandInAdmin(BrokerUnreachable("no answer", outcome_unknown=True))
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        client = Contender(cast(Admin, admin), history, "c", "G")
        await client.ask(QUEUE, unlock=False)
        await client.retire()
        assert (client.name, client.doubtful, client.held) == ("c", True, {QUEUE})
        admin.answer = b""
        await client.retire()
        assert (client.name, client.doubtful, client.held) == ("c.1", False, set())
    requested = [one for one in recorded(tmp_path / "h.jsonl") if one.outcome is Outcome.OPEN]
    assert [one.unlock for one in requested] == [False, True, True]
    assert {one.process for one in requested} == {"c"}


async def test_contender_without_a_leader_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(admin: Admin, broker: str) -> str:
        raise BrokerRefused(14, "nobody leads b", "name server")

    monkeypatch.setattr(contention, "leader_of", nobody)
    admin = StandInAdmin(GRANTED)
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        client = Contender(cast(Admin, admin), history, "c", "G")
        await client.ask(QUEUE, unlock=False)
    assert [one.outcome for one in recorded(tmp_path / "h.jsonl")] == [Outcome.OPEN, Outcome.FAIL]
    assert (admin.asked, client.held) == ([], set())


@pytest.mark.usefixtures("leader")
async def test_contenders_lock_few_queues_until_they_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "Admin", lambda *_, **__: StandInAdmin(GRANTED))
    queues = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(3)]
    contest = Contention(clients=2, queues=2, pause_s=0.001)
    tasks = Tasks()
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        env = Environment("", history, random.Random(1))
        async with AsyncExitStack() as stack:
            await contest.start(stack, tasks, "locks", env, queues)
            await until(lambda: history.next_op() > 50)
            contest.stop()
            await tasks.finish()
    requested = recorded(tmp_path / "h.jsonl")
    assert {one.process for one in requested} == {"locks-contender-0", "locks-contender-1"}
    assert {(one.broker, one.queue) for one in requested} == {("a", 0), ("b", 0)}
    assert {one.group for one in requested} == {"locks-contest"}
    last = {one.process: one for one in requested}
    assert all(one.unlock for one in last.values())  # their locks were released
