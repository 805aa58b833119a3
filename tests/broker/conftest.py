"""Fixtures of most of the broker's tests: a group of one replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.broker.cluster import Group


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with Group(tmp_path) as one:
        yield one
