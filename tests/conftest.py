"""Settings of all tests.

How full the machine's own disk is decides nothing: brokers that tests start as processes, and do
not fill themselves, take sends to the last byte. (Brokers of the tests' own process stand on a
tests.steadydisk.)
"""

import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_LEVEL_RATIO", "100")
os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_FREE_BYTES", "1")
# Tests of Spark share a process, because a JVM for a single file has done half of its work when it
# is warm.
SPARK = ("tests/spark/", "tests/audit/test_engines", "tests/audit/read/test_spark_sources")
PYSPARK_LOGGERS = {"DataFrameQueryContextLogger", "SQLQueryContextLogger"}
# Files that take a minute or more each, of which one would be waited for alone at the end.
BEGUN_FIRST = ("tests/simulator/", "tests/compose/", "tests/browser/", *SPARK)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which then looks at the tests' own objects
    alone. A full collection of all 480,000 objects takes 0.3 s, often in the middle of a test."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with these; all else stays in its order."""
    items.sort(key=lambda item: not item.nodeid.startswith(BEGUN_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Let PySpark's loggers propagate again. While they do not, pytest adds its handler to them,
    and they give it a JSON formatter, which the logs of all later tests would have."""
    try:
        return (yield)
    finally:
        for name in PYSPARK_LOGGERS & logging.root.manager.loggerDict.keys():
            logging.getLogger(name).propagate = True


class Scheduling(LoadFileScheduling):
    """A file goes to a process, and all that use Spark go to the same."""

    def _split_scope(self, nodeid: str) -> str:
        return "Spark" if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
