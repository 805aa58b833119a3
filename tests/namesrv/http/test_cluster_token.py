"""Which broker is shown the cluster's token."""

import pytest

from raftmq.namesrv.http.broker_http import url_of
from raftmq.namesrv.http.cluster_token import ClusterToken

SIGNED = {"127.0.0.1:1", "h:1", "https://h:1"}
KEY = {"signatures_required": True}
CLEAR = {"in_the_clear": True}


@pytest.mark.parametrize(
    ("address", "rule", "is_shown"),
    [
        ("127.0.0.1:1", {}, True),
        ("127.0.0.1:2", {}, False),  # any process of this machine can register
        ("127.0.0.1:2", CLEAR, False),
        ("h:1", {}, False),
        ("h:1", CLEAR, True),
        ("h:2", CLEAR, False),
        ("127.0.0.1:1@h:1", {}, False),  # that is a user of h, no port of this machine
        ("https://h:1", {}, True),
        ("https://h:1", {"tls_verifies": False}, False),
        ("https://h:1", {"tls_verifies": False, **CLEAR}, True),
        ("https://h:2", {}, False),  # the system's CAs give certificates to everybody
        ("https://h:2", {"own_ca": True}, True),
        ("https://h:2", {"own_ca": True, "tls_verifies": False, **CLEAR}, False),
        ("https://h:2", {"own_ca": True, **KEY}, False),
        ("https://h:1", {"own_ca": True, **KEY}, True),
    ],
)
def test_cluster_token_is_sent_only_to_trusted_brokers(address, rule, is_shown):
    token = ClusterToken("0123456789abcdef", is_signed=SIGNED.__contains__, **rule)
    url = url_of(address, "/api/v1/node")
    shown = {"Authorization": "Bearer 0123456789abcdef"} if is_shown else {}
    assert token.headers(url, address) == shown
    assert bool(token.withheld(url, address)) is not is_shown


def test_missing_cluster_token_withholds_nothing():
    url = url_of("h:1", "/")
    assert (ClusterToken().headers(url, "h:1"), ClusterToken().withheld(url, "h:1")) == ({}, "")
