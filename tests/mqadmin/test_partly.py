"""Changes at several brokers of which a later one refuses: the error says where they were made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.client.admin import Admin
from raftmq.client.admin.cluster import ClusterInfo
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import BrokerData
from raftmq.mqadmin.command import Arguments
from raftmq.mqadmin.commands import COMMANDS

FIRST, SECOND = "127.0.0.1:1", "127.0.0.1:2"
GROUPS = {name: BrokerData("c", name, {0: a}) for name, a in (("a", FIRST), ("b", SECOND))}


class Section:
    """Does whatever it is asked, except at the second broker."""

    def __getattr__(self, name: str) -> Any:
        async def ask(address: str, *_: object, **__: object) -> dict[str, object]:
            if name in ("config", "configs"):
                return {"g": {}, "readQueueNums": 1, "writeQueueNums": 1}
            if address == SECOND:
                raise BrokerRefused(1, "no", address)
            return {}

        return ask


class Cluster:
    """Two broker groups, a and b, in one cluster."""

    async def info(self) -> ClusterInfo:
        return ClusterInfo(GROUPS, {"c": ("a", "b")})

    async def groups_of(self, topic: str) -> dict[str, BrokerData]:
        return GROUPS


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("updateTopic", {"topic": "T"}),
        ("updateTopicPerm", {"topic": "T", "perm": 4}),
        ("deleteTopic", {"topic": "T"}),
        ("emptyTopic", {"topic": "T"}),
        ("updateSubGroup", {"groupName": "g"}),
        ("deleteSubGroup", {"groupName": "g"}),
        ("setConsumeMode", {"groupName": "g", "topicName": "T", "mode": "POP"}),
        ("updateBrokerConfig", {"key": "k", "value": "v"}),
        ("cleanExpiredCQ", {"cluster": "c"}),
        ("deleteExpiredCommitLog", {"cluster": "c"}),
    ],
)
async def test_rejected_change_lists_brokers_already_changed(
    command: str, values: dict[str, object]
) -> None:
    (expected,) = (one for one in COMMANDS if one.name == command)
    parts = dict.fromkeys(("topic", "group", "broker", "offset", "name_server"), Section())
    admin = cast(Admin, SimpleNamespace(cluster=Cluster(), **parts))
    with pytest.raises(BrokerRefused) as caught:
        await expected.load()(admin, Arguments({"clusterName": "c"} | values))
    assert caught.value.__notes__ == [f"already changed: {FIRST}"]


async def test_rejected_change_has_no_note_if_no_broker_was_changed() -> None:
    with pytest.raises(BrokerRefused) as caught:
        await at_each([SECOND, FIRST], Section().put)
    assert not hasattr(caught.value, "__notes__")
