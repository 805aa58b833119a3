"""Every scenario against every cluster: ours with a leader killed in each, and Apache's, which is
killed and started again in some of them here (it takes seconds) and in all by `make interop`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tests.client.scenarios import consuming, producing
from tests.client.scenarios.providers import ApacheCluster, Cluster, RaftCluster

Scenario = Callable[[Cluster], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (*producing.SCENARIOS, *consuming.SCENARIOS)
# What is ours only.
NOT_SERVED_BY_APACHE: frozenset[Scenario] = frozenset({producing.idempotent_sends})
# One of each kind of promise: acknowledged messages, later ones, halves, offsets, locks.
KILLED_WITH_APACHE: frozenset[Scenario] = frozenset(
    {
        producing.single_sends,
        producing.sends_with_callbacks,
        producing.delayed_messages,
        producing.transactions,
        producing.request_and_reply,
        consuming.retries,
        consuming.orderly,
        consuming.pulling,
        consuming.lite_pulling,
        consuming.a_lite_consumer_is_asked,
    }
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def raft(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RaftCluster]:
    async with RaftCluster(tmp_path_factory.mktemp("raft")) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apache(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApacheCluster]:
    async with ApacheCluster(tmp_path_factory.mktemp("apache")) as cluster:
        yield cluster


def name_of(scenario: Scenario) -> str:
    return scenario.__name__


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
async def test_scenario_on_a_raft_cluster(raft: RaftCluster, scenario: Scenario) -> None:
    killed = raft.killed
    await scenario(raft)
    assert raft.killed > killed, "a scenario kills a leader"


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario", [s for s in SCENARIOS if s not in NOT_SERVED_BY_APACHE], ids=name_of
)
async def test_scenario_on_an_apache_cluster(apache: ApacheCluster, scenario: Scenario) -> None:
    killed, apache.kills = apache.killed, scenario in KILLED_WITH_APACHE
    await scenario(apache)
    assert (apache.killed > killed) is apache.kills
