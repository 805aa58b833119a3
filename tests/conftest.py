"""Settings of all tests.

How full the machine's own disk is decides nothing: brokers that tests start as processes, and do
not fill themselves, take sends to the last byte. (Brokers of the tests' own process stand on a
tests.steadydisk.)
"""

import os

import pytest

os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_LEVEL_RATIO", "100")
os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_FREE_BYTES", "1")
# A room whose files take minutes each, of which one would be waited for alone at the end.
BEGUN_FIRST = "simulator"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with it; all else stays in its order."""
    items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(BEGUN_FIRST))
