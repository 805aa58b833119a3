"""Clients and the servers they are tested against share a loop, and its clock."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.steadyloop import SteadyLoop

COUNTED = "test_calls.py"  # calls are counted there, those of a loop as users have it


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name == COUNTED:
        return {"plain": asyncio.new_event_loop}
    return {"steady": SteadyLoop}
