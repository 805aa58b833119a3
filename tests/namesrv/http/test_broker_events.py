"""The events that are remembered: which, and how many."""

import asyncio

import pytest

from raftmq.namesrv.http import broker_events as remembered
from raftmq.namesrv.http.broker_events import RememberedEvents, Streams
from raftmq.namesrv.http.broker_http import Nodes
from raftmq.namesrv.http.cluster_token import ClusterToken
from raftmq.namesrv.http.reach import Contact
from tests.waiting import until

SIZE = len('{"at":10}')


def at(events: RememberedEvents, group: str) -> list[int]:
    return [event["at"] for event in events.of(group)]


async def test_followed_brokers_are_limited_to_the_number_of_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed: set[str] = set()

    async def keep(_: Streams, address: str) -> None:
        followed.add(address)
        try:
            await asyncio.Event().wait()
        finally:
            followed.remove(address)

    monkeypatch.setattr(Streams, "_keep", keep)
    streams = Streams(Nodes(ClusterToken(), lambda _: Contact()), lambda *_: None, 3)
    streams.follow(f"n{number}:1" for number in range(5))
    await asyncio.sleep(0)
    assert followed == {"n0:1", "n1:1", "n2:1"}
    streams.follow(("n2:1", "n4:1", "", "n4:1"))
    await until(lambda: followed == {"n2:1", "n4:1"})
    await streams.stop()
    assert not followed


def test_remembered_events_are_the_latest_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "EVENTS_MAX", 3)
    events = RememberedEvents()
    for number in range(10, 15):
        events.add("a", {"at": number})
    events.add("b", {"at": 20})
    assert at(events, "a") == [12, 13, 14] and at(events, "b") == [20] and at(events, "c") == []
    assert "a" in events and "c" not in events
    assert events.size_bytes == 4 * SIZE
    events.keep_only({"b", "c"})
    assert at(events, "a") == [] and at(events, "b") == [20]
    assert events.size_bytes == SIZE


def test_group_with_most_event_bytes_loses_its_oldest_events_first() -> None:
    events = RememberedEvents(bytes_max=5 * SIZE)
    events.add("quiet", {"at": 10})
    for number in range(20, 30):
        events.add("loud", {"at": number})
    assert at(events, "quiet") == [10] and at(events, "loud") == [26, 27, 28, 29]
    events.add("loud", {"at": 30, "detail": "x" * 1_000})  # larger than all that is kept
    assert at(events, "quiet") == [10] and at(events, "loud") == []
    assert events.size_bytes == SIZE
