"""The Spark session of tests/audit, and a Raft group of three processes that Spark reads from."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from tests.audit.conftest import EXCUSED
from tests.audit.conftest import apache_store as apache_store
from tests.audit.conftest import spark as spark
from tests.leftovers import leftovers_collected as leftovers_collected

SETTINGS = {
    "mappedFileSizeCommitLog": "16MiB",
    "defaultTopicQueueNums": "3",
    # What a test shows is no failover, but where it makes one.
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "6000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for excuse in EXCUSED:
                item.add_marker(pytest.mark.filterwarnings(excuse))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("spark") / "c"

    async def up() -> None:
        made = Cluster(directory)
        try:
            await made.up(settings=SETTINGS)
        finally:
            await made.close()

    async def down() -> None:
        made = Cluster(directory)
        try:
            await made.down()
        finally:
            await made.close()

    asyncio.run(up())
    yield Cluster(directory)
    asyncio.run(down())
