"""Every scenario against every cluster: ours with a leader killed in each, and Apache's."""

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

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
async def test_raft(raft: RaftCluster, scenario: Scenario) -> None:
    killed = raft.killed
    await scenario(raft)
    assert raft.killed > killed, "a scenario kills a leader"


@pytest.mark.parametrize(
    "scenario", [s for s in SCENARIOS if s not in NOT_SERVED_BY_APACHE], ids=name_of
)
async def test_apache(apache: ApacheCluster, scenario: Scenario) -> None:
    await scenario(apache)
