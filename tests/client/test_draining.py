"""Waiting for a draining broker group, through changes of the leader and refusals."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client.admin import draining, until_empty
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.mqadmin.command import Arguments, CommandError, Done
from raftmq.mqadmin.drain import drain_group

LEFT = {"isEmpty": False, "remainder": "2 of T", "emptyAtMs": None}
EMPTY = {"isEmpty": True, "remainder": "", "emptyAtMs": 1}
REFUSED = BrokerRefused(1, "busy", "h:1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "POLL_S", 0.0)


def admin_of(answers: list[Any]) -> Any:
    """The last answer is repeated. An answer None: the group has no leader."""

    async def leaders() -> dict[str, str]:
        if answers[0] is None:
            answers.pop(0)
            return {}
        return {"b": "h:1"}

    async def drain(address: str, op: str, options: dict[str, str] | None = None) -> dict[str, Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ClientError):
            raise answer
        result: dict[str, Any] = answer
        return result

    async def info() -> Any:
        return SimpleNamespace(brokers={"b": None}, leaders={"b": "h:1"})

    cluster = SimpleNamespace(leaders=leaders, info=info)
    return SimpleNamespace(cluster=cluster, broker=SimpleNamespace(drain=drain))


async def wait(answers: list[Any], timeout_s: float) -> tuple[dict[str, Any], list[str]]:
    admin = admin_of(answers)
    said: list[str] = []

    async def leader() -> str | None:
        return (await admin.cluster.leaders()).get("b")

    return await until_empty(admin, leader, timeout_s, said.append), said


async def test_drain_wait_prints_each_change_and_repeats_after_errors() -> None:
    status, said = await wait([LEFT, LEFT, None, REFUSED, LEFT, EMPTY], 60.0)
    assert status is EMPTY
    assert said == [
        "2 of T",
        "the broker group has no leader at the moment",
        "h:1 answered: busy",
        "2 of T",
    ]


async def test_drain_wait_prints_the_estimate() -> None:
    estimated = LEFT | {"emptyAtMs": (time.time() + 600) * 1000}
    assert (await wait([estimated, EMPTY], 60.0))[1] == ["2 of T; empty in about 10 min"]


async def test_last_attempt_decides_at_the_drain_time_out() -> None:
    assert await wait([LEFT], 0.0) == (LEFT, [])
    with pytest.raises(BrokerRefused):
        await wait([REFUSED], 0.0)


async def test_mqadmin_drain_fails_unless_the_group_is_empty_in_time() -> None:
    given = {"brokerName": "b", "cancel": False}
    (done,) = await drain_group(admin_of([LEFT, EMPTY]), Arguments(given | {"wait": 60.0}))
    assert isinstance(done, Done) and done.sentence == "b is empty"
    (done,) = await drain_group(admin_of([LEFT]), Arguments(given))
    assert isinstance(done, Done) and done.sentence == "b is draining"
    with pytest.raises(CommandError, match="b is not empty after 0 s: 2 of T"):
        await drain_group(admin_of([LEFT]), Arguments(given | {"wait": 0.0}))
