"""Answers that are kept for a while."""

import asyncio

import pytest

from raftmq.proxy import cache as remembered
from raftmq.proxy.cache import AnswerCache
from raftmq.proxy.protocol.messaging_pb2 import Code
from raftmq.proxy.server import Tasks
from raftmq.proxy.status_codes import StatusError
from tests.proxy.test_cluster import caller, timed
from tests.waiting import until


class Asked:
    """Answers what it holds; None in its place: it never answers."""

    def __init__(self, value):
        self.value = value
        self.count = 0

    async def __call__(self, _):
        self.count += 1
        if self.value is None:
            await asyncio.Event().wait()
        if isinstance(self.value, StatusError):
            raise self.value
        return self.value


@pytest.fixture
async def known(monkeypatch):
    monkeypatch.setattr(remembered, "KNOWN_S", 0.0)  # old at once
    monkeypatch.setattr(remembered, "OLD_S", 0.1)
    tasks = Tasks()
    yield AnswerCache(tasks.spawn, "otherwise")
    await tasks.stop()


async def test_cached_answer_serves_while_a_single_request_is_pending(known):
    assert await known.get("n", caller(), Asked("first")) == "first"
    silent = Asked(None)
    for _ in range(3):
        result, took_s = await timed(known.get("n", caller(), silent))
        assert result == "first" and took_s < 1
    together = await asyncio.gather(*(known.get("n", caller(), silent) for _ in range(5)))
    assert together == ["first"] * 5 and silent.count == 1


async def test_newer_answer_replaces_the_cached_one(known):
    assert await known.get("n", caller(), Asked("first")) == "first"
    assert await known.get("n", caller(), Asked("second")) == "second"
    refused = Asked(StatusError(Code.PROXY_TIMEOUT, "nobody"))
    for count in (1, 2):
        assert await known.get("n", caller(), refused) == "second"
        await until(lambda: not known._asking)
        assert refused.count == count
    with pytest.raises(StatusError):
        await known.get("other", caller(), refused)


async def test_fresh_answer_is_not_requested_again_and_the_cache_is_limited(known, monkeypatch):
    monkeypatch.setattr(remembered, "KNOWN_S", 60.0)
    monkeypatch.setattr(remembered, "KNOWN_MAX", 2)
    requested = Asked("x")
    for name in ("a", "a", "b", "b", "c", "c", "b"):
        assert await known.get(name, caller(), requested) == "x"
    assert requested.count == 3
    assert await known.get("a", caller(), requested) == "x"
    assert requested.count == 4, "it was evicted"
