"""Pages of the messages of several groups, merged."""

from typing import Any

import pytest
from aiohttp import web

from raftmq.namesrv.http.message_pages import marks_of, merged_newest, merged_oldest
from raftmq.web.paging import encode_cursor
from raftmq.web.problem import ApiProblem
from tests.namesrv.http.nodes import FakeCluster, replicas
from tests.namesrv.http.test_cluster_api import Caller
from tests.namesrv.http.test_topic_messages import message


def test_newest_messages_continue_before_the_last_shown_of_each_group() -> None:
    pages: dict[str, Any] = {
        "a": {"items": [message(50, 9), message(40, 3)], "next": "40"},
        "b": {"items": [message(70, 8), message(60, 7)], "next": None},
        "c": {"items": [message(5, 1)], "next": None},
    }
    items, following = merged_newest(pages, {"c": 6}, 3)
    assert [item["commitLogOffset"] for item in items] == [50, 70, 60]
    assert marks_of(following or "", "before") == {"a": 50, "b": -1, "c": 6}
    assert merged_newest({"b": pages["b"]}, {"a": -1}, 9)[1] is None
    with pytest.raises(ApiProblem):
        marks_of(encode_cursor('{"a": "x"}'), "before")


def test_oldest_messages_end_at_the_first_truncated_page() -> None:
    pages: dict[str, Any] = {
        "a": {"items": [message(50, 1), message(60, 3)], "next": "70"},
        "b": {"items": [message(20, 2), message(30, 3), message(40, 4)], "next": None},
    }
    items, following = merged_oldest(pages, {"c": -1}, 9)
    assert [item["commitLogOffset"] for item in items] == [50, 20, 60, 30]
    assert marks_of(following or "", "cursor") == {"a": 70, "b": 31, "c": -1}
    items, following = merged_oldest(pages, {}, 1)
    assert [item["commitLogOffset"] for item in items] == [50]
    assert marks_of(following or "", "cursor") == {"a": 51}
    assert merged_oldest({"b": pages["b"]}, {"a": 7}, 9)[1] is None


async def test_merged_messages_of_a_time_have_every_message_once() -> None:
    """One group's pages are cut earlier than what was asked for, as by their size."""

    def answer(times: range, page: int) -> Any:
        def answered(request: web.Request, _: bytes) -> tuple[int, Any]:
            start = int(request.query.get("cursor", 0))
            limit = min(page, int(request.query["limit"]))
            left = [message(time * 10, time) for time in times if time * 10 >= start]
            following = str(left[limit]["commitLogOffset"]) if len(left) > limit else None
            return 200, {"items": left[:limit], "next": following}

        return answered

    async with FakeCluster(*replicas(), *replicas("broker-b")) as cluster:
        call = Caller(cluster)
        path = ("GET", "/api/v1/messages")
        cluster.nodes["n0"].answers[path] = answer(range(0, 30, 3), 2)
        cluster.nodes["n3"].answers[path] = answer(range(1, 60, 5), 99)
        seen = await call.times_of_all_pages("/messages?topic=Orders&startMs=0&limit=6&cursor=")
        await call.session.close()
    assert seen == sorted([*range(0, 30, 3), *range(1, 60, 5)])


@pytest.mark.parametrize(
    ("path", "name"),
    [("messages?topic=Orders&startMs=0", "cursor"), ("topics/Orders/messages?", "before")],
)
async def test_cursor_keeps_the_mark_of_a_failed_group(path: str, name: str) -> None:
    """Its mark is not lost."""
    async with FakeCluster(*replicas(), *replicas("broker-b")) as cluster:
        call = Caller(cluster)
        requested = ("GET", "/api/v1/" + path.partition("?")[0])
        first, second = cluster.nodes["n0"], cluster.nodes["n3"]
        first.answers[requested] = (200, {"items": [message(10, 1)], "next": None})
        second.answers[requested] = (503, {"title": "no leader"})
        cursor = encode_cursor('{"broker-a": 5, "broker-b": 777}')
        page = await call.get(f"/{path}&{name}={cursor}")
        assert [error["group"] for error in page["errors"]] == ["broker-b"]
        assert marks_of(page["next"] or "", name) == {"broker-a": -1, "broker-b": 777}
        second.answers[requested] = (200, {"items": [message(800, 2)], "next": None})
        page = await call.get(f"/{path}&{name}={page['next']}")
        assert [item["commitLogOffset"] for item in page["items"]] == [800]
        assert (page["next"], page["errors"]) == (None, [])
        await call.session.close()
