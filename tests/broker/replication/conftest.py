"""Parts of classic brokers, for tests of what becomes durable when."""

import pytest

from raftmq.store.commitlog.group_flusher import GroupFlusher
from tests.instances import instances_of


@pytest.fixture
def flushers(monkeypatch):
    """The flushers of the CommitLogs of classic brokers."""
    return instances_of(monkeypatch, GroupFlusher)
