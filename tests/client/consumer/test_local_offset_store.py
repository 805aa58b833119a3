"""Offsets that a broadcasting consumer keeps itself, in a storage of the user's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from raftmq.client.consumer.local_offset_store import LocalOffsetStore
from raftmq.client.message import MessageQueue

QUEUE = MessageQueue("T", "g0", 0)


class Broken:
    """Fails to save, but for the last time."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.saved: dict[MessageQueue, int] = {}

    def load(self) -> Mapping[MessageQueue, int]:
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.saved = dict(offsets)


async def test_storage_error_is_logged_and_the_save_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Broken(OSError(28, "disk full"), RuntimeError("no such table"))
    store = LocalOffsetStore(storage)
    store.table.start(QUEUE, 7)
    for text in ("disk full", "no such table"):
        assert await store.commit_confirmed() == {}
        assert text in caplog.text
    assert await store.commit_confirmed() == {QUEUE: 7} == storage.saved
