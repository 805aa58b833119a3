"""Which groups consumerProgress lists, and what is left for them to consume; and consumers whose
subscriptions differ."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.client.admin import Admin
from raftmq.client.admin.bodies import Progress
from raftmq.mqadmin.command import Arguments, Fields, Table
from raftmq.mqadmin.groups import consumer_status, groups_with_retries


def test_consumer_progress_lists_no_pop_retry_topic_as_group():
    topics = ["orders", "bills", "%RETRY%shop", "%RETRY%shop_orders", "%RETRY%shop_other"]
    assert groups_with_retries(topics) == ["shop", "shop_other"]
    assert groups_with_retries(["orders", "%RETRY%billing_orders"]) == ["billing_orders"]


def test_lag_is_zero_for_an_offset_beyond_the_end():
    assert [Progress(5, at, at, 0).behind for at in (3, 5, 9)] == [2, 0, 0]


class Consumers:
    """Stands for the cluster, and for a group whose consumers report these subscriptions."""

    def __init__(self, subscribed: dict[str, str]) -> None:
        self._subscribed = subscribed

    async def leaders(self) -> dict[str, str]:
        return {"broker-a": "127.0.0.1:1"}

    async def connection(self, address: str, group: str) -> dict[str, Any]:
        return {"connectionSet": [{"clientId": client} for client in self._subscribed]}

    async def running_info(self, *who: str, stack: bool) -> dict[str, Any]:
        reported = {"topic": "T", "expressionType": "TAG", "subString": self._subscribed[who[2]]}
        return {"subscriptionSet": [reported]}


@pytest.mark.parametrize(
    ("subscribed", "differing"),
    [
        ({"a": "x || y", "b": "y||x"}, []),
        ({"a": "x", "b": "y", "c": "x"},
         [{"clientId": "b", "topic": "T", "expression": "y", "others": "x"}]),
    ],
)  # fmt: skip
async def test_consumer_status_lists_consumers_with_deviating_subscriptions(
    subscribed: dict[str, str], differing: list[dict[str, str]]
) -> None:
    consumers = Consumers(subscribed)
    admin = cast(Admin, SimpleNamespace(cluster=consumers, group=consumers))
    parts = await consumer_status(admin, Arguments({"consumerGroup": "g"}))
    (same,) = (one.values for one in parts if isinstance(one, Fields) and "same" in one.values)
    assert same == {"same": not differing}
    rows = [one.rows for one in parts if isinstance(one, Table) and one.title == "differences"]
    assert rows == ([differing] if differing else [])
