"""Lengths of what a call says, at their limits."""

import pytest

from raftmq.broker.consume.sql92 import tokens
from raftmq.broker.pop import requests as pops
from raftmq.proxy import validation as lengths
from raftmq.proxy.clients import TOPICS_MAX
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.status_codes import StatusError
from raftmq.proxy.validation import (
    ENDPOINTS_BYTES_MAX,
    EXPRESSION_CHARS_MAX,
    SETTINGS_BYTES_MAX,
    check_endpoints,
    check_settings,
    expression_of,
    id_of,
)
from tests.proxy.world import consumer, producer


def test_proxy_length_limits_equal_the_brokers():
    assert lengths.EXPRESSION_CHARS_MAX == tokens.LENGTH_MAX
    assert lengths.ID_CHARS_MAX == pops.NAME_LENGTH_MAX
    assert lengths.SUBSCRIPTIONS_MAX == TOPICS_MAX


def test_filter_expression_length_is_limited():
    longest = "a" * EXPRESSION_CHARS_MAX
    kind = pb.FilterType.SQL
    assert expression_of(pb.FilterExpression(type=kind, expression=longest)) == ("SQL92", longest)
    assert expression_of(pb.FilterExpression()) == ("TAG", "*")
    with pytest.raises(StatusError) as refused:
        expression_of(pb.FilterExpression(expression=longest + "a"))
    assert refused.value.code == pb.Code.ILLEGAL_FILTER_EXPRESSION


def test_ids_are_limited_in_length_and_characters():
    assert id_of("", "it") == "" and id_of("x" * 255, "it") == "x" * 255
    for text in ("x" * 256, "a\nb", "\x00"):
        with pytest.raises(StatusError) as refused:
            id_of(text, "it", pb.Code.ILLEGAL_MESSAGE_ID)
        assert refused.value.code == pb.Code.ILLEGAL_MESSAGE_ID


def test_settings_are_limited_in_subscriptions_and_bytes():
    check_settings(consumer("g", *(f"T{number}" for number in range(TOPICS_MAX))))
    with pytest.raises(StatusError) as refused:
        check_settings(consumer("g", *(f"T{number}" for number in range(TOPICS_MAX + 1))))
    assert refused.value.code == pb.Code.BAD_REQUEST
    settings = producer("T")
    settings.user_agent.hostname = "x" * (SETTINGS_BYTES_MAX - settings.ByteSize() - 8)
    assert settings.ByteSize() == SETTINGS_BYTES_MAX
    check_settings(settings)
    settings.user_agent.hostname += "x"
    with pytest.raises(StatusError) as refused:
        check_settings(settings)
    assert refused.value.code == pb.Code.PAYLOAD_TOO_LARGE


def test_endpoints_are_limited_in_bytes_and_not_empty():
    endpoints = pb.Endpoints(addresses=[pb.Address(host="h", port=1)])
    check_endpoints(endpoints)
    endpoints.addresses[0].host = "x" * (ENDPOINTS_BYTES_MAX - 8)
    assert endpoints.ByteSize() == ENDPOINTS_BYTES_MAX
    check_endpoints(endpoints)
    endpoints.addresses[0].host += "x"
    with pytest.raises(StatusError) as refused:
        check_endpoints(endpoints)
    assert refused.value.code == pb.Code.ILLEGAL_ACCESS_POINT
    with pytest.raises(StatusError):
        check_endpoints(pb.Endpoints())
