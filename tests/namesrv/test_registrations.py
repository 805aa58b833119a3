"""Many large registrations at once, as after an outage: their order, and what is done only once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from raftmq.namesrv import registrations
from raftmq.namesrv.registrations import SMALL_BYTES, WaitingList
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting import registration
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.fair_scheduling import Steps, StepTurns, finish
from raftmq.remoting.memory_limits import TASK_BYTES
from raftmq.remoting.registration import (
    BodyLimits,
    DataVersion,
    KnownLines,
    TopicConfig,
    encode_register_body,
    reading_register_body,
)
from tests.instances import instances_of
from tests.namesrv.test_server import Caller

GROUPS, REPLICAS = 5, 3
TOPICS = [
    TopicConfig(f"a-topic-of-all-groups-{number * 7919:07x}", 4, 4, 6) for number in range(3_000)
]
WITHOUT_HTTP = NameServerConfig("127.0.0.1", 0, http_enable=False)


class Turn:
    """A call of `turn`, which ends when it may."""

    def __init__(self, waiting_list: WaitingList, key: str, log: list[str]) -> None:
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._run(waiting_list, key, log))

    async def _run(self, waiting_list: WaitingList, key: str, log: list[str]) -> bool:
        async with waiting_list.turn(key) as has_turn:
            if has_turn:
                log.append(key)
                await self.may_end.wait()
            return has_turn


async def test_registration_turns_are_in_order_and_a_repetition_keeps_its_turn() -> None:
    waiting_list, log = WaitingList(), list[str]()
    first, second, third = (Turn(waiting_list, key, log) for key in "abc")
    await asyncio.sleep(0.01)
    again = Turn(waiting_list, "b", log)
    assert not await second.task
    assert log == ["a"] and waiting_list.is_taken
    first.may_end.set()
    assert await first.task
    await asyncio.sleep(0.01)
    assert log == ["a", "b"]
    again.may_end.set()
    third.may_end.set()
    assert await again.task and await third.task
    assert log == ["a", "b", "c"] and not waiting_list.is_taken


async def test_cancelled_registration_gives_its_turn_to_the_next() -> None:
    waiting_list, log = WaitingList(), list[str]()
    first, waits, called, last = (Turn(waiting_list, key, log) for key in "abcd")
    await asyncio.sleep(0.01)
    waits.task.cancel()
    await asyncio.wait([waits.task])
    first.may_end.set()
    while not first.task.done():  # noqa: ASYNC110 - a turn of the loop, and no more
        await asyncio.sleep(0)
    called.task.cancel()  # it has been called, and has not noticed
    last.may_end.set()
    assert await last.task
    assert log == ["a", "d"] and not waiting_list.is_taken
    raised = Turn(waiting_list, "e", log)
    await asyncio.sleep(0.01)
    raised.task.cancel()
    await asyncio.wait([raised.task])
    assert not waiting_list.is_taken


async def test_returning_brokers_are_read_in_order_and_each_line_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group's replicas send the same body, and groups differ in the version only."""
    reading = most = 0
    read, parsed = list[bytes](), list[str]()
    checked = registration.topic_problem

    def counted(body: bytes, *more: Any) -> Steps[tuple[DataVersion, list[TopicConfig]]]:
        nonlocal reading, most
        read.append(body)
        reading += 1
        most = max(most, reading)
        try:
            return (yield from reading_register_body(body, *more))
        finally:
            reading -= 1

    def parsing(topic: TopicConfig) -> str:
        parsed.append(topic.topic)
        return checked(topic)

    known_lines = instances_of(monkeypatch, KnownLines)
    monkeypatch.setattr(registrations, "reading_register_body", counted)
    monkeypatch.setattr(registration, "topic_problem", parsing)
    monkeypatch.setattr("raftmq.namesrv.server.StepTurns", partial(StepTurns, 0.0))
    async with NameServer(WITHOUT_HTTP) as server:
        callers = [Caller(server.address) for _ in range(GROUPS * REPLICAS)]
        answers = await asyncio.gather(*(
            caller.register(
                f"n{number}:1",
                number % REPLICAS,
                DataVersion(1, 0, number // REPLICAS),
                TOPICS,
                broker_name=f"g{number // REPLICAS}",
                raft_term=1,
            )
            for number, caller in enumerate(callers)
        ))  # fmt: skip
        assert {answer.code for answer in answers} == {0}
        assert server.table.topic_entry_count == GROUPS * len(TOPICS)
        (lines,) = known_lines
        assert not lines.known  # while they are needed only
        await asyncio.gather(*(caller.remoting.close() for caller in callers))
    assert len(read) == len(set(read)) == GROUPS
    assert most == 1
    assert len(parsed) == len(TOPICS)


async def test_repeated_registration_waits_once_and_a_small_one_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = instances_of(monkeypatch, WaitingList)
    async with NameServer(WITHOUT_HTTP) as server:
        caller = Caller(server.address)
        _, waiting_list = lists  # of the signed, and of the unsigned
        async with waiting_list.turn("another"):
            waiting = [
                asyncio.create_task(caller.register("n0:1", 0, topics=TOPICS)) for _ in range(3)
            ]
            done, (last,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 2:
                more, (last,) = await asyncio.wait([last, *waiting], return_when="FIRST_COMPLETED")
                done |= more
            assert {one.result().code for one in done} == {ResponseCode.SYSTEM_BUSY}
            assert len(encode_register_body(DataVersion(), TOPICS)) > SMALL_BYTES
            small = await caller.register("n9:1", 0, broker_name="small")
            assert small.code == 0
            assert server.table.broker_count == 1
        assert (await last).code == 0
        assert server.table.broker_count == 2
        await caller.remoting.close()


async def test_waiting_registrations_are_limited_and_followers_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Above the budget of slow requests they are rejected. A follower's topics are not needed."""
    size = len(encode_register_body(DataVersion(), TOPICS))
    lists = instances_of(monkeypatch, WaitingList)
    async with NameServer(WITHOUT_HTTP) as server:
        server.budgets.work.bytes_max = 3 * size + 4 * TASK_BYTES
        callers = [Caller(server.address) for _ in range(5)]
        assert (await callers[0].register("n0:1", 0, topics=TOPICS)).code == 0
        async with lists[1].turn("another"):
            follower = await callers[0].register("n1:1", 1, DataVersion(7), TOPICS)
            assert follower.code == 0
            waiting = {
                asyncio.create_task(
                    caller.register(f"m{number}:1", 0, topics=TOPICS, broker_name=f"g{number}")
                )
                for number, caller in enumerate(callers)
            }
            while len(waiting) > 3:
                done, waiting = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
                assert {one.result().code for one in done} == {ResponseCode.SYSTEM_BUSY}
        assert {answer.code for answer in await asyncio.gather(*waiting)} == {0}
        await asyncio.gather(*(caller.remoting.close() for caller in callers))


def test_remembered_registration_lines_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(topics: list[TopicConfig]) -> list[TopicConfig]:
        body = encode_register_body(DataVersion(), topics)
        steps = reading_register_body(body, True, BodyLimits(), lines)
        return finish(steps)[1]

    monkeypatch.setattr(registration, "LINES_MAX", 2)
    lines = KnownLines()
    with lines.used():
        with lines.used():
            long = TopicConfig("l" * 250, 1, 1, 6)
            assert read([long, *TOPICS[:3]]) == [long, *TOPICS[:3]]
            assert [topic for topic in lines.known.values()] == TOPICS[:2]
        assert read(TOPICS[:1])[0] is lines.known[b"%b 4 4 6 SINGLE_TAG" % TOPICS[0].topic.encode()]
    assert not lines.known
    assert read(TOPICS[:1]) == TOPICS[:1] and not lines.known
