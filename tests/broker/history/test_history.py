"""A broker's history: noted, asked for over HTTP, kept over a restart, outliving its leader."""

import errno

import pytest

from raftmq.broker.history import history as module
from raftmq.broker.history import ring
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.waiting import until

PERIOD_MS = 50


def last(answer, name, topic=None):
    result = [one for one in answer["series"] if (one["name"], one["topic"]) == (name, topic)]
    known = [value for one in result for value in one["values"] if value is not None]
    return known[-1] if known else None


async def asked(broker, **query):
    until_ms = broker.context.wall_ms()
    async with Client(broker.http.address) as client:
        answer = await client.get(
            "/api/v1/history", sinceMs=until_ms - 60_000, untilMs=until_ms, points=500, **query
        )
    assert answer.status == 200, answer.json
    assert len(answer.json["times"]) == len(answer.json["leading"])
    return answer.json


async def told(broker, check, **query):
    async def look():
        found = await asked(broker, **query)
        return found if check(found) else None

    return await until(look)


async def test_history_survives_the_leader_and_a_restart(tmp_path):
    async with Group(tmp_path, 3, historyPeriodMs=PERIOD_MS) as group:
        leader = await group.leading()
        name = leader.config.dleger_self_id
        await group.create_topic(leader, "T")
        await told(leader, lambda a: last(a, "messages") == 0, topic="T")
        for _ in range(5):
            await group.send(leader, "T")
        await group.pull(leader, "T", 0)
        assert (await group.commit(leader, "T", 0, 1)).code == 0
        seen = await told(leader, lambda a: last(a, "messages") == 5, topic="T")
        assert seen["leading"][-1] is True
        await told(leader, lambda a: last(a, "lag", "T") == 4, consumerGroup="cg")

        def stored(answer):
            (rates,) = [s["values"] for s in answer["series"] if s["name"] == "messagesInPerS"]
            return any(rates)

        await told(leader, stored)
        await group.kill(name)
        heir = await group.leading()
        await told(heir, lambda a: last(a, "messages") == 5, topic="T")
        await group.start(name)
        again = group.brokers[name]
        await until(lambda: again.life.serving)
        answer = await told(again, lambda a: None in a["leading"], topic="T")
        assert True in answer["leading"]  # from before its end


async def test_history_is_disabled_without_a_period(tmp_path):
    async with Group(tmp_path, 1, historyPeriodMs=0) as group:
        broker = await group.leading()
        async with Client(broker.http.address) as client:
            answer = await client.get("/api/v1/history")
            assert (answer.status, "historyPeriodMs" in answer.json["detail"]) == (404, True)
        assert not (tmp_path / "n0" / "history").exists()


async def test_history_rejects_invalid_queries(tmp_path):
    async with Group(tmp_path, 1) as group:
        broker = await group.leading()
        async with Client(broker.http.address) as client:
            for query in ({"sinceMs": 5, "untilMs": 5}, {"points": 0}, {"points": 501}):
                assert (await client.get("/api/v1/history", **query)).status == 422, query
            assert len((await client.get("/api/v1/history", sinceMs=0)).json["times"]) == 120


async def test_history_sample_has_only_the_busiest_topics(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    async with Group(tmp_path, 1, historyPeriodMs=0) as group:
        broker = await group.leading()
        for name, count in (("A", 1), ("B", 3), ("C", 2)):
            await group.create_topic(broker, name)
            for _ in range(count):
                await group.send(broker, name)
        assert set(broker.history.sample()["topics"]) == {"B", "C"}
        await group.send(broker, "A")
        assert "A" in broker.history.sample()["topics"]
        monkeypatch.setattr(module, "QUEUES_MAX", 1)
        assert broker.history.sample()["topics"] == {}


async def test_failed_history_write_is_reported_once(tmp_path, monkeypatch, caplog):
    async with Group(tmp_path, 1, historyPeriodMs=0) as group:
        broker = await group.leading()

        def full(*_):
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ring.Ring, "append", full)
            for _ in range(3):
                await broker.history.note()
        assert caplog.text.count("history_not_written") == 1
        await broker.history.note()
        assert await broker.history.spans(0, broker.context.wall_ms(), 1)


@pytest.fixture(autouse=True)
def warnings_only(caplog):
    caplog.set_level("WARNING")
