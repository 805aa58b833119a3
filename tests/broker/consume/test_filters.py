"""Whose retry a message is, in topics whose name two pairs of group and topic share."""

import pytest

from raftmq.broker.consume.filters import Filter, own_retries, parse_expression, parse_tags
from raftmq.store.properties import PROPERTIES_SIZE_BYTES_MAX
from tests.present import present

ALL = Filter()
SHARED = "%RETRY%orders_eu_payments"  # of orders with eu_payments, and orders_eu with payments
OWN = {"ORIGIN_GROUP": "orders", "RETRY_TOPIC": "eu_payments", "1ST_POP_TIME": "1"}


def seen(topic, group, properties, wanted=ALL):
    return present(own_retries(wanted, topic, group).matcher).matches(properties)


@pytest.mark.parametrize(
    ("properties", "orders", "orders_eu", "orders_eu_payments"),
    [
        (OWN, True, False, False),
        (OWN | {"ORIGIN_GROUP": "orders_eu", "RETRY_TOPIC": "payments"}, False, True, False),
        ({"RETRY_TOPIC": "T"}, False, False, True),  # an ordinary retry
        (OWN | {"ORIGIN_GROUP": "orders_eu_payments", "RETRY_TOPIC": "T"}, False, False, True),
        ({"1ST_POP_TIME": "1"}, True, True, True),  # nobody noted whose
        ({"A": "x" * (PROPERTIES_SIZE_BYTES_MAX - 99)}, True, True, True),
    ],
)
def test_group_sees_its_own_retries(properties, orders, orders_eu, orders_eu_payments):
    assert seen(SHARED, "orders", properties) is orders
    assert seen(SHARED, "orders_eu", properties) is orders_eu
    assert seen(SHARED, "orders_eu_payments", properties) is orders_eu_payments


def test_group_named_none_sees_its_own_retries():
    assert seen("%RETRY%None_T", "None_T", {"RETRY_TOPIC": "T"})


def test_group_sees_only_own_retries_that_match_its_filter():
    tagged = OWN | {"TAGS": "a"}
    for expected in (
        Filter(parse_tags("a")),
        Filter(matcher=parse_expression("SQL92", "TAGS='a'")),
    ):
        assert seen(SHARED, "orders", tagged, expected)
        assert not seen(SHARED, "orders", tagged | {"TAGS": "b"}, expected)
        assert not seen(SHARED, "orders_eu", tagged, expected)


@pytest.mark.parametrize("topic", ["T_1", "%RETRY%orders", "%RETRY%another_group", "%DLQ%a_b"])
def test_own_retries_filter_applies_only_to_shared_retry_topics(topic):
    expected = Filter(parse_tags("a"))
    assert own_retries(expected, topic, "orders") is expected
