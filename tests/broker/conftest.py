"""Fixtures of most of the broker's tests: a group of one replica, its broker, and its HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from raftmq.broker.broker import Broker
from tests.broker.cluster import Group
from tests.broker.http.client import Client


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with Group(tmp_path) as one:
        yield one


@pytest_asyncio.fixture
async def broker(group: Group) -> Broker:
    return await group.leading()


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client(broker.http.address) as one:
        yield one
