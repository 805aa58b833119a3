"""Which routes are kept, and until when."""

from __future__ import annotations

import logging

import pytest

from raftmq.client import NameServerUnreachable, NoRoute
from raftmq.client import metadata as directory
from raftmq.client.metadata import Directory
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from tests.waiting import until


class Names:
    """A name server: its topics, and the broker ids that it knows of the group "g"."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.ids: tuple[int, ...] = (0, 1)
        self.answers = True
        self.cluster_code = 0
        self.asked = 0

    async def invoke(self, command: RemotingCommand) -> RemotingCommand:
        if not self.answers:
            raise NameServerUnreachable("nobody answered")
        group = {
            "brokerName": "g",
            "brokerAddrs": {one: f"127.0.0.1:{1 + one}" for one in self.ids},
        }
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = dumps({"brokerAddrTable": {"g": group} if self.ids else {}})
            return RemotingCommand.response_to(command, self.cluster_code, body=table)
        self.asked += 1
        if (command.ext or {})["topic"] not in self.topics or not self.ids:
            return RemotingCommand.response_to(command, ResponseCode.TOPIC_NOT_EXIST, "unknown")
        queues = {"brokerName": "g", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        body = {"queueDatas": [queues], "brokerDatas": [group]}
        return RemotingCommand.response_to(command, 0, body=dumps(body))


def made(names: Names) -> Directory:
    return Directory(names)  # type: ignore[arg-type]


async def test_deleted_topic_has_no_route_until_it_is_recreated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names("T", "U")
    kept = made(names)
    await kept.route("T")
    await kept.route("U")
    names.topics.remove("T")
    await kept.refresh_all()
    await kept.refresh_all()
    assert kept.route_if_known("T"), "a leader that has just registered tells its topics soon"
    names.topics.add("T")
    await kept.refresh_all()
    names.topics.remove("T")
    monkeypatch.setattr(directory, "UNUSED_TOPIC_S", 0.05)
    await kept.refresh_all()
    assert kept.route_if_known("T"), "what was said before it was there again is forgotten"
    await until(lambda: kept.topics == ("U",))  # asked again, by itself
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await kept.refresh_all()
    assert kept.route_if_known("T") is None and not caplog.records
    with pytest.raises(NoRoute):
        await kept.route("T")
    names.topics.add("T")
    assert await kept.route("T")


@pytest.mark.parametrize("ids, cluster_code", [((), 0), ((1,), 0), ((0, 1), 1)])
async def test_route_survives_a_name_server_without_its_leader(
    ids: tuple[int, ...], cluster_code: int
) -> None:
    """It has just started, the broker is down, nobody leads; or it does not say who does."""
    names = Names("T")
    kept = made(names)
    route = await kept.route("T")
    names.topics.clear()
    names.ids, names.cluster_code = ids, cluster_code
    for _ in range(3):
        await kept.refresh_all()
        with pytest.raises(NoRoute):
            await kept.refresh("T")
    assert kept.route_if_known("T") is route
    names.answers = False
    await kept.refresh_all()
    assert await kept.route("T") is route


async def test_unused_routes_are_removed_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "UNUSED_MAX", 2)
    monkeypatch.setattr(directory, "UNUSED_KEPT", 2)
    names = Names("a", "b", "c", "d")
    kept = made(names)
    for topic in "abcd":
        await kept.route(topic)
    for _ in range(5):
        await kept.refresh_all()
        kept.route_if_known("c")
    assert kept.topics == ("c", "d"), "so many are kept, used or not"
    requested = names.asked
    assert await kept.route("a") and names.asked == requested + 1
