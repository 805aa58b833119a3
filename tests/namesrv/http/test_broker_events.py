"""The events that are remembered: which, and how many."""

import pytest

from raftmq.namesrv.http import broker_events as remembered
from raftmq.namesrv.http.broker_events import RememberedEvents

SIZE = len('{"at":10}')


def at(events: RememberedEvents, group: str) -> list[int]:
    return [event["at"] for event in events.of(group)]


def test_a_group_has_its_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_beyond_the_bound_who_says_most_is_forgotten_first() -> None:
    events = RememberedEvents(bytes_max=5 * SIZE)
    events.add("quiet", {"at": 10})
    for number in range(20, 30):
        events.add("loud", {"at": number})
    assert at(events, "quiet") == [10] and at(events, "loud") == [26, 27, 28, 29]
    events.add("loud", {"at": 30, "detail": "x" * 1_000})  # larger than all that is kept
    assert at(events, "quiet") == [10] and at(events, "loud") == []
    assert events.size_bytes == SIZE
