"""Proxies of tests stop fast, and what a test times is not the machine."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from raftmq.proxy import server
from tests.steadyloop import SteadyLoop

TIMED = ("test_cache.py", "test_cluster.py")


@pytest.fixture(autouse=True)
def _proxies_stop_fast(monkeypatch):
    monkeypatch.setattr(server, "STOP_S", 0.5)


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": SteadyLoop if item.path.name in TIMED else asyncio.new_event_loop}
