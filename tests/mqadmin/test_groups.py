"""Which groups consumerProgress lists, and what is left for them to consume."""

from raftmq.client.admin.bodies import Progress
from raftmq.mqadmin.groups import groups_with_retries


def test_a_retry_topic_of_pops_is_no_group():
    topics = ["orders", "bills", "%RETRY%shop", "%RETRY%shop_orders", "%RETRY%shop_other"]
    assert groups_with_retries(topics) == ["shop", "shop_other"]
    assert groups_with_retries(["orders", "%RETRY%billing_orders"]) == ["billing_orders"]


def test_an_offset_beyond_the_end_leaves_nothing_to_consume():
    assert [Progress(5, at, at, 0).behind for at in (3, 5, 9)] == [2, 0, 0]
