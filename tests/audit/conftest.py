"""One Spark session for a process; what third parties warn about is excused here alone."""

import os
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from raftmq.audit.engine.frames import Engine
from raftmq.audit.engine.local_engine import local_engine
from raftmq.audit.session import session
from tests.archives import unpack
from tests.audit import bucket
from tests.leftovers import leftovers_collected as leftovers_collected
from tests.smallspark import JVM

# py4j and pyspark leave their sockets to the garbage collector.
EXCUSED = [
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for excuse in EXCUSED:
                item.add_marker(pytest.mark.filterwarnings(excuse))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small data: one shuffle partition, and no code compiled that is run a few times only."""
    of_jvm = JVM | bucket.environment("tasks")
    os.environ |= of_jvm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with session() as running:
            running.conf.set("spark.sql.shuffle.partitions", "1")
            running.conf.set("spark.sql.codegen.wholeStage", "false")
            running.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            for name in of_jvm:
                del os.environ[name]  # the JVM runs now; nobody else shall inherit it
            yield running


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with local_engine() as started:
        yield started


FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def apache_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classic store as Apache RocketMQ 5.3.3 left it, unpacked."""
    directory = tmp_path_factory.mktemp("apache")
    with tarfile.open(FIXTURES / "apache-5.3.3-async-master.tar.xz") as archive:
        unpack(archive, directory)
    return directory / "store"
